"""The parameters of the cache in use, from the rows that describe its layout, its rule and its codecs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QDoubleSpinBox, QSpinBox, QWidget

from app.kit.codec_choice import CodecChoice
from app.kit.dialog import Question
from app.kit.labels import plain_label
from app.kit.theme import font_fixed
from app.kit.units import inset
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.codecs import BITS, GROUP, RESIDUAL
from engine.spec.parameters import Parameter, Value
from engine.spec.presets import cache_label, cache_summary, parameters_of
from engine.spec.tuning import tuned

Field = QSpinBox | QDoubleSpinBox | QCheckBox | QComboBox

CODED = (BITS, GROUP, RESIDUAL)
PACKAGES: Mapping[str, str] = {"quanto": "optimum", "hqq": "hqq"}


class CacheDialog(Question):
    """Intent: `chosen(CacheSpec)`.

    What is refused is refused by the engine's own rules, in its words, and the dialog stays open.
    """

    chosen = Signal(object)

    def __init__(self, spec: CacheSpec, parent: QWidget) -> None:
        super().__init__(f"{cache_label(spec)} cache", parent)
        self._spec = spec
        self._fields: dict[str, Field] = {}
        self._parameters: dict[str, Parameter] = {}
        summary = plain_label(cache_summary(spec))
        summary.setWordWrap(True)
        self.form.addRow(summary)
        takes_codec = not spec.row.takes_no and not spec.codec.layers  # a plan by layer stays as it is
        for parameter in parameters_of(spec):
            if not takes_codec or parameter not in CODED:
                self._add(parameter)
        self.codec = self._codec_choice() if takes_codec else None
        self._shown = {name: self._value(name) for name in self._fields}
        self._shown_codec = self._codec
        self._on_codec()

    # ---- fields --------------------------------------------------------------------------------------------------

    def _codec_choice(self) -> CodecChoice:
        """How K and V are written, with every number that a codec may have."""
        spec = self._spec
        choice = CodecChoice(26)
        choice.choose(spec.codec.keys.row.name, spec.codec.values.row.name if not spec.codec.is_uniform else "")
        self.form.addRow("K and V are written as", choice)
        for parameter in CODED:
            self._add(parameter)
        choice.changed.connect(self._on_codec)
        return choice

    @property
    def _codec(self) -> tuple[str, str] | None:
        return (self.codec.keys, self.codec.values) if self.codec is not None else None

    def _on_codec(self) -> None:
        """The numbers that the chosen codecs have, and no others."""
        if self.codec is None:
            return
        for parameter in CODED:
            self.form.setRowVisible(self._fields[parameter.name], parameter.name in self.codec.parameters)

    def _add(self, parameter: Parameter) -> None:
        value = getattr(self._spec, parameter.name)
        match parameter.kind:
            case "choice":
                self._add_choice(parameter, value)
            case "switch":
                box = QCheckBox(parameter.label)
                box.setChecked(bool(value))
                box.setToolTip(parameter.tip)
                self._keep(parameter, box, "")
            case _:
                self._add_number(parameter, value)

    def _add_number(self, parameter: Parameter, value: Value) -> None:
        is_whole = parameter.kind == "number"
        field: QSpinBox | QDoubleSpinBox = QSpinBox() if is_whole else QDoubleSpinBox()
        field.setRange(0, parameter.most if parameter.kind != "share" else 1)
        if isinstance(field, QDoubleSpinBox) and parameter.kind == "share":
            field.setSingleStep(0.05)
        if parameter.unset:
            field.setSpecialValueText(parameter.unset)
        field.setFont(font_fixed())
        inset(field, parameter.unit)
        field.setToolTip(parameter.tip)
        if value is None and not parameter.unset:
            value = parameter.default
        field.setValue(value if isinstance(value, (int, float)) else 0)  # type: ignore[arg-type]
        self._keep(parameter, field, parameter.label)
        if parameter.name == "budget":
            field.valueChanged.connect(self._on_budget)
        elif parameter.name == "ratio":
            field.valueChanged.connect(self._on_ratio)

    def _add_choice(self, parameter: Parameter, value: Value) -> None:
        box = QComboBox()
        for choice, words in parameter.choices:
            package = PACKAGES.get(words)
            box.addItem(words if package is None or find_spec(package) else f"{words} (not installed)", choice)
        box.setCurrentIndex(max(0, box.findData(value)))
        box.setToolTip(parameter.tip)
        self._keep(parameter, box, parameter.label)

    def _keep(self, parameter: Parameter, field: Field, label: str) -> None:
        field.setAccessibleName(parameter.label)
        self._fields[parameter.name], self._parameters[parameter.name] = field, parameter
        self.form.addRow(label, field)

    # A budget and a ratio exclude each other: giving one takes the other back.

    def _on_budget(self, value: float) -> None:
        self._take_back("ratio", value)

    def _on_ratio(self, value: float) -> None:
        self._take_back("budget", value)

    def _take_back(self, name: str, value: float) -> None:
        rival = self._fields.get(name)
        if value and isinstance(rival, (QSpinBox, QDoubleSpinBox)):
            rival.setValue(0)

    # ---- what they say -------------------------------------------------------------------------------------------

    def _value(self, name: str) -> Value:
        field = self._fields[name]
        if isinstance(field, QCheckBox):
            return field.isChecked()
        if isinstance(field, QComboBox):
            return str(field.currentData())
        return None if not field.value() and self._parameters[name].unset else field.value()

    def spec(self) -> CacheSpec:
        """The cache as it is typed; `InputError` says what is impossible about it.

        Only what a person changed is taken: a field shows fewer digits than a parameter may have.
        """
        values = {name: self._value(name) for name in self._fields}
        changed: dict[str, Any] = {name: value for name, value in values.items() if value != self._shown[name]}
        if self.codec is not None:
            for parameter in CODED:
                if parameter.name not in self.codec.parameters:
                    changed.pop(parameter.name, None)
            if self._codec != self._shown_codec:
                numbers = [int(values[parameter.name] or 0) for parameter in CODED]
                for parameter in CODED:
                    changed.pop(parameter.name, None)
                changed["codec"] = self.codec.spec(*numbers)
        return tuned(self._spec, **changed)

    def accept(self) -> None:
        try:
            spec = self.spec()
        except InputError as error:
            self.refuse(str(error))
            return
        if spec != self._spec:  # the same cache again would be filled again for nothing
            self.chosen.emit(spec)
        super().accept()
