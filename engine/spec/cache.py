"""A cache mode is a layout, a codec and a retention rule.

Here are the layouts, one row for each; the spec of a mode; its parameters by name, and what a text makes of them; the
presets, which are common modes, and the names, labels and summaries of all others. Frozen, checked, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from engine.errors import InputError, check_known
from engine.spec.codec import (
    BITS,
    GROUP,
    RESIDUAL,
    ROW_OF_NAME,
    CodecSpec,
    Coding,
    codec_label,
    codec_name,
    codec_summary,
    is_codec_name,
    parse_codec,
    recoded,
    uniform,
)
from engine.spec.parameter import AUTOMATIC, MOST, TOKENS, Parameter
from engine.spec.retention import RULES, LayerBudgets, RetentionSpec, RuleRow

MAX_PAGE_SIZE = 1024
MAX_HOST_GIB = 65_536

PAGE_SIZES = tuple(1 << power for power in range(MAX_PAGE_SIZE.bit_length()))
MAX_LENGTH = Parameter(
    "max_length",
    "Reserved length",
    "Tokens that a static cache reserves",
    unset=AUTOMATIC,
    unit=TOKENS,
    also="static length, max cache length",
)
PAGE_SIZE = Parameter(
    "page_size",
    "Page size",
    "Tokens per page, a power of two",
    default=16,
    unit=TOKENS,
    most=MAX_PAGE_SIZE,
    also="block size",
)
NUM_PAGES = Parameter(
    "num_pages",
    "Pages in the pool",
    "Pages in the pool, the null page included",
    unset=AUTOMATIC,
    unit="pages",
    also="pool size, number of pages, num blocks",
)
REPLACE_DUPLICATES = Parameter(
    "replace_duplicates",
    "Replace the newer of equal pages",
    "Where two pages come to hold the same tokens: replace the newer one, as MAX does, or keep both, as vLLM does",
    "switch",
    False,
)
HOST_GIB = Parameter(
    "host_gib",
    "Host tier",
    "Size of the host tier of the offloaded cache",
    "size",
    1.0,
    unit="GiB",
    most=MAX_HOST_GIB,
    also="host memory, offload, swap space",
)
POOL = (PAGE_SIZE, NUM_PAGES, REPLACE_DUPLICATES)

_BACKEND = Parameter(
    "backend",
    "Quantiser",
    "Quantiser of transformers' own cache",
    "choice",
    "fp8",
    choices=(("fp8", "fp8"), ("quanto", "quanto"), ("hqq", "hqq")),
)
# None leaves the choice to transformers, whose defaults are 4 bits, groups of 64 and a residual of 128
_QUANTIZER = (
    _BACKEND,
    replace(BITS, tip="Bits of a code", default=None, unset=AUTOMATIC, choices=()),
    replace(GROUP, tip="Numbers that share a scale", default=None, unset=AUTOMATIC),
    replace(RESIDUAL, tip="The latest rows that stay exact", default=None, unset=AUTOMATIC, most=MOST),
)


class LayoutRow(Struct, frozen=True):
    """A layout. `preset` is the name by which people choose it. `takes_no` is the reason why it cannot have a codec or
    a retention rule; it is empty if it can. `has_quantiser`: it codes rows by itself, so that attention does not read
    them as they were computed, and later steps may code them again.

    A variant names in `rows_of` the layout whose storage it uses. The offloaded variants keep rows in main memory,
    except those of the layer that comes next; the compiled one runs the decode step of transformers' own forward
    through torch.compile.
    """

    name: str
    preset: str
    label: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    needs: tuple[str, ...] = ()
    takes_no: str = ""
    has_quantiser: bool = False
    is_paged: bool = False
    recomputes: bool = False
    rows_of: str = ""
    is_compiled: bool = False

    @property
    def needs_cuda(self) -> bool:
        """Whether the layout works only with a CUDA GPU, because it copies between GPU and main memory."""
        return bool(self.rows_of) and not self.is_compiled

    @property
    def is_opt_in(self) -> bool:
        """Whether runs over all modes leave the layout out: it works on some devices only, or takes minutes to
        begin."""
        return self.needs_cuda or self.is_compiled


CUDA_GPU = "a CUDA GPU"
COMPILER = "a compiler: Triton on a GPU, C++ on a CPU"
_NOTHING_KEPT, _AS_IT_IS = "it keeps nothing between steps", "it is transformers' cache as it is"

LAYOUTS: Mapping[str, LayoutRow] = {
    row.name: row
    for row in (
        LayoutRow(
            "none",
            "none",
            "None",
            "No cache: every step recomputes K and V of every token.",
            takes_no=_NOTHING_KEPT,
            recomputes=True,
        ),
        LayoutRow(
            "dynamic", "dynamic", "Dynamic", "transformers' DynamicCache, grown by concatenation.", takes_no=_AS_IT_IS
        ),
        LayoutRow(
            "static",
            "static",
            "Static",
            "transformers' StaticCache: all room reserved before the first token.",
            (MAX_LENGTH,),
            takes_no=_AS_IT_IS,
        ),
        LayoutRow(
            "offloaded",
            "transformers-offloaded",
            "Offloaded (transformers)",
            "transformers' DynamicCache with offloading: rows rest in main memory until their layer is next.",
            needs=(CUDA_GPU,),
            takes_no=_AS_IT_IS,
            rows_of="dynamic",
        ),
        LayoutRow(
            "offloaded-static",
            "transformers-offloaded-static",
            "Offloaded static (transformers)",
            "transformers' StaticCache with offloading: all room is reserved, and rests in main memory.",
            (MAX_LENGTH,),
            needs=(CUDA_GPU,),
            takes_no=_AS_IT_IS,
            rows_of="static",
        ),
        LayoutRow(
            "static-compiled",
            "transformers-static-compiled",
            "Static, compiled",
            "transformers' StaticCache, and its decode step through torch.compile, which takes minutes to begin.",
            (MAX_LENGTH,),
            needs=(COMPILER,),
            takes_no=_AS_IT_IS,
            rows_of="static",
            is_compiled=True,
        ),
        LayoutRow("growing", "growing", "Growing", "Preallocated room that doubles: a new row costs O(1)."),
        LayoutRow(
            "paged",
            "paged",
            "Paged",
            "A pool of pages and page tables: shared prefixes, copy-on-write, preemption.",
            POOL,
            is_paged=True,
        ),
        LayoutRow(
            "host",
            "offloaded",
            "Offloaded",
            "Paged, with a second-level prefix cache in host memory.",
            (*POOL, HOST_GIB),
            takes_no="its pages travel to the host and back as they are",
            is_paged=True,
        ),
        LayoutRow(
            "allocated",
            "allocated",
            "Allocated but unused",
            "A cache is reserved and never read: every step recomputes, as MAX's GPT-2 does.",
            takes_no=_NOTHING_KEPT,
            recomputes=True,
        ),
        LayoutRow(
            "quantized",
            "transformers-quantized",
            "Quantized (transformers)",
            "transformers' QuantizedCache as it is: fp8, or quanto and hqq where they are installed.",
            _QUANTIZER,
            ("full attention in every layer",),
            takes_no="it has a quantiser of its own",
            has_quantiser=True,
        ),
    )
}
BACKENDS = tuple(map(str, _BACKEND.values))


# ---- the spec of a mode ----------------------------------------------------------------------------------------------


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
        if retention.differs_by_layer:
            raise InputError("A page holds rows of all layers, so they share one budget: use the growing layout.")
        if retention.budget is not None and retention.budget < self.page_size:
            raise InputError(
                f"A budget of {retention.budget} tokens does not hold a page of {self.page_size}: make one of them fit."
            )

    def _check_codec_and_retention(self) -> None:
        if self.retention.keeps_all or self.codec.is_exact:
            return
        if any(coding.is_kivi for coding in self.codec.codings):
            raise InputError(
                "KIVI's keys share scales over groups of tokens, so a single row cannot be evicted: "
                "use an fp8 or int8 codec with this rule."
            )
        if self.retention.rerotate:
            raise InputError(
                "Re-rotation rewrites keys, which coded keys cannot take without a second loss: use exact keys."
            )

    def _check_pages(self) -> None:
        if self.page_size not in PAGE_SIZES:
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
    def holds_exact_rows(self) -> bool:
        """Whether every row that it holds is as it was computed: neither our codecs nor the layout codes it."""
        return self.codec.is_exact and not self.row.has_quantiser

    @property
    def is_append_only(self) -> bool:
        """Whether the rows of a past step are a prefix of the present ones, bit for bit."""
        return self.holds_exact_rows and self.retention.keeps_all and not self.recomputes

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


# ---- its parameters, by name: the only place that knows which part of a spec holds which -----------------------------

_RETENTION = ("budget", "ratio", "sinks", "window", "rerotate")
_CODEC = ("bits", "group", "residual")


def tuned(spec: CacheSpec, **parameters: Any) -> CacheSpec:
    """The spec with these parameters; None leaves one to the cache. Raises `InputError` for a value that is impossible
    or does not apply."""
    given = dict(parameters)
    retention = {name: given.pop(name) for name in _RETENTION if name in given}
    if retention:
        given["retention"] = _tuned_retention(spec.retention, retention)
    coded = {name: given.pop(name) for name in _CODEC if name in given}
    backend = given.pop("backend", None)
    if spec.quantizer is not None:
        given["quantizer"] = replace(spec.quantizer, **coded, **({"backend": backend} if backend else {}))
    elif backend is not None:
        raise InputError("A backend belongs to transformers' quantised cache; this one has none.")
    if coded and spec.quantizer is None:
        codec = given.get("codec", spec.codec)
        given["codec"] = recoded(codec, coded.get("bits"), coded.get("group"), coded.get("residual"))
    return replace(spec, **given)


def value_of(spec: CacheSpec, name: str) -> Any:
    """The value of a parameter; None where it is left to the cache, or where the cache has no such parameter."""
    if name in _RETENTION:
        return getattr(spec.retention, name)
    if name == "backend" or (name in _CODEC and spec.quantizer is not None):
        return getattr(spec.quantizer, name, None)
    if name not in _CODEC:
        return getattr(spec, name)
    # of K, or of V if V alone has the parameter
    both = (spec.codec.keys, spec.codec.values)
    coding = next((each for each in both if name in [p.name for p in each.row.parameters]), spec.codec.keys)
    group = coding.group_size if coding.has_groups else None
    return {"bits": coding.bits, "group": group, "residual": coding.residual_size or None}[name]


def _tuned_retention(retention: RetentionSpec, given: dict[str, Any]) -> RetentionSpec:
    if retention.keeps_all:
        raise InputError(
            f"This cache keeps all rows, so a {next(iter(given))} means nothing to it: choose one that evicts rows."
        )
    budget = given.get("budget")
    if isinstance(budget, LayerBudgets):
        given |= {"budget": budget.mean, "layer_budgets": budget.layers, "schedule": budget.schedule}
    if "sinks" in given:
        given["sinks"] = given["sinks"] or 0
    if given.get("ratio") is not None and budget is None:  # ratio replaces budget
        given |= {"budget": None, "layer_budgets": (), "schedule": "uniform"}
    elif budget is not None and given.get("ratio") is None:
        given = {"layer_budgets": (), **given, "ratio": None}
    return replace(retention, **given)


def fitted(spec: CacheSpec, num_tokens: int, share: float | None = None) -> CacheSpec:
    """The spec for a text of `num_tokens` tokens: a static cache without a given length reserves exactly those.

    With a `share`, the rule keeps that share of the tokens, or the least it can, and an exact residual is made as short
    as possible, so that a short text is compressed as a long one would be.
    """
    if spec.form == "static" and spec.max_length is None:
        return replace(spec, max_length=num_tokens)
    if share is None:
        return spec
    retention, codec = spec.retention, spec.codec
    if not retention.keeps_all:
        least = spec.page_size if spec.is_paged and not retention.is_by_position else 1
        return with_budget(spec, max(round(num_tokens * share), retention.sinks + 1, least))
    if any(coding.is_kivi for coding in (codec.keys, codec.values)):
        return replace(spec, codec=replace(codec, keys=_shortest(codec.keys), values=_shortest(codec.values)))
    return spec


def with_budget(spec: CacheSpec, num_kept: int) -> CacheSpec:
    """The spec with a rule that keeps `num_kept` rows, sinks and window included. Raises `InputError` if it cannot."""
    retention = spec.retention
    if retention.is_by_position:
        return replace(spec, retention=replace(retention, window=num_kept - retention.sinks))
    if retention.window is not None and retention.sinks + retention.window > num_kept:
        retention = replace(retention, window=None)
    return replace(spec, retention=replace(retention, budget=num_kept, ratio=None, layer_budgets=()))


def _shortest(coding: Coding) -> Coding:
    return replace(coding, residual=coding.group_size) if coding.is_kivi else coding


# ---- the presets -----------------------------------------------------------------------------------------------------

Family = Literal["lossless", "quantised", "evicting"]
FAMILIES: tuple[tuple[Family, str], ...] = (
    ("lossless", "Lossless"),
    ("quantised", "Quantised: every row, fewer bits"),
    ("evicting", "Evicting: fewer rows, the rest exact"),
)


class Preset(Struct, frozen=True):
    """A named cache mode. Its label and summary come from the rows of its layout, rule and codec."""

    name: str
    spec: CacheSpec
    label: str
    summary: str

    @property
    def lossless(self) -> bool:
        return self.spec.is_exact

    @property
    def family(self) -> Family:
        return family_of(self.spec)

    @property
    def needs(self) -> tuple[str, ...]:
        rule = self.spec.retention.row
        return (*self.spec.row.needs, *(rule.needs if rule else ()), *self.spec.codec.keys.row.needs)

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in parameters_of(self.spec))


def family_of(spec: CacheSpec) -> Family:
    """Which family a mode belongs to: it keeps rows exact, quantises them, or evicts some."""
    if not spec.retention.keeps_all:
        return "evicting"
    return "lossless" if spec.holds_exact_rows else "quantised"


def parameters_of(spec: CacheSpec) -> tuple[Parameter, ...]:
    """Every parameter of a mode: those of its layout, of its rule, and of the codecs of K and V."""
    rule = spec.retention.row
    return (*spec.row.parameters, *(rule.parameters if rule else ()), *_codec_parameters(spec, ()))


def _codec_parameters(spec: CacheSpec, without: tuple[str, ...] = ("bits",)) -> tuple[Parameter, ...]:
    """The parameters of the codecs of K and V, each once; the bits are left out by default, since names of codecs show
    them."""
    both = (p for coding in (spec.codec.keys, spec.codec.values) for p in coding.row.parameters)
    return tuple(dict.fromkeys(p for p in both if p.name not in without))


def rule_spec(row: RuleRow) -> RetentionSpec:
    """The retention spec of a rule with the parameters of its preset."""
    given: dict[str, Any] = {p.name: p.default for p in row.parameters if p.name != "layout" and p.default is not None}
    return RetentionSpec(row.spec_name, schedule=row.schedule, **given)  # type: ignore[arg-type]


def _of_layout(row: LayoutRow) -> Preset:
    host_gib: Any = next((p.default for p in row.parameters if p.name == "host_gib"), None)
    quantizer = Quantizer() if row.name == "quantized" else None
    return Preset(row.preset, CacheSpec(row.name, host_gib=host_gib, quantizer=quantizer), row.label, row.summary)


def _of_rule(row: RuleRow) -> Preset:
    return Preset(row.name, CacheSpec(retention=rule_spec(row)), row.label, row.summary)


def _of_codec(name: str) -> Preset:
    codec = uniform(name)
    return Preset(name, CacheSpec(codec=codec), codec_label(codec), codec_summary(codec))


def _of_pages(name: str, coding: str) -> Preset:
    codec = uniform(coding)
    words = f"{codec_summary(codec).rstrip('.')}, in pages: shared as exact pages are."
    return Preset(f"paged-{name}", CacheSpec("paged", codec=codec), f"Paged {name.upper()}", words)


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        *(_of_layout(row) for row in LAYOUTS.values() if row.name != "quantized" and not row.is_opt_in),
        *(_of_rule(row) for row in RULES.values()),
        _of_codec("fp8"),
        _of_codec("int8"),
        _of_pages("fp8", "fp8-token-head"),
        _of_pages("int8", "int8"),
        _of_codec("kivi-4"),
        _of_codec("kivi-2"),
        _of_layout(LAYOUTS["quantized"]),
    )
}
# Modes that need a CUDA GPU or take minutes to begin: runs over all modes leave them out.
OPT_IN_PRESETS: dict[str, Preset] = {row.preset: _of_layout(row) for row in LAYOUTS.values() if row.is_opt_in}
ALL_PRESETS: dict[str, Preset] = {**PRESETS, **OPT_IN_PRESETS}
NAMES = (  # the names that `cache_named` accepts, for the help of the command lines
    f"{', '.join(ALL_PRESETS)}; or a layout, a rule and a codec joined by + (int8/kivi-4 for K and V, h2o+int8, "
    "paged+tova; exact@0-3=int8 writes some layers otherwise)"
)


def cache_preset(name: str) -> Preset:
    """The preset `name`; raises `InputError`, which lists the presets, if there is none."""
    check_known("cache", name, ALL_PRESETS)
    return ALL_PRESETS[name]


def preset_of(spec: CacheSpec) -> Preset:
    """The preset that a spec is nearest to, whatever its parameters: by its retention rule, else its codec, else its
    layout."""
    rule = spec.retention.row
    if rule is not None:
        return PRESETS[rule.name]
    if spec.codec.is_exact:
        return ALL_PRESETS[spec.row.preset]
    coding = next(coding for coding in spec.codec.codings if not coding.is_exact)
    prefix = "paged-" if spec.is_paged else ""
    if prefix + coding.name in PRESETS:
        return PRESETS[prefix + coding.name]
    family = coding.name.split("-")[0]
    return next(preset for name, preset in PRESETS.items() if name.startswith(prefix + family))


# ---- names and words of any mode ---------------------------------------------------------------------------------


def _words(spec: CacheSpec) -> tuple[tuple[str, str, str], ...]:
    """Name, label and summary of a mode: those of its preset, or, if no preset matches, one entry each for its layout,
    rule and codec."""
    preset, rule = preset_of(spec), spec.retention.row
    is_its_codec = spec.codec.is_exact or codec_name(spec.codec) == codec_name(preset.spec.codec)
    if spec.layout == preset.spec.layout and is_its_codec:
        return ((preset.name, preset.label, preset.summary),)
    codec = (codec_name(spec.codec), codec_label(spec.codec), codec_summary(spec.codec))
    return (
        *(() if spec.layout == "growing" else ((spec.row.preset, spec.row.label, spec.row.summary),)),
        *(() if rule is None else ((rule.name, rule.label, spec.retention.summary),)),
        *(() if spec.codec.is_exact else (codec,)),
    )


def cache_name(spec: CacheSpec) -> str:
    """The name of a cache mode on the command line: `int8/kivi-4` for K and V, `h2o+int8`, `paged+h2o`."""
    return "+".join(name for name, _, _ in _words(spec))


def cache_label(spec: CacheSpec) -> str:
    """The name as people read it: `K INT8 · V KIVI-4`, `H2O · INT8`, `Paged · H2O`."""
    return " · ".join(label for _, label, _ in _words(spec))


def cache_summary(spec: CacheSpec) -> str:
    """One sentence each for layout, rule and codec."""
    return " ".join(summary for _, _, summary in _words(spec))


def cache_named(name: str) -> CacheSpec:
    """The cache mode of a name that `cache_name` writes: a preset, or a layout, a rule and a codec joined by +, in any
    order. Raises `InputError`."""
    if name in ALL_PRESETS:
        return ALL_PRESETS[name].spec
    chosen: dict[str, Any] = {}
    for number, part in enumerate(name.split("+")):
        axis, value = _part(part, is_first=number == 0)
        if axis in chosen:
            raise InputError(f"'{name[:60]}' names two values for one choice: name a layout, a rule and a codec once.")
        chosen[axis] = value
    base: CacheSpec = chosen.pop("layout", CacheSpec())
    return replace(base, **chosen)


def _part(part: str, is_first: bool) -> tuple[str, CacheSpec | RetentionSpec | CodecSpec]:
    if part in RULES:
        return "retention", rule_spec(RULES[part])
    if is_codec_name(part):
        return "codec", parse_codec(part)
    if part in (row.preset for row in LAYOUTS.values()):
        return "layout", ALL_PRESETS[part].spec
    if is_first:
        cache_preset(part)  # raises an error that lists the presets
    raise InputError(f"Unknown rule or codec '{part[:60]}': choose one of {', '.join((*RULES, *ROW_OF_NAME))}.")


def size_words(spec: CacheSpec) -> tuple[str, ...]:
    """The parameters of a mode that determine its size: `budget 256`, `sinks 4`, `2 bits`, `group 32`."""
    return (*row_words(spec), *bit_words(spec), *_words_of(spec, _codec_parameters(spec)))


def row_words(spec: CacheSpec) -> tuple[str, ...]:
    """The parameters that determine the number of rows: all of the rule, and those of the layout that are not the
    default."""
    rule = spec.retention.row
    layout = tuple(p for p in spec.row.parameters if p.kind == "choice" or value_of(spec, p.name) != p.default)
    return _words_of(spec, (*(rule.parameters if rule else ()), *layout))


def bit_words(spec: CacheSpec) -> tuple[str, ...]:
    """The bits of a stored number; empty if numbers are exact or layers differ."""
    if spec.codec.is_exact or spec.codec.layers:
        return ()
    widths = dict.fromkeys(str(coding.bits or "exact") for coding in (spec.codec.keys, spec.codec.values))
    return (f"{' and '.join(widths)} bits",)


def _words_of(spec: CacheSpec, parameters: tuple[Parameter, ...]) -> tuple[str, ...]:
    found = ((p, value_of(spec, p.name)) for p in parameters if p.name != "layout")
    return tuple(parameter.words(value) for parameter, value in found if value)


def mode_words(spec: CacheSpec) -> str:
    """What a mode does to rows, in a few words: `budget 120 · INT8`, `KIVI-2 · group 32 · residual 128`."""
    codec = () if spec.codec.is_exact else (codec_label(spec.codec),)
    return " · ".join((*row_words(spec), *codec, *_words_of(spec, _codec_parameters(spec)))) or "as it is"


def mode_detail(spec: CacheSpec) -> str:
    """What is shown beside the name of a mode: `exact · lossless`, `lossy · budget 256`, `lossy · 2 bits · group 32`.
    What matters most comes first: where room is scarce the end is left out."""
    by_layer = ("by layer",) if spec.codec.layers else ()
    kind = "exact · lossless" if spec.is_exact else "lossy"
    sizes = _words_of(spec, _codec_parameters(spec))
    return " · ".join((kind, *row_words(spec), *bit_words(spec), *by_layer, *sizes))
