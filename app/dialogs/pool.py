"""The dialog for the parameters of a paged cache: page size, pool, duplicates, host tier and codec. They are checked
before anything is sent."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtWidgets import QWidget

from app.dialogs.parameter_fields import CODED, CodecFields
from app.draw.format import byte_size, counted
from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.dialog import QuestionDialog
from app.kit.fields import choice_field, line_field
from app.kit.labels import plain_label
from engine.errors import InputError
from engine.predict.bytes import page_bytes
from engine.predict.capacity import context_length, pool_pages
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec
from engine.spec.layouts import PAGE_SIZE, PAGE_SIZES
from engine.spec.presets import cache_label
from engine.wire.status import ModelInfo

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
