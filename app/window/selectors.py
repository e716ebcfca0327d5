"""The two selectors of the top bar: model and cache mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from msgspec import Struct
from PySide6.QtCore import QPoint, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QFont, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QMenu, QSizePolicy, QToolButton

from app.control.actions import Actions
from app.control.conditions import OPENED_FILE
from app.draw.format import byte_size, short_dtype, shortened, whole_words
from app.kit.asking import Question
from app.kit.reader import STATUS, Reader, State
from app.kit.theme import current_theme, font_text, pixmap
from app.kit.widgets import plain_tip, prose
from app.models import Models
from engine.counted import counted
from engine.spec.cache import (
    ALL_PRESETS,
    CUDA_GPU,
    FAMILIES,
    CacheSpec,
    Family,
    Preset,
    cache_label,
    cache_summary,
    mode_detail,
)
from engine.spec.model import ADAPTER_MARK, BUNDLED, SHAPE_PREFIX, ModelSpec
from engine.wire.commands import FindModels, SetCache
from engine.wire.events import LocalModel, ModelsFound
from engine.wire.status import ModelInfo


class SelectorButton(Reader[State], QToolButton):
    """A button with a bold name, a muted description and a chevron; the description is shortened where space is
    scarce."""

    follows = (STATUS,)
    reads_while_hidden = True  # so that its width is right when it is shown

    def __init__(self) -> None:
        super().__init__()
        self._menu = QMenu(self)
        self._menu.setToolTipsVisible(True)
        self._menu.triggered.connect(self._on_triggered)
        self.clicked.connect(self.open_menu)
        self.name = ""
        self.detail = ""
        self._room = self._room_of_name = 54
        self._bold = font_text(12.5, QFont.Weight.DemiBold)
        self._plain = font_text(12.5)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)

    def _on_triggered(self, action: QAction) -> None:
        raise NotImplementedError

    def open_menu(self) -> None:
        """Let the user choose."""
        self._menu.popup(self.mapToGlobal(QPoint(0, self.height() + 3)))

    def set_texts(self, name: str, detail: str) -> None:
        if (name, detail) != (self.name, self.detail):
            self.name, self.detail = name, detail
            bold, plain = QFontMetricsF(self._bold), QFontMetricsF(self._plain)
            self._room_of_name = round(bold.horizontalAdvance(name)) + 54
            self._room = self._room_of_name + round(plain.horizontalAdvance(detail))
            self.updateGeometry()
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(self._room, 28)

    def minimumSizeHint(self) -> QSize:
        return QSize(min(self.sizeHint().width(), 96), 28)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        frame = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        edge = "accent" if self.hasFocus() else "faint" if self.underMouse() else "hairline"
        painter.setPen(QPen(current_theme().color(edge), 1))
        painter.setBrush(current_theme().color("panel" if current_theme().is_dark else "field"))
        painter.drawRoundedRect(frame, 5, 5)
        ratio = self.devicePixelRatioF()
        chevron = pixmap("chevron", current_theme().muted, 14, ratio)
        painter.drawPixmap(QPoint(self.width() - 21, (self.height() - 14) // 2), chevron)
        self._write(painter, self.width() - 26.0)

    def _write(self, painter: QPainter, right: float) -> None:
        x = 11.0
        for font, text, role in ((self._bold, self.name, "text"), (self._plain, self.detail, "muted")):
            metrics = QFontMetricsF(font)
            room = max(0.0, right - x)
            # a name may be cut at any letter; a description is shortened by whole words
            is_name = font is self._bold
            shown = metrics.elidedText(text, Qt.TextElideMode.ElideRight, room) if is_name else ""
            shown = shown or whole_words(text, room, metrics.horizontalAdvance)
            painter.setFont(font)
            painter.setPen(current_theme().color(role))
            area = QRectF(x, 0, room, self.height())
            painter.drawText(area, int(Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine), shown)
            x += metrics.horizontalAdvance(text) + 9


BESIDE_WORDS = 64  # pixels of an entry of a menu: its check mark, its margins and the gap between label and words


class ModelSelector(SelectorButton[ModelInfo]):
    """A menu of the bundled, the recent and the local models, and of the ways to load another.

    Signals: `chosen(ModelSpec)`; `wants(Question)`, which models this computer has.
    """

    chosen = Signal(object)
    wants = Signal(object)

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        self._actions = actions
        self._recent: tuple[str, ...] = ()
        self._found: tuple[LocalModel, ...] = ()
        self.follow(models)

    def set_recent(self, sources: Sequence[str]) -> None:
        self._recent = tuple(sources)

    def set_found(self, found: Sequence[LocalModel]) -> None:
        """Set the models found on this computer, which the engine looks for when the menu opens."""
        self._found = tuple(found)
        if self._menu.isVisible():
            self._fill()

    def _take_found(self, answer: ModelsFound) -> None:
        self.set_found(answer.models)

    def open_menu(self) -> None:
        self.wants.emit(Question(FindModels(), self._take_found))
        self._fill()
        super().open_menu()

    def _fill(self) -> None:
        self._menu.clear()
        self._menu.addAction(self._actions["model.bundled"])
        known = [source for source in self._recent if source != BUNDLED]
        self._section("Recent", [(prose(source_name(source)), source, source) for source in known])
        self._section("On this computer", [self._local(model) for model in self._found])
        self._menu.addSeparator()
        for key in ("model.open", "model.hub", "model.shape"):
            self._menu.addAction(self._actions[key])
        self._menu.addSeparator()
        for key in ("model.compute", "model.unload", "model.reload"):
            self._menu.addAction(self._actions[key])

    def _section(self, title: str, items: Sequence[tuple[str, str, str]]) -> None:
        if not items:
            return
        self._menu.addSeparator()
        heading = self._menu.addAction(title)
        heading.setEnabled(False)
        for text, source, tip in items:
            action = self._menu.addAction(_menu_text(text))
            action.setData(ModelSpec(source))
            action.setToolTip(plain_tip(prose(tip)))

    def _local(self, model: LocalModel) -> tuple[str, str, str]:
        per_token = "" if model.bytes_per_token is None else f" · {byte_size(model.bytes_per_token)} per token"
        text = f"{prose(model.name)}\t{byte_size(model.size_bytes)}"
        return text, model.source, f"{model.architecture}{per_token}\n{model.source}"

    def _on_triggered(self, action: QAction) -> None:
        spec = action.data()
        if isinstance(spec, ModelSpec):
            self.chosen.emit(spec)

    def read(self) -> ModelInfo | str:
        status = self._models.status
        why = "Starting…" if not status.is_known else "Loading model…" if status.is_loading else "No model"
        return status.now.model or why

    def show_state(self, state: ModelInfo) -> None:
        self.set_texts(shortened(prose(state.name), 40), _model_detail(state))
        self.setAccessibleName(f"Model: {prose(state.name)}")
        self.setToolTip(plain_tip(_model_tip(state)))

    def show_nothing(self, why: str) -> None:
        self.set_texts(why, "")
        self.setAccessibleName("Model")


class CacheShown(Struct, frozen=True):
    """A mode's name, words and tip; the preset that it is, empty if it is none; and whether it cannot be changed."""

    name: str
    words: str
    tip: str
    preset: str
    is_fixed: bool


