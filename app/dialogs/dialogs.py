"""Small questions: a hub name, a number of steps, the parameters of a cache; and the two pages of Help."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import get_args

from PySide6.QtCore import Qt, Signal, qVersion
from PySide6.QtGui import QFont
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDialogButtonBox,
    QDoubleSpinBox,
    QHeaderView,
    QLineEdit,
    QSpinBox,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.control.actions import Action, Actions, native
from app.kit.dialog import Dialog, Question
from app.kit.labels import plain_label
from app.kit.theme import font_fixed, font_text
from app.kit.units import inset
from app.start.cache_modes import with_parameters
from engine.errors import InputError
from engine.spec.cache import Backend, CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_label, cache_summary, preset_of
from engine.spec.retention import BY_POSITION


class HubDialog(Question):
    """Intent: `chosen(ModelSpec)`."""

    chosen = Signal(object)

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Model by hub name", parent)
        self._name = QLineEdit()
        self._name.setPlaceholderText("organisation/model")
        self._name.setFont(font_fixed())
        self._download = QCheckBox("Allow download if it is not on this computer")
        self.form.addRow("Hub name", self._name)
        self.form.addRow("", self._download)
        self.ok.setText("Load")

    def accept(self) -> None:
        try:
            spec = ModelSpec(self._name.text().strip(), allow_download=self._download.isChecked())
        except InputError as error:
            self.refuse(str(error))
            return
        self.chosen.emit(spec)
        super().accept()


class RunToDialog(Question):
    """Intent: `chosen(num_steps)`."""

    chosen = Signal(int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Run steps", parent)
        self._count = QSpinBox()
        self._count.setRange(1, 10_000_000)
        self._count.setValue(32)
        self._count.setFont(font_fixed())
        inset(self._count)
        self.form.addRow("Steps to run, then rest", self._count)
        self.ok.setText("Run")

    def accept(self) -> None:
        self.chosen.emit(self._count.value())
        super().accept()


@dataclass(frozen=True)
class Knob:
    """A parameter of a cache as people see it. `unit` follows the number; `nothing` is what 0 means where it is no
    number: that the cache decides, or that the parameter is not used."""

    label: str
    unit: str = ""
    most: int = 10_000_000
    is_whole: bool = True
    nothing: str = ""
    tip: str = ""


_TOKENS, _AUTOMATIC, _UNUSED = " tokens", "automatic", "not used"
KNOBS: Mapping[str, Knob] = {
    "max_length": Knob("Reserved length", _TOKENS, nothing=_AUTOMATIC),
    "page_size": Knob("Page size", _TOKENS, 1024, tip="A power of two"),
    "num_pages": Knob("Pages in the pool", " pages", nothing=_AUTOMATIC),
    "host_gib": Knob("Host tier", " GiB", 65_536, is_whole=False),
    "budget": Knob("Rows kept per head", _TOKENS, nothing=_UNUSED, tip="A fixed number of rows, or a part of them"),
    "ratio": Knob("Part of the rows dropped", "", 1, is_whole=False, nothing=_UNUSED, tip="Of all tokens seen"),
    "sinks": Knob("Sinks: first rows always kept", _TOKENS),
    "window": Knob("Latest rows always kept", _TOKENS, nothing=_AUTOMATIC),
    "bits": Knob("Bits of a code", " bits", 8, tip="2, 4 or 8 where a code is packed into words"),
    "group": Knob("Numbers that share a scale", "", 4096),
    "residual": Knob("Latest rows exact", _TOKENS, 65_536),
}
SWITCHES: Mapping[str, str] = {
    "replace_duplicates": "Replace the newer of equal pages",
    "rerotate": "Re-rotate the sinks over the gap",
}
PACKAGES: Mapping[str, str] = {"quanto": "optimum", "hqq": "hqq"}


class CacheDialog(Question):
    """The parameters of the cache in use, made from its preset. Intent: `chosen(CacheSpec)`.

    What is refused is refused by the engine's own rules, in its words, and the dialog stays open.
    """

    chosen = Signal(object)

    def __init__(self, spec: CacheSpec, parent: QWidget) -> None:
        preset = preset_of(spec)
        super().__init__(f"{cache_label(spec)} cache", parent)
        self._spec = spec
        self._fields: dict[str, QSpinBox | QDoubleSpinBox | QCheckBox | QComboBox] = {}
        summary = plain_label(cache_summary(spec))
        summary.setWordWrap(True)
        self.form.addRow(summary)
        for name in preset.parameters:
            self._add(name, getattr(spec, name))
        self._shown = {name: self._value(name) for name in self._fields}

    def accept(self) -> None:
        try:
            spec = with_parameters(self._spec, self._changed())
        except InputError as error:
            self.refuse(str(error))
            return
        if spec != self._spec:  # the same cache again would be filled again for nothing
            self.chosen.emit(spec)
        super().accept()

    def _changed(self) -> dict[str, int | float | bool | str | None]:
        """What a person changed: a field shows fewer digits than a parameter may have."""
        values = {name: self._value(name) for name in self._fields}
        return {name: value for name, value in values.items() if value != self._shown[name]}

    def _add(self, name: str, value: object) -> None:
        if name == "backend":
            self._add_choice(name, "Quantiser", [(b, self._backend_name(b)) for b in get_args(Backend)], value)
        elif name == "layout":
            layouts = [("growing", "one by one, in growing room"), ("paged", "by whole pages")]
            self._add_choice(name, "Rows are dropped", layouts, value)
        elif name in KNOBS:
            self._add_number(name, self._knob(name), value)
        elif name in SWITCHES:
            box = QCheckBox(SWITCHES[name])
            box.setChecked(bool(value))
            self._fields[name] = box
            self.form.addRow("", box)

    def _knob(self, name: str) -> Knob:
        """transformers' own quantiser has a default for each of its numbers; a plain window has none."""
        knob = KNOBS[name]
        if self._spec.quantizer is not None:
            return replace(knob, nothing=_AUTOMATIC)
        is_needed = name == "window" and self._spec.retention.name in BY_POSITION
        return replace(knob, nothing="") if is_needed else knob

    def _add_number(self, name: str, knob: Knob, value: object) -> None:
        field: QSpinBox | QDoubleSpinBox = QSpinBox() if knob.is_whole else QDoubleSpinBox()
        field.setRange(0, knob.most)
        if isinstance(field, QDoubleSpinBox) and knob.most == 1:
            field.setSingleStep(0.05)
        if knob.nothing:
            field.setSpecialValueText(knob.nothing)
        field.setFont(font_fixed())
        inset(field, knob.unit)
        field.setToolTip(knob.tip)
        field.setAccessibleName(knob.label)
        field.setValue(value if isinstance(value, (int, float)) else 0)  # type: ignore[arg-type]
        self._fields[name] = field
        self.form.addRow(knob.label, field)
        if name == "budget":
            field.valueChanged.connect(self._on_budget)
        elif name == "ratio":
            field.valueChanged.connect(self._on_ratio)

    def _add_choice(self, name: str, label: str, choices: Sequence[tuple[str, str]], value: object) -> None:
        box = QComboBox()
        for choice, text in choices:
            box.addItem(text, choice)
        box.setCurrentIndex(max(0, box.findData(value)))
        box.setAccessibleName(label)
        self._fields[name] = box
        self.form.addRow(label, box)

    def _backend_name(self, name: str) -> str:
        package = PACKAGES.get(name)
        return name if package is None or find_spec(package) else f"{name} (not installed)"

    # A budget and a ratio exclude each other: giving one takes the other back.

    def _on_budget(self, value: float) -> None:
        self._take_back("ratio", value)

    def _on_ratio(self, value: float) -> None:
        self._take_back("budget", value)

    def _take_back(self, name: str, value: float) -> None:
        rival = self._fields.get(name)
        if value and isinstance(rival, (QSpinBox, QDoubleSpinBox)):
            rival.setValue(0)

    def _value(self, name: str) -> int | float | bool | str | None:
        field = self._fields[name]
        if isinstance(field, QCheckBox):
            return field.isChecked()
        if isinstance(field, QComboBox):
            return str(field.currentData())
        return None if not field.value() and self._knob(name).nothing else field.value()


