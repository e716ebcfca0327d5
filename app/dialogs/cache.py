"""The dialog for the parameters of the cache in use. Its fields come from the tables of layouts, rules and codecs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from PySide6.QtWidgets import QCheckBox, QComboBox, QDoubleSpinBox, QSpinBox, QWidget

from app.dialogs.parameter_fields import CODED, CodecFields, number_field
from app.kit.changes import on_change
from app.kit.dialog import QuestionDialog
from app.kit.fields import choice_field
from app.kit.labels import plain_label, set_text_role
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_label, cache_summary, parameters_of
from engine.spec.terms import Parameter, ParameterValue
from engine.spec.tuning import tuned

ParameterField = QSpinBox | QDoubleSpinBox | QCheckBox | QComboBox

PACKAGES: Mapping[str, str] = {"quanto": "optimum", "hqq": "hqq"}


class CacheDialog(QuestionDialog):
    """Edit a cache's parameters. Signal: `chosen(CacheSpec)`.

    The engine's own rules check the input: their message is shown, and the dialog stays open.
    """

    def __init__(self, spec: CacheSpec, parent: QWidget) -> None:
        super().__init__(f"{cache_label(spec)} cache", parent)
        self._spec = spec
        self._fields: dict[str, ParameterField] = {}
        self._parameters: dict[str, Parameter] = {}
        rule = spec.retention.row
        for words in (cache_summary(spec), f"{rule.formula} · {rule.paper}" if rule is not None else ""):
            label = plain_label(words, wraps=True)
            self.form.addRow(label)
            label.setVisible(bool(words))
        set_text_role(label, "muted")
        takes_codec = not spec.row.takes_no and not spec.codec.layers  # a codec chosen layer by layer is not offered
        for parameter in parameters_of(spec):
            if not takes_codec or parameter not in CODED:
                self._add(parameter)
        sizes = {parameter.name: getattr(spec, parameter.name) for parameter in CODED}
        self.codec = CodecFields(self.form, spec.codec, sizes, self) if takes_codec else None
        self._shown = {name: self._value(name) for name in self._fields}

    # ---- fields --------------------------------------------------------------------------------------------------

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

    def _add_number(self, parameter: Parameter, value: ParameterValue) -> None:
        field = number_field(parameter, value)
        self._keep(parameter, field, parameter.label)
        if parameter.name == "budget":
            on_change(self._on_budget, field)
        elif parameter.name == "ratio":
            on_change(self._on_ratio, field)

    def _add_choice(self, parameter: Parameter, value: ParameterValue) -> None:
        box = choice_field(parameter.label, [(choice, _installed(words)) for choice, words in parameter.choices], value)
        box.setToolTip(parameter.tip)
        self._keep(parameter, box, parameter.label)

    def _keep(self, parameter: Parameter, field: ParameterField, label: str) -> None:
        field.setAccessibleName(parameter.label)
        self._fields[parameter.name], self._parameters[parameter.name] = field, parameter
        self.form.addRow(label, field)

    # A budget and a ratio exclude each other: setting one resets the other to 0.

    def _on_budget(self, value: float) -> None:
        self._take_back("ratio", value)

    def _on_ratio(self, value: float) -> None:
        self._take_back("budget", value)

    def _take_back(self, name: str, value: float) -> None:
        rival = self._fields.get(name)
        if value and isinstance(rival, (QSpinBox, QDoubleSpinBox)):
            rival.setValue(0)

    # ---- values of the fields ------------------------------------------------------------------------------------

    def _value(self, name: str) -> ParameterValue:
        field = self._fields[name]
        if isinstance(field, QCheckBox):
            return field.isChecked()
        if isinstance(field, QComboBox):
            return str(field.currentData())
        return None if not field.value() and self._parameters[name].unset else field.value()

    def spec(self) -> CacheSpec:
        """Return the cache with the values typed; raises `InputError` where they are impossible.

        Only fields that the user changed are taken: a field shows fewer digits than a parameter may have.
        """
        values = {name: self._value(name) for name in self._fields}
        changed: dict[str, Any] = {name: value for name, value in values.items() if value != self._shown[name]}
        if self.codec is not None:
            changed["codec"] = self.codec.codec()
        return tuned(self._spec, **changed)

    def answer(self) -> CacheSpec | None:
        """Return the new cache, or None if nothing changed: loading the same cache again would only recompute it."""
        spec = self.spec()
        return spec if spec != self._spec else None


def _installed(words: str) -> str:
    """Add "(not installed)" to a choice whose package is missing."""
    package = PACKAGES.get(words)
    return words if package is None or find_spec(package) else f"{words} (not installed)"
