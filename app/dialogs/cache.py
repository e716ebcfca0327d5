"""The dialog for the parameters of the cache in use. Its fields come from the tables of layouts, rules and codecs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QDoubleSpinBox, QFormLayout, QSpinBox, QWidget

from app.draw.format import byte_size
from app.kit.dialog import QuestionDialog
from app.kit.fields import CodecChoice, check_field, choice_field, decimal_field, line_field, whole_field
from app.kit.widgets import column, on_change, plain_label, row, set_text_role
from engine.counted import counted
from engine.errors import InputError
from engine.predict.bytes import page_bytes
from engine.predict.capacity import context_length, pool_pages
from engine.spec.cache import (
    NUM_PAGES,
    PAGE_SIZE,
    PAGE_SIZES,
    CacheSpec,
    cache_label,
    cache_summary,
    parameters_of,
    tuned,
    value_of,
)
from engine.spec.codec import CODEC_PARAMETERS, CodecSpec, recoded
from engine.spec.parameter import Parameter, ParameterValue
from engine.wire.status import ModelInfo

NumberField = QSpinBox | QDoubleSpinBox


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
        self.numbers: dict[str, NumberField] = {}
        for parameter in CODEC_PARAMETERS:
            field = self.numbers[parameter.name] = number_field(parameter, sizes[parameter.name])
            form.addRow(parameter.label, field)
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


class PoolSize(QWidget):
    """The size of a pool, in pages, tokens or MiB, and in words what that comes to. Signal: `changed()`."""

    changed = Signal()

    def __init__(self, num_pages: int | None, model: ModelInfo | None) -> None:
        super().__init__()
        self._model = model
        units = (AUTOMATIC, PAGES, TOKENS, *([MIB] if model is not None else []))
        unit = AUTOMATIC if num_pages is None else PAGES
        self.unit = choice_field("Unit of the pool's size", [(each, each) for each in units], unit)
        self.number = line_field("Size of the pool", "" if num_pages is None else str(num_pages))
        self.words = plain_label(wraps=True)
        column(row((self.number, 1), self.unit, spacing=8), self.words, on=self)
        self.setFocusProxy(self.number)
        on_change(self.changed, self.unit, self.number)

    @property
    def is_automatic(self) -> bool:
        return bool(self.unit.currentData() == AUTOMATIC)

    def num_pages(self, spec: CacheSpec) -> int | None:
        """The pages of that size in a cache; None where the cache chooses. Raises `InputError` for no size."""
        unit, text = self.unit.currentData(), self.number.text().replace(",", "").strip()
        if self.is_automatic:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > 15 or not 0 < int(text) <= _MOST:
            raise InputError(f"“{text[:40]}” is no size of a pool: give a whole number from 1 on.")
        count = int(text)
        if unit == TOKENS:
            return -(-count // spec.page_size) + 1  # the null page holds no tokens
        return count if unit == PAGES else max(0, count * _MIB // (self._page_bytes(spec) or 1))

    def _page_bytes(self, spec: CacheSpec) -> int:
        """The bytes of one page: K and V of all layers, as the codec stores them; 0 while there is no model."""
        return 0 if self._model is None else page_bytes(spec, self._model.geometry, self._model.dtype)

    def show_sum(self, spec: CacheSpec | None) -> None:
        """Say what the pool of a cache comes to; None: nothing, since what is typed is impossible."""
        self.number.setEnabled(not self.is_automatic)
        if spec is None:
            self.words.setText("")
            return
        num_pages, tokens = spec.num_pages, "room for four full contexts, at most 16,384 tokens"
        if num_pages is not None:
            num_tokens = (num_pages - 1) * spec.page_size
            tokens = f"{counted(num_pages, 'page')}, one of them the null page: {counted(num_tokens, 'token')}"
        elif self._model is not None:
            num_pages = pool_pages(spec, context_length(self._model.geometry))
        per_page = self._page_bytes(spec)
        self.words.setText(tokens + (f" · {byte_size(num_pages * per_page)}" if per_page and num_pages else ""))


ParameterField = QSpinBox | QDoubleSpinBox | QCheckBox | QComboBox | PoolSize

PACKAGES: Mapping[str, str] = {"quanto": "optimum", "hqq": "hqq"}


_RIVALS = ("budget", "ratio")  # they exclude each other: setting one resets the other


class CacheDialog(QuestionDialog):
    """Edit a cache's parameters. Signal: `chosen(CacheSpec)`.

    The engine's own rules check the input: their message is shown, and the dialog stays open.
    """

    def __init__(self, spec: CacheSpec, model: ModelInfo | None, parent: QWidget) -> None:
        super().__init__(f"{cache_label(spec)} cache", parent)
        self._spec, self._model = spec, model
        self.fields: dict[str, ParameterField] = {}
        self._parameters: dict[str, Parameter] = {}
        rule = spec.retention.row
        for words in (cache_summary(spec), f"{rule.formula} · {rule.paper}" if rule is not None else ""):
            label = plain_label(words, wraps=True)
            self.form.addRow(label)
            label.setVisible(bool(words))
        set_text_role(label, "muted")
        takes_codec = not spec.row.takes_no and not spec.codec.layers  # a codec chosen layer by layer is not offered
        for parameter in parameters_of(spec):
            if not takes_codec or parameter not in CODEC_PARAMETERS:
                self._add(parameter, value_of(spec, parameter.name))
        sizes = {parameter.name: value_of(spec, parameter.name) for parameter in CODEC_PARAMETERS}
        self.codec = CodecFields(self.form, spec.codec, sizes, self) if takes_codec else None
        self._shown = {name: self._value(name) for name in self.fields if name != NUM_PAGES.name}
        if isinstance(self.pool, PoolSize):
            on_change(self._on_pool, self.pool, self.fields[PAGE_SIZE.name], *([self.codec] if self.codec else ()))
            self._on_pool()

    @property
    def pool(self) -> ParameterField | None:
        """The field of the pool's size; None where the cache has no pages."""
        return self.fields.get(NUM_PAGES.name)

    # ---- fields --------------------------------------------------------------------------------------------------

    def _add(self, parameter: Parameter, value: ParameterValue) -> None:
        field: ParameterField
        label = parameter.label
        if parameter is NUM_PAGES:
            field, label = PoolSize(self._spec.num_pages, self._model), "Size of the pool"
        elif parameter is PAGE_SIZE:
            field = choice_field(label, [(size, counted(size, "token")) for size in PAGE_SIZES], value)
        elif parameter.kind == "choice":
            field = choice_field(label, [(choice, _installed(words)) for choice, words in parameter.choices], value)
        elif parameter.kind == "switch":
            field, label = check_field(label, bool(value)), ""
        else:
            field = number_field(parameter, value)
        if isinstance(field, QCheckBox | QComboBox):
            field.setToolTip(parameter.tip)
        field.setAccessibleName(parameter.label)
        self.fields[parameter.name], self._parameters[parameter.name] = field, parameter
        self.form.addRow(label, field)
        if parameter.name in _RIVALS:
            on_change(self._on_rival, field)

    def _on_rival(self, value: float) -> None:
        """Set the other of two rivals back to 0, as one was set."""
        for rival in (self.fields[name] for name in _RIVALS if value and name in self.fields):
            if rival is not self.sender() and isinstance(rival, NumberField):
                rival.setValue(0)

    def _on_pool(self) -> None:
        """Say what the pool comes to, or why it is impossible; an empty field is no error while the user is typing."""
        assert isinstance(self.pool, PoolSize)
        spec, problem = None, ""
        try:
            spec = self.spec()
        except InputError as error:
            problem = str(error) if self.pool.number.text() or self.pool.is_automatic else ""
        self.refuse(problem)
        self.pool.show_sum(spec)

    # ---- values of the fields ------------------------------------------------------------------------------------

    def _value(self, name: str) -> ParameterValue:
        field = self.fields[name]
        if isinstance(field, QCheckBox):
            return field.isChecked()
        if isinstance(field, QComboBox):
            value: ParameterValue = field.currentData()
            return value
        assert not isinstance(field, PoolSize)
        return None if not field.value() and self._parameters[name].unset else field.value()

    def spec(self) -> CacheSpec:
        """Return the cache with the values typed; raises `InputError` where they are impossible.

        Only fields that the user changed are taken: a field shows fewer digits than a parameter may have.
        """
        changed: dict[str, Any] = {name: v for name, shown in self._shown.items() if (v := self._value(name)) != shown}
        if self.codec is not None:
            changed["codec"] = self.codec.codec()
        spec = tuned(self._spec, **changed)
        return replace(spec, num_pages=self.pool.num_pages(spec)) if isinstance(self.pool, PoolSize) else spec

    def answer(self) -> CacheSpec | None:
        """Return the new cache, or None if nothing changed: loading the same cache again would only recompute it."""
        spec = self.spec()
        return spec if spec != self._spec else None


def _installed(words: str) -> str:
    """Add "(not installed)" to a choice whose package is missing."""
    package = PACKAGES.get(words)
    return words if package is None or find_spec(package) else f"{words} (not installed)"
