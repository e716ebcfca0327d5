"""Form fields for the parameters of a cache, made from the table rows that describe them."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QDoubleSpinBox, QFormLayout, QSpinBox

from app.kit.changes import on_change
from app.kit.codec_choice import CodecChoice
from app.kit.fields import decimal_field, whole_field
from app.kit.labels import plain_label
from engine.spec.codec import CodecSpec, recoded
from engine.spec.codecs import BITS, GROUP, RESIDUAL
from engine.spec.terms import Parameter, ParameterValue

NumberField = QSpinBox | QDoubleSpinBox
CODED = (BITS, GROUP, RESIDUAL)


def number_field(parameter: Parameter, value: ParameterValue) -> NumberField:
    """Make a field for a number. Where the cache can choose the value itself, the field's 0 stands for None."""
    if value is None and not parameter.unset:
        value = parameter.default
    number = value if isinstance(value, (int, float)) else 0
    label, unit, automatic, tip = parameter.label, parameter.unit, parameter.unset, parameter.tip
    if parameter.kind == "number":
        return whole_field(label, int(number), 0, int(parameter.most), unit=unit, automatic=automatic, tip=tip)
    most, step = (1, 0.05) if parameter.kind == "share" else (parameter.most, 1)
    return decimal_field(label, number, 0, most, decimals=2, step=step, unit=unit, automatic=automatic, tip=tip)


class CodecFields(QObject):
    """How K and V are stored: a codec for each, and the numbers that both share. Signal: `changed()`."""

    changed = Signal()

    def __init__(self, form: QFormLayout, codec: CodecSpec, sizes: dict[str, ParameterValue], parent: QObject) -> None:
        """`sizes` are the present values of the numbers; None where the codec does not have one."""
        super().__init__(parent)
        self._form, self._codec = form, codec
        self.choice = CodecChoice(26)
        self.choice.choose(codec.keys.row.name, "" if codec.is_uniform else codec.values.row.name)
        form.addRow("K and V are written as", self.choice)
        self.words = plain_label(role="muted", wraps=True)
        form.addRow("", self.words)
        self.numbers = {parameter.name: number_field(parameter, sizes[parameter.name]) for parameter in CODED}
        for parameter in CODED:
            form.addRow(parameter.label, self.numbers[parameter.name])
        self._shown, self._shown_parts = self._typed(), (self.choice.keys, self.choice.values)
        on_change(self.changed, *self.numbers.values())
        on_change(self._on_choice, self.choice)
        self._show_numbers()

    def _typed(self) -> dict[str, int]:
        return {name: int(field.value()) for name, field in self.numbers.items()}

    def _on_choice(self) -> None:
        self._show_numbers()
        self.changed.emit()

    def _show_numbers(self) -> None:
        self.words.setText(self.choice.words)
        self._form.setRowVisible(self.words, bool(self.choice.words))
        for name, field in self.numbers.items():
            self._form.setRowVisible(field, name in self.choice.parameters)

    def codec(self) -> CodecSpec:
        """Return the codec as typed, or the present one if nothing changed; raises `InputError` where it is
        impossible."""
        typed = self._typed()
        if (self.choice.keys, self.choice.values) != self._shown_parts:
            return self.choice.spec(**typed)
        moved = {n: v if v != self._shown[n] and n in self.choice.parameters else None for n, v in typed.items()}
        return recoded(self._codec, **moved) if any(v is not None for v in moved.values()) else self._codec
