"""A cache mode: layout x codec x retention. Frozen, and checked when constructed."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from engine.errors import InputError, check_known
from engine.spec.codec import CodecSpec
from engine.spec.layouts import BACKENDS, LAYOUTS, MAX_HOST_GIB, MAX_PAGE_SIZE, LayoutRow
from engine.spec.retention import RetentionSpec


class Quantizer(Struct, frozen=True):
    """The settings of transformers' own QuantizedCache; None is its default (4 bits, groups of 64, residual 128).

    Its fp8 backend has one scale per tensor and takes none of them.
    """

    backend: str = "fp8"
    bits: int | None = None
    group: int | None = None
    residual: int | None = None

    def __post_init__(self) -> None:
        check_known("quantiser", self.backend, BACKENDS)
        given = [name for name in ("bits", "group", "residual") if getattr(self, name) is not None]
        if self.backend == "fp8" and given:
            raise InputError(f"transformers' fp8 quantiser has one scale per tensor and no {given[0]}: leave it out.")
        allowed = {"fp8": (8,), "quanto": (2, 4), "hqq": (1, 2, 3, 4, 8)}[self.backend]
        if self.bits is not None and self.bits not in allowed:
            raise InputError(f"The {self.backend} quantiser has no {self.bits} bits: give one of {allowed}.")
        if any(value is not None and value < 1 for value in (self.group, self.residual)):
            raise InputError("A group and a residual hold 1 or more.")


class CacheSpec(Struct, frozen=True, gc=False):  # in every record, so the garbage collector need not track it
    """One combination of layout, codec and retention rule.

    `max_length` is the number of tokens that a static layout reserves (None: the model's own maximum, at most 4,096).
    `page_size` is in tokens. `num_pages` counts the pages of the pool, its null page included (None: room for four full
    contexts). `replace_duplicates` chooses what happens when two pages come to hold the same tokens: keep both, as vLLM
    does, or replace the newer one, as MAX does. `host_gib` is the size of the host tier in GiB. `codec` applies to the
    growing layout and, if it codes each row independently of the others, to the paged one. `retention` applies to the
    same two: it evicts single rows of the growing layout and whole pages of the paged one. `quantizer` holds the
    settings of transformers' quantised cache, the layout `quantized`.
    """

    layout: str = "growing"
    max_length: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    replace_duplicates: bool = False
    host_gib: float | None = None
    codec: CodecSpec = field(default_factory=CodecSpec)
    retention: RetentionSpec = field(default_factory=RetentionSpec)
    quantizer: Quantizer | None = None

    def __post_init__(self) -> None:
        check_known("cache layout", self.layout, LAYOUTS)
        if self.max_length is not None and self.form != "static":
            raise InputError(f"max_length reserves a static cache; the {self.layout} layout has no use for it.")
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"A static cache of {self.max_length} tokens holds nothing: give 1 or more.")
        self._check_pages()
        self._check_size()

    def _check_size(self) -> None:
        """Raise `InputError` unless codec, retention and quantiser fit the layout, and codec and retention each
        other."""
        if (self.quantizer is not None) != (self.layout == "quantized"):
            raise InputError(
                "transformers' quantised cache needs a quantiser: name its backend."
                if self.layout == "quantized"
                else f"A quantiser belongs to transformers' quantised cache; the {self.layout} layout has none."
            )
        if self.layout == "paged":
            self._check_paged_codec()
            self._check_paged_retention()
        if not self.is_compressed or not self.row.takes_no:
            self._check_codec_and_retention()
            return
        what = "codec" if not self.codec.is_exact else "eviction rule"
        raise InputError(
            f"The {self.layout} layout takes no {what}, because {self.row.takes_no}: use the growing layout."
        )

    def _check_paged_codec(self) -> None:
        """Raise `InputError` for a codec whose codes of a row depend on the prompt around it: prompts share pages."""
        coding = next((c for c in self.codec.codings if c.waits_for_prompt), None)
        if coding is None:
            return
        reason = (
            "KIVI lets a prompt attend to its exact rows and codes them when it ends, which shared pages cannot offer"
            if coding.is_kivi
            else f"{coding.name} freezes its scales with one prompt, and pages are shared among prompts"
        )
        raise InputError(f"{reason}: in pages, use fp8-token-head, fp8-max, fp8-max-e8m0 or int8.")

    def _check_paged_retention(self) -> None:
        """Raise `InputError` for a rule that evicts less than a whole page of all layers, or that rewrites shared
        rows."""
        retention = self.retention
        if retention.rerotate:
            raise InputError("Re-rotation rewrites keys, and pages are shared: keep the positions or leave the pages.")
        if retention.layer_budgets or retention.schedule != "uniform":
            raise InputError("A page holds rows of all layers, so they share one budget: use the growing layout.")
        if retention.budget is not None and retention.budget < self.page_size:
            raise InputError(
                f"A budget of {retention.budget} tokens does not hold a page of {self.page_size}: make one of them fit."
            )

    def _check_codec_and_retention(self) -> None:
        if self.retention.keeps_all or self.codec.is_exact:
            return
        if not all(coding.codes_rows_alone for coding in self.codec.codings):
            raise InputError(
                "KIVI's keys share scales over groups of tokens, so a single row cannot be evicted: "
                "use an fp8 or int8 codec with this rule."
            )
        if self.retention.rerotate:
            raise InputError(
                "Re-rotation rewrites keys, which coded keys cannot take without a second loss: use exact keys."
            )

    def _check_pages(self) -> None:
        if not 1 <= self.page_size <= MAX_PAGE_SIZE or self.page_size & (self.page_size - 1):
            raise InputError(
                f"A page of {self.page_size} tokens is impossible: give a power of two from 1 to {MAX_PAGE_SIZE:,}."
            )
        if self.num_pages is not None and not self.is_paged:
            raise InputError(f"A pool of pages belongs to the paged layouts; the {self.layout} layout has none.")
        if self.num_pages is not None and self.num_pages < 2:
            raise InputError(
                f"A pool of {self.num_pages} pages is impossible: give 2 or more, one of which is the null page."
            )
        if (self.host_gib is not None) != (self.layout == "host"):
            raise InputError(
                "The offloaded cache needs a host tier: give its size in GiB."
                if self.layout == "host"
                else f"A host tier belongs to the offloaded cache; the {self.layout} layout has none."
            )
        if self.host_gib is not None and not 0 < self.host_gib <= MAX_HOST_GIB:
            raise InputError(
                f"A host tier of {self.host_gib:g} GiB is impossible: give more than 0 and at most {MAX_HOST_GIB:,}."
            )

    @property
    def row(self) -> LayoutRow:
        """The description of the layout."""
        return LAYOUTS[self.layout]

    @property
    def form(self) -> str:
        """The layout whose row storage is used: its own, or that of the layout it is a variant of."""
        return self.row.rows_of or self.layout

    @property
    def is_paged(self) -> bool:
        return self.row.is_paged

    @property
    def recomputes(self) -> bool:
        """Whether every step computes K and V of every token again."""
        return self.row.recomputes

    @property
    def is_compressed(self) -> bool:
        """Whether our own codec or retention rule codes or evicts rows."""
        return not (self.codec.is_exact and self.retention.keeps_all)

    @property
    def is_append_only(self) -> bool:
        """Whether the rows of a past step are a prefix of the present ones, bit for bit."""
        return not (self.recomputes or self.is_compressed or self.layout == "quantized")

    @property
    def is_exact(self) -> bool:
        """Whether attention reads every row as it was computed."""
        return self.is_append_only or self.recomputes

    @property
    def without_loss(self) -> CacheSpec:
        """The mode that keeps every row exact: this one, without codec, rule and quantiser."""
        if self.is_exact:
            return self
        layout = "growing" if self.layout == "quantized" else self.layout
        return replace(self, layout=layout, codec=CodecSpec(), retention=RetentionSpec(), quantizer=None)