class CacheSelector(SelectorButton[CacheShown]):
    """A menu of the cache presets. Signal: `wants(SetCache)`."""

    wants = Signal(object)

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        self._actions = actions
        self.entries = {name: self._entry(preset) for name, preset in ALL_PRESETS.items()}
        self.families = {family: QMenu(title, self._menu) for family, title in FAMILIES}
        for family, menu in self.families.items():
            menu.setToolTipsVisible(True)
            menu.menuAction().setCheckable(True)  # that with the mode in use
            menu.addActions(self._of(family))
        self._fill(by_family=False)
        self.follow(models)

    def _entry(self, preset: Preset) -> QAction:
        entry = QAction(self)
        entry.setData(preset.name)
        entry.setCheckable(True)
        return entry

    def _of(self, family: Family) -> list[QAction]:
        return [self.entries[name] for name, preset in ALL_PRESETS.items() if preset.family == family]

    def _fill(self, *, by_family: bool) -> None:
        """Every mode below the heading of its family, or a menu for each family, beside the menu of them."""
        self._menu.clear()
        for family, title in FAMILIES:
            if by_family:
                self._menu.addMenu(self.families[family])
                continue
            self._menu.addSeparator()
            self._menu.addAction(title).setEnabled(False)
            self._menu.addActions(self._of(family))
        self._menu.addSeparator()
        self._menu.addAction(self._actions["cache.tune"])
        self._write_entries(self._room_beside() if by_family else math.inf)

    def _write_entries(self, room: float) -> None:
        """Label each mode and say what it is, as far as that fits into so many pixels. What does not fit, and what the
        mode needs, is in its tool tip, which lies over the modes below and so repeats nothing."""
        width = QFontMetricsF(self._menu.font()).horizontalAdvance
        labels = {
            family: max(width(each.label) for each in ALL_PRESETS.values() if each.family == family)
            for family in self.families
        }
        for name, preset in ALL_PRESETS.items():
            needs = f" Needs {CUDA_GPU}." if preset.spec.row.needs_cuda else ""
            words = whole_words(f"{preset.summary}{needs}", room - labels[preset.family], width)
            self.entries[name].setText(f"{preset.label}\t{words}" if words else preset.label)
            cut = "" if words.startswith(preset.summary) else preset.summary
            tips = cut, f"Needs {', '.join(preset.needs)}" if preset.needs else ""
            self.entries[name].setToolTip(plain_tip("\n".join(filter(None, tips))))

    def minimumSizeHint(self) -> QSize:
        """Wide enough for the mode's name, and to show whether it is lossy; the model's name is shortened first."""
        return QSize(min(self.sizeHint().width(), max(230, self._room_of_name)), 28)

    def open_menu(self) -> None:
        model = self._models.status.now.model
        for name, entry in self.entries.items():
            if ALL_PRESETS[name].spec.row.needs_cuda:
                entry.setEnabled(model is not None and model.device.startswith("cuda"))
        self._fill(by_family=False)
        if self._menu.sizeHint().height() > self._room_below():  # it would lie over the selector itself
            self._fill(by_family=True)
        super().open_menu()

    def _room_beside(self) -> int:
        """Pixels for the words of an entry, to the right of the menu."""
        right = self.mapToGlobal(QPoint(0, 0)).x() + self._menu.sizeHint().width()
        return self.screen().availableGeometry().right() - right - BESIDE_WORDS

    def _room_below(self) -> int:
        """Pixels of the screen below the selector."""
        return self.screen().availableGeometry().bottom() - self.mapToGlobal(QPoint(0, self.height())).y()

    def choose(self, spec: CacheSpec) -> None:
        """Change the cache mode, for the menu and the actions; the check marks change when the engine reports it."""
        self.wants.emit(SetCache(spec))
        self.show_again()

    def _on_triggered(self, action: QAction) -> None:
        if action.data() in ALL_PRESETS:
            self.choose(ALL_PRESETS[action.data()].spec)

    def read(self) -> CacheShown:
        told, preset = self._models.status.now, self._models.status.preset
        if told.opened is not None and told.opened.foreign_cache is not None:
            name, words = prose(told.opened.foreign_cache), "as the file calls it"
            tip = f"{name}: {words}. With which parameters it kept, coded or evicted rows is not in the file."
            return CacheShown(shortened(name, 30), words, tip, preset, is_fixed=True)
        words, is_fixed = mode_detail(told.cache), told.opened is not None
        tip = f"{cache_summary(told.cache)}\n{words}" + (f"\nNot now: {OPENED_FILE}" if is_fixed else "")
        return CacheShown(cache_label(told.cache), words, tip, preset, is_fixed)

    def show_state(self, state: CacheShown) -> None:
        self.set_texts(state.name, state.words)
        self.setAccessibleName(f"Cache: {state.name}, {state.words}")
        self.setEnabled(not state.is_fixed)
        self.setToolTip(plain_tip(state.tip))
        for name, entry in self.entries.items():
            entry.setChecked(name == state.preset)
        for family, menu in self.families.items():
            menu.menuAction().setChecked(bool(state.preset) and ALL_PRESETS[state.preset].family == family)


