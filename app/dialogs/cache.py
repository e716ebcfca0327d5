"""The dialog for the parameters of a paged cache: page size, pool, duplicates, host tier and codec. They are checked
before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QDoubleSpinBox, QFormLayout, QSpinBox, QWidget

from app.draw.format import byte_size
from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.dialog import QuestionDialog
from app.kit.fields import choice_field, decimal_field, line_field, whole_field
from app.kit.knobs import CodecChoice
from app.kit.labels import plain_label, set_text_role
from engine.counted import counted
from engine.errors import InputError
from engine.predict.bytes import page_bytes
from engine.predict.capacity import context_length, pool_pages
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, recoded
from engine.spec.codecs import BITS, GROUP, RESIDUAL
from engine.spec.layouts import PAGE_SIZE, PAGE_SIZES
from engine.spec.presets import cache_label, cache_summary, parameters_of
from engine.spec.terms import Parameter, ParameterValue
from engine.spec.tuning import tuned
from engine.wire.status import ModelInfo

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


AUTOMATIC, PAGES, TOKENS, MIB = "automatic", "pages", "tokens", "MiB"
_MIB = 1024**2
_MOST = 10**12


class PoolDialog(QuestionDialog):
    """Edit a paged cache. Signal: `chosen(CacheSpec)`."""

    def __init__(self, spec: CacheSpec, model: ModelInfo | None, parent: QWidget) -> None:
        super().__init__(f"{cache_label(spec)} cache", parent)
        self._spec = spec
        self._model = model
        self.codec: CodecFields | None = None
        sizes = [(size, counted(size, "token")) for size in PAGE_SIZES]
        self.page_size = choice_field(PAGE_SIZE.label, sizes, spec.page_size)
        is_sized = spec.num_pages is not None
        units = (AUTOMATIC, PAGES, TOKENS, *([MIB] if self._page_bytes(spec.page_size) else []))
        unit = PAGES if is_sized else AUTOMATIC
        self.unit = choice_field("Unit of the pool's size", [(each, each) for each in units], unit)
        self.size_ = line_field("Size of the pool", str(spec.num_pages) if is_sized else "")
        ways = [(False, "keep both pages, as vLLM does"), (True, "replace the newer one, as MAX does")]
        self.duplicates = choice_field("Two pages with the same tokens", ways, spec.replace_duplicates)
        self._shown_host = "" if spec.host_gib is None else f"{spec.host_gib:g}"
        self.host = line_field("Host tier in GiB", self._shown_host)
        self._sum = plain_label(wraps=True)
        self.setMinimumWidth(500)
        self._build()
        on_change(self._refresh, self.page_size, self.unit, self.size_)
        self._refresh()

    def _build(self) -> None:
        self.add(self.page_size)
        self.form.addRow("Size of the pool", row((self.size_, 1), self.unit, spacing=8))
        self.add(self._sum, "")
        self.add(self.duplicates, "Same tokens twice")
        if self._spec.layout == "host":
            self.add(self.host, "Host tier, GiB")
        if not self._spec.row.takes_no and not self._spec.codec.layers:
            sizes = {parameter.name: getattr(self._spec, parameter.name) for parameter in CODED}
            self.codec = CodecFields(self.form, self._spec.codec, sizes, self)
            on_change(self._refresh, self.codec)

    def spec(self) -> CacheSpec:
        """Return the cache with the values typed; raises `InputError` where they are impossible."""
        size = self.page_size.currentData()
        spec = replace(
            self._spec,
            page_size=size,
            codec=self._codec(),
            num_pages=self._num_pages(size),
            replace_duplicates=self.duplicates.currentData(),
        )
        return replace(spec, host_gib=self._gib()) if spec.layout == "host" else spec

    def _num_pages(self, page_size: int) -> int | None:
        unit, text = self.unit.currentData(), self.size_.text().replace(",", "").strip()
        if unit == AUTOMATIC:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > 15 or not 0 < int(text) <= _MOST:
            raise InputError(f"“{text[:40]}” is no size of a pool: give a whole number from 1 on.")
        count = int(text)
        if unit == PAGES:
            return count
        if unit == TOKENS:
            return -(-count // page_size) + 1  # the null page holds no tokens
        return max(0, count * _MIB // (self._page_bytes(page_size) or 1))

    def _page_bytes(self, page_size: int) -> int:
        """Return the bytes of one page: K and V of all layers, as the cache's codec stores them; 0 while there is no
        model."""
        if self._model is None:
            return 0
        return page_bytes(
            replace(self._spec, page_size=page_size, codec=self._codec()), self._model.geometry, self._model.dtype
        )

    def _codec(self) -> CodecSpec:
        return self._spec.codec if self.codec is None else self.codec.codec()

    def _gib(self) -> float | None:
        text = self.host.text().strip()
        if text == self._shown_host:
            return self._spec.host_gib  # a field shows fewer digits than a size may have
        try:
            return float(text)
        except ValueError:
            problem = f"“{text[:40]}” is no size of a host tier: give GiB, like 1.5."
            raise InputError(problem) from None

    def _refresh(self) -> None:
        self.size_.setEnabled(self.unit.currentData() != AUTOMATIC)
        try:
            spec = self.spec()
        except InputError as problem:
            self._sum.setText("")
            # an empty field is no error while the user is typing
            is_typed = self.size_.text() or self.unit.currentData() == AUTOMATIC
            self.refuse(str(problem) if is_typed else "")
            return
        self.refuse("")
        num_pages = spec.num_pages
        if num_pages is None and self._model is not None:
            num_pages = pool_pages(spec, context_length(self._model.geometry))
        tokens = "room for four full contexts, at most 16,384 tokens"
        if spec.num_pages is not None:
            num_tokens = (spec.num_pages - 1) * spec.page_size
            tokens = f"{counted(spec.num_pages, 'page')}, one of them the null page: {counted(num_tokens, 'token')}"
        per_page = self._page_bytes(spec.page_size)
        size = f" · {byte_size(num_pages * per_page)}" if per_page and num_pages else ""
        self._sum.setText(tokens + size)

    def answer(self) -> CacheSpec | None:
        """Return the new cache, or None if nothing changed: loading the same pool again would only recompute it."""
        spec = self.spec()
        return spec if spec != self._spec else None


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