class KeysDialog(Dialog):
    """Which key does what, from the table of actions."""

    def __init__(self, actions: Actions, parent: QWidget) -> None:
        super().__init__("Keys", parent)
        tree = QTreeWidget()
        tree.setColumnCount(3)
        tree.setHeaderLabels(["Action", "Key", "Where"])
        tree.setRootIsDecorated(False)
        tree.setAccessibleName("Keys")
        for title, groups in actions.menus.items():
            _add_menu(tree, title, [action for group in groups for action in group if action.key], actions)
        tree.expandAll()
        tree.header().setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        tree.header().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(14, 14, 14, 14)
        layout.addWidget(tree)
        self.resize(560, 620)


def _add_menu(tree: QTreeWidget, title: str, declared: Sequence[Action], actions: Actions) -> None:
    if not declared:
        return
    heading = QTreeWidgetItem([title.replace("&", "")])
    heading.setFlags(Qt.ItemFlag.ItemIsEnabled)
    heading.setFont(0, font_text(weight=QFont.Weight.DemiBold))
    tree.addTopLevelItem(heading)
    where = {"window": "anywhere", "picture": "in a picture", "timeline": "on the timeline"}
    for action in declared:
        item = QTreeWidgetItem([actions[action.name].text(), native(action.key), where[action.where]])
        item.setFont(1, font_fixed())
        item.setToolTip(0, action.tip)
        heading.addChild(item)


class AboutDialog(Dialog):
    """Version, licence, what it runs on."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("About KV Loupe", parent)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(22, 20, 22, 16)
        layout.setSpacing(10)
        name = plain_label("KV Loupe {}".format(version("kvloupe")).strip())
        name.setFont(font_text(17, QFont.Weight.DemiBold))
        facts = plain_label(
            "\n\n".join(
                (
                    "Look into the KV cache of a language model, step by step.",
                    _versions(),
                    "Apache License 2.0. Typefaces Inter and JetBrains Mono, SIL Open Font License 1.1.",
                    "It sends nothing anywhere, and downloads nothing that you did not allow.",
                )
            )
        )
        facts.setWordWrap(True)
        facts.setFixedWidth(420)
        facts.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        layout.addWidget(name)
        layout.addWidget(facts)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        layout.addWidget(buttons)


def version(distribution: str) -> str:
    """An installed version without importing the package."""
    from importlib import metadata  # drags in the mail parser: not before somebody asks

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _versions() -> str:
    parts = [f"Python {platform.python_version()}", f"Qt {qVersion()}"]
    parts += [f"{name} {version(name)}" for name in ("torch", "transformers", "safetensors", "numpy")]
    return " · ".join(parts)