def source_name(source: str) -> str:
    """A model's source, shortened for a menu."""
    source, _, adapter = source.partition(ADAPTER_MARK)
    mark = f" + {Path(adapter).name}" if adapter else ""
    if source.startswith(SHAPE_PREFIX):
        return f"shape of {ModelSpec(source).shape_name}{mark}"
    return f"{Path(source).name if '/' in source and Path(source).is_absolute() else source}{mark}"


def _menu_text(text: str) -> str:
    return text.replace("&", "&&")  # Qt would take a single & for a mnemonic


def _model_detail(model: ModelInfo) -> str:
    geometry = model.geometry
    heads = f"{counted(geometry.num_heads, 'head')} on {geometry.num_kv_heads} kv"
    num_layers = counted(geometry.num_layers, "layer")
    if geometry.has_encoder:
        num_layers = f"{geometry.num_blocks} + {counted(geometry.num_blocks, 'cross layer')}"
    shape = f"{num_layers} · {heads} · head_dim {geometry.head_dim}"
    devices = len(set(model.layer_devices))
    where = f"{counted(devices, 'device') if devices else model.device} {short_dtype(model.dtype)}"
    parts = [_family(model.architecture), shape if geometry.num_heads else counted(geometry.num_layers, "layer"), where]
    return " · ".join((["random weights"] if model.random_weights else []) + parts)


def layer_places(devices: Sequence[str]) -> list[str]:
    """Which layers are on which device, for a model on several: `layers 0–15 on cuda:0`."""
    runs = [(device, [index for index, _ in group]) for device, group in groupby(enumerate(devices), lambda d: d[1])]
    return [
        f"layer {where[0]} on {device}" if len(where) == 1 else f"layers {where[0]}–{where[-1]} on {device}"
        for device, where in runs
    ]


def _family(architecture: str) -> str:
    """`LlamaForCausalLM` without the suffix that every decoder has."""
    found = prose(architecture)
    for ending in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel"):
        found = found.removesuffix(ending) or found
    return found


def _model_tip(model: ModelInfo) -> str:
    lines = [
        prose(model.source),
        f"{counted(model.num_parameters, 'parameter')} · {byte_size(model.weight_bytes)}"
        if model.num_parameters
        else "",
        f"on {model.device}: {model.why_device}" if model.why_device else "",
        *layer_places(model.layer_devices),
        prose(model.fingerprint),
        prose(model.note),
    ]
    return "\n".join(line for line in lines if line)
