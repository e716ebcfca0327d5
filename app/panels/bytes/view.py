"""The memory ledger: predicted, stored, reserved, held for looking, and a name for every difference; by layer too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import QEvent, QRect, QRectF, Qt
from PySide6.QtGui import QAccessible, QHelpEvent, QImage, QPainter, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QSizePolicy, QStackedWidget, QToolTip, QWidget

from app.draw.format import byte_size, thousands
from app.kit.cells import Cell, CellTable, Head
from app.kit.facts import PITCH, Fact, Facts, WholeLines
from app.kit.labels import Ground, plain_tip
from app.kit.panel import MARGIN, STRIP_HEIGHT, Panel
from app.kit.pictures import argb, pixels_image
from app.kit.provenance import shown_record, tell_source
from app.kit.text_lines import Ink
from app.kit.theme import TextRole, Theme, font_fixed, font_text
from app.models import Models
from app.panels.bytes import draw
from app.panels.bytes.draw import BarColors, Entry, Key, LayerBar
from engine.geometry.dimensions import DTYPE_BYTES
from engine.wire.records import CacheBytes, LayerBytes, StepRecord

_WIDE = 420
SUM, LAYERS = "sum", "layers"
_MAX_READ = 40
_LEAST_BARS = 58
_GAP = 12
_MOST_PITCH, _MOST_LEDGER = 64.0, 480  # pixels of a layer's bar, and of the ledger beside the bars
_NO_LIMIT = 16_777_215  # Qt's own: as high as there is room
_PIECES = ("page_used", "page_shared", "page_cached", "page_host")


def gap_words(name: str) -> str:
    """The engine's name of a gap as people read it here."""
    return {
        "scales and offsets": "scales and offsets",
        "exact residual": "exact residual",
        "positions of the rows kept": "positions of rows",
        "room to grow": "room to grow",
        "dequantised copy": "dequantised copy",
        "rows kept for going back": "for going back",
        "page slack": "page slack",
        "pages not in use": "pages not in use",
        "padding to the reserved length": "padding, to full length",
    }.get(name, name)


def short_words(name: str) -> str:
    """One word for the head of a column."""
    return {
        "scales and offsets": "scales",
        "exact residual": "residual",
        "positions of the rows kept": "positions",
        "room to grow": "room",
        "dequantised copy": "copy",
        "page slack": "slack",
        "pages not in use": "unused",
        "padding to the reserved length": "padding",
    }.get(name, name)


def layer_words(layer: LayerBytes) -> str:
    """One layer's sum in full: what is stored, what of it is no number of a token, and what fills the rest."""
    lines = [f"layer {layer.layer} ({layer.kind})"]
    lines.append(f"{thousands(layer.predicted)}  by formula")
    lines.append(f"{thousands(layer.stored)}  stored")
    signs = {
        "stored": "of these",
        "reserved": "+",
        "transient": "while attention runs",
        "looking": "aside",
    }
    order = ("stored", "reserved", "transient", "looking")
    for gap in sorted(layer.gaps, key=lambda gap: order.index(gap.part)):
        lines.append(f"   {signs[gap.part]} {thousands(gap.num_bytes)}  {gap_words(gap.name)}")
    lines.append(f"{thousands(layer.reserved)}  reserved")
    return "\n".join(lines)


class LayerBars(Ground, QWidget):
    """One bar per layer: stored, inside what is reserved; a stroke where the formula says."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._bars: tuple[LayerBar, ...] = ()
        self._pixels = np.zeros((0, 0), np.uint32)
        self._image = QImage()
        self._ink = Ink(font_fixed(10))
        self.set_ground(theme)
        self.setAccessibleName("Bytes per layer")
        self.setMinimumSize(60, _LEAST_BARS)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def show_bars(self, theme: Theme, bars: tuple[LayerBar, ...]) -> None:
        if theme is self._theme and bars == self._bars:
            return
        is_same_form = theme is self._theme and len(bars) == len(self._bars)
        self._theme, self._bars = theme, bars
        self.set_ground(theme)
        if QAccessible.isActive():  # many words, for whom they are read out
            self.setAccessibleDescription("\n".join(layer_words(bar.source) for bar in bars[:_MAX_READ]))
        if self._draw() or not is_same_form:
            self.update()

    def _plot(self) -> QRect:
        return QRect(0, 15, self.width(), max(1, self.height() - 30))

    def _draw(self) -> bool:
        """Whether a pixel became another one: a few more bytes seldom do that."""
        ratio, plot, pitch = self.devicePixelRatioF(), self._plot(), self._pitch()
        gap = 4 if pitch > 12 else 1 if pitch > 3 else 0
        theme = self._theme
        colors = BarColors(
            argb(theme.page_free), tuple(argb(getattr(theme, role)) for role in _PIECES), argb(theme.text)
        )
        size = round(plot.width() * ratio), round(plot.height() * ratio)
        pixels = draw.paint_bars(self._bars, *size, pitch * ratio, round(gap * ratio), colors)
        if np.array_equal(pixels, self._pixels):
            return False
        self._pixels, self._image = pixels, pixels_image(pixels, ratio)
        return True

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._draw()

    def _pitch(self) -> float:
        return min(self.width() / max(1, len(self._bars)), _MOST_PITCH)

    def event(self, event: QEvent) -> bool:
        """The card of the layer under the mouse: every number, and how they add up."""
        if isinstance(event, QHelpEvent):
            index = int(event.pos().x() / self._pitch()) if self._bars else -1
            if 0 <= index < len(self._bars):
                QToolTip.showText(event.globalPos(), plain_tip(layer_words(self._bars[index].source)), self)
            else:
                QToolTip.hideText()
            return True
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_ground(painter)
        if not self._bars:
            return
        plot = self._plot()
        painter.drawImage(plot.topLeft(), self._image)
        painter.setFont(font_text(11))
        painter.setPen(self._theme.color("muted"))
        painter.drawText(QRectF(0, -1, self.width(), 14), 0, "stored / reserved")
        pitch = self._pitch()
        every = max(1, -(-26 // int(max(pitch, 1))))
        for index in range(0, len(self._bars), every):
            name = str(self._bars[index].layer)
            text, x = f"L{name}" if pitch > 22 else name, (index + 0.5) * pitch - 1
            self._ink.between(painter, text, x, plot.bottom() + 9, 0, self.width(), self.width())


class BytesView(Panel):
    """The ledger of the step that is looked at."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Bytes", parent)
        self._models = models
        self._drawn: tuple[object, ...] = ()
        self._view = SUM
        self._facts = Facts(theme)
        self._facts.setAccessibleName("Memory ledger")
        self._table = CellTable(theme, "Bytes of every layer")
        self._bars = LayerBars(theme)
        body = QWidget()
        self._split = QBoxLayout(QBoxLayout.Direction.TopToBottom, body)
        self._split.setContentsMargins(0, 0, 0, 0)
        self._split.setSpacing(_GAP)
        self._split.addWidget(self._facts)
        self._split.addWidget(self._bars, 2)
        self._sheets = QStackedWidget()
        self._sheets.addWidget(WholeLines(body))
        self._sheets.addWidget(self._table)
        self.set_body(self._sheets)
        self.set_choices(
            (
                (SUM, "sum", "All layers together, every gap named"),
                (LAYERS, "layers", "Every layer in numbers"),
            )
        )
        self.set_choice(SUM)
        self.chosen.connect(self.choose)
        models.selection.changed.connect(self._refresh)
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        self._refresh()

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._table.set_theme(theme)
        self._drawn = ()
        self._refresh()

    def choose(self, view: str) -> None:
        """Show the sum, or every layer."""
        self._view = view
        self.set_choice(view)
        self._refresh()

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        record = shown_record(self._models)
        if record is None:
            self.set_empty("What the cache takes, and why, appears here with the first step.")
            self.set_provenance("")
            self._drawn = ()
            return
        self.set_empty(None)
        tell_source(self, self._models, "recorded", record.dtype, record.step, is_of_cache_now=True)
        held = self._models.timeline.num_bytes(self._models.selection.now.step) or record.num_bytes
        key = (held, self._view, self.theme)
        if key == self._drawn:
            return
        self._drawn = key
        self._sheets.setCurrentIndex(int(self._view == LAYERS))
        if self._view == LAYERS:
            self._show_layers(held)
            return
        self._facts.show_facts(self.theme, tuple(self._fact(entry, record) for entry in draw.ledger(held)))
        self._bars.show_bars(self.theme, draw.layer_bars(held))
        self._space()

    def _show_layers(self, held: CacheBytes) -> None:
        """Formula, stored and what of it is no number of a token, every gap, and reserved: each row adds up."""
        table = draw.layer_table(held)
        tips = {
            "stored": "part of what is stored",
            "reserved": "between stored and reserved: stored and all of these make what is reserved",
            "transient": "lives only while the layer's attention runs: in no sum",
            "looking": "",
        }
        heads = [
            Head("layer", is_words=True),
            Head("formula", "what the rows kept take by formula"),
            Head("stored", "in tensors, for rows that hold tokens"),
            *(Head(short_words(name), f"{gap_words(name)}: {tips[part]}") for name, part in table.names),
            Head("reserved", "what storage really holds"),
        ]
        marks = {"stored": "", "reserved": "+", "transient": "~", "looking": ""}
        signs = ["", "", *(marks[part] for _, part in table.names), ""]
        quiet: list[TextRole] = ["muted"] * len(table.names)
        roles: list[TextRole] = ["muted", "text", *quiet, "text"]

        def cells(numbers: Sequence[int], is_bold: bool) -> list[Cell]:
            return [
                Cell(f"{sign}{thousands(n)}" if n else "·", role if n else "muted", is_bold=is_bold)
                for n, sign, role in zip(numbers, signs, roles, strict=True)
            ]

        rows = [
            [Cell(f"L{layer.layer} {layer.kind}", tip=layer_words(layer)), *cells(n, False)] for layer, n in table.rows
        ]
        if len(rows) > 1:
            rows.insert(0, [Cell("all", is_bold=True), *cells(table.total, False)])
        self._table.show_cells(heads, rows)

    def _fact(self, entry: Entry, record: StepRecord) -> Fact:
        label = gap_words(entry.name) if entry.key == "named" else self._label(entry.key, record)
        if entry.is_within:
            label = f"of it {label}"
        if entry.part == "transient":
            label = f"{label}, briefly"
        if entry.num_bytes is None:
            return Fact(label, "cannot be asked here", role="muted")
        size = byte_size(entry.num_bytes) if abs(entry.num_bytes) >= 1024 else ""
        is_aside = entry.is_gap or entry.is_within or entry.part == "transient"
        has_rule = entry.key in ("looking", "allocator")
        sign = "+" if entry.part == "reserved" else "~" if entry.part == "transient" else ""
        text = sign + thousands(entry.num_bytes)
        role: TextRole = "bad" if entry.key == "unnamed" else "muted" if is_aside else "text"
        return Fact(label, text, size, role, int(is_aside), has_rule=has_rule)

    def _label(self, key: Key, record: StepRecord) -> str:
        labels = {
            "predicted": self._formula(record.dtype),
            "beyond_formula": "stored beyond the formula",
            "below_formula": self._below(record),
            "stored": "stored in tensors",
            "named": "",
            "unnamed": "⚠ without a name",
            "reserved": "reserved in storage",
            "looking": "held for looking",
            "other": "other: weights, activations",
            "allocator": "held by the allocator",
            "process": "process, resident",
        }
        return labels[key]

    def _below(self, record: StepRecord) -> str:
        """Why less is stored than the formula says: sequences share rows, or rows were let go."""
        is_shared = any(pool.num_shared for pool in record.page_maps)
        return "shared, stored once" if is_shared else "left the window, or not kept"

    def _formula(self, dtype: str) -> str:
        """The formula itself, where every layer is the same."""
        status = self._models.status.now
        is_uniform = status is not None and status.model is not None and status.model.geometry.is_uniform
        if not is_uniform or dtype not in DTYPE_BYTES:
            return "predicted by formula"
        return f"formula 2·L·H_kv·D·S·{DTYPE_BYTES[dtype]}"

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_wide = self.width() > _WIDE and self.height() < 10 * PITCH + 130
        direction = QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom
        if direction != self._split.direction():
            self._split.setDirection(direction)
            self._split.setStretch(0, 5 if is_wide else 0)
            self._facts.setMaximumWidth(_MOST_LEDGER if is_wide else _NO_LIMIT)
            self._split.setAlignment(self._bars, Qt.AlignmentFlag.AlignTop if is_wide else Qt.AlignmentFlag(0))
        # beside a ledger that must be scrolled they still stand in the panel whole
        room = max(_LEAST_BARS, self._room)
        self._bars.setMinimumHeight(room if is_wide else _LEAST_BARS)
        self._bars.setMaximumHeight(room if is_wide else _NO_LIMIT)

        self._space()

    @property
    def _room(self) -> int:
        return self.height() - STRIP_HEIGHT - 2 * MARGIN - 1

    def _space(self) -> None:
        """Bars below a ledger stand there whole, or begin where one scrolls to: their upper edge alone says nothing."""
        free = self._room // PITCH * PITCH - self._facts.sizeHint().height()
        is_below = self._split.direction() == QBoxLayout.Direction.TopToBottom
        self._split.setSpacing(free if is_below and _GAP < free < _GAP + _LEAST_BARS else _GAP)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()
