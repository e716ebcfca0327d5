"""What a session is made from: a model, a cache and a way to sample. Frozen, and validated when constructed."""

from __future__ import annotations

import math
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from engine.errors import InputError
from engine.frozen import dataclass
from engine.spec.codec import CodecSpec, codec_words, get_codec_names, parse_codec, recoded, uniform
from engine.spec.retention import RetentionSpec, Schedule

Layout = Literal["none", "allocated", "dynamic", "static", "growing", "paged", "host", "quantized"]
Backend = Literal["fp8", "quanto", "hqq"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

BUNDLED = "bundled"
SHAPE_PREFIX = "shape:"
MAX_PAGE_SIZE = 1024
MAX_HOST_GIB = 65_536
RESOURCES = Path(__file__).resolve().parents[2] / "resources"


@dataclass(frozen=True)
class ModelSpec:
    """Which model, in which precision, where.

    `source` is `bundled`, a folder in Hugging Face layout, the name of a hub model that is on this computer, or
    `shape:CONFIG.json`: the architecture of that config with random weights.
    """

    source: str = BUNDLED
    dtype: Dtype = "auto"
    device: str = "auto"
    allow_download: bool = False
    num_threads: int | None = None

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise InputError("The model has no name: give a folder, a hub name, 'bundled' or 'shape:CONFIG.json'.")
        if self.dtype not in get_args(Dtype):
            raise InputError(f"Unknown dtype '{self.dtype}': choose one of {', '.join(get_args(Dtype))}.")
        if self.num_threads is not None and self.num_threads < 1:
            raise InputError(f"{self.num_threads} threads cannot compute: give 1 or more.")

    @property
    def shape_config(self) -> Path | None:
        """The `config.json` of a shape-only model, else None."""
        return Path(self.source[len(SHAPE_PREFIX) :]) if self.source.startswith(SHAPE_PREFIX) else None

    @property
    def shape_name(self) -> str:
        """What a shape-only model is called: after its file, or after the folder of a `config.json`."""
        path = self.shape_config
        if path is None:
            return ""
        return path.parent.resolve().name if path.name == "config.json" and path.parent.resolve().name else path.stem


@dataclass(frozen=True)
class Quantizer:
    """The settings of transformers' own QuantizedCache; None is its default (4 bits, groups of 64, residual 128).

    Its fp8 backend has one scale per tensor and takes none of them.
    """

    backend: Backend = "fp8"
    bits: int | None = None
    group: int | None = None
    residual: int | None = None

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise InputError(f"Unknown quantiser '{self.backend}': choose one of {', '.join(get_args(Backend))}.")
        given = [name for name in ("bits", "group", "residual") if getattr(self, name) is not None]
        if self.backend == "fp8" and given:
            raise InputError(f"transformers' fp8 quantiser has one scale per tensor and no {given[0]}: leave it out.")
        allowed = {"fp8": (8,), "quanto": (2, 4), "hqq": (1, 2, 3, 4, 8)}[self.backend]
        if self.bits is not None and self.bits not in allowed:
            raise InputError(f"The {self.backend} quantiser has no {self.bits} bits: give one of {allowed}.")
        if any(value is not None and value < 1 for value in (self.group, self.residual)):
            raise InputError("A group and a residual hold 1 or more.")


@dataclass(frozen=True)
class CacheSpec:
    """One point in the space layout x codec x retention.

    `max_length` is the number of tokens that a static layout reserves (None: the model's own maximum, at most 4,096).
    `page_size` is in tokens, `num_pages` counts the pool with its null page (None: room for four full contexts),
    `replace_duplicates` chooses what happens when two pages come to hold the same tokens: keep both, as vLLM does, or
    replace the newer one, as MAX does. `host_gib` is the size of the host tier in GiB. `codec` belongs to the growing
    layout and, where it writes every row by itself, to the paged one; so does `retention`, which drops rows in the one
    and whole pages in the other. `quantizer` belongs to transformers' quantised cache.
    """

    layout: Layout = "growing"
    max_length: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    replace_duplicates: bool = False
    host_gib: float | None = None
    codec: CodecSpec = field(default_factory=CodecSpec)
    retention: RetentionSpec = field(default_factory=RetentionSpec)
    quantizer: Quantizer | None = None

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise InputError(f"Unknown cache layout '{self.layout}': choose one of {', '.join(get_args(Layout))}.")
        if self.max_length is not None and self.layout != "static":
            raise InputError(f"max_length reserves a static cache; the {self.layout} layout has no use for it.")
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"A static cache of {self.max_length} tokens holds nothing: give 1 or more.")
        self._check_pages()
        self._check_size()

    def _check_size(self) -> None:
        """What makes the cache smaller must fit its layout, and codec and retention each other."""
        if (self.quantizer is not None) != (self.layout == "quantized"):
            raise InputError(
                "transformers' quantised cache needs a quantiser: name its backend."
                if self.layout == "quantized"
                else f"A quantiser belongs to transformers' quantised cache; the {self.layout} layout has none."
            )
        if self.layout == "paged":
            self._check_paged_codec()
            self._check_paged_retention()
        if not self.is_compact or self.layout in ("growing", "paged"):
            self._check_codec_and_retention()
            return
        what = "codec" if not self.codec.is_exact else "rule for dropping rows"
        reason = {
            "host": "its pages travel to the host and back as they are",
            "dynamic": "it is transformers' cache as it is",
            "static": "it is transformers' cache as it is",
            "quantized": "it has a quantiser of its own",
        }.get(self.layout, "it keeps nothing between steps")
        raise InputError(f"The {self.layout} layout takes no {what}, because {reason}: use the growing layout.")

    def _check_paged_codec(self) -> None:
        """Pages are shared between prompts, so what a row is written as must not depend on the prompt around it."""
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
        """A page is dropped whole, from all layers at once, and others may share it."""
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
                "KIVI's keys share scales over groups of tokens, so a single row cannot be dropped: "
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
    def is_paged(self) -> bool:
        return self.layout in ("paged", "host")

    @property
    def recomputes(self) -> bool:
        """Whether every step computes K and V of every token again."""
        return self.layout in ("none", "allocated")

    @property
    def is_compact(self) -> bool:
        """Whether rows are coded or dropped by us."""
        return not (self.codec.is_exact and self.retention.keeps_all)

    @property
    def is_append_only(self) -> bool:
        """Whether the rows of a past step are a prefix of the present ones, bit for bit."""
        return not (self.recomputes or self.is_compact or self.layout == "quantized")

    @property
    def is_exact(self) -> bool:
        """Whether attention reads every row as it was computed."""
        return self.is_append_only or self.recomputes

    # what people tune, by one name each wherever it is kept

    @property
    def budget(self) -> int | None:
        return self.retention.budget

    @property
    def ratio(self) -> float | None:
        return self.retention.ratio

    @property
    def sinks(self) -> int:
        return self.retention.sinks

    @property
    def window(self) -> int | None:
        return self.retention.window

    @property
    def rerotate(self) -> bool:
        return self.retention.rerotate

    @property
    def backend(self) -> str | None:
        return self.quantizer.backend if self.quantizer else None

    @property
    def bits(self) -> int | None:
        return self.quantizer.bits if self.quantizer else self.codec.keys.bits

    @property
    def group(self) -> int | None:
        if self.quantizer:
            return self.quantizer.group
        return self.codec.keys.group_size if self.codec.keys.has_groups else None

    @property
    def residual(self) -> int | None:
        return self.quantizer.residual if self.quantizer else self.codec.keys.residual_size or None


@dataclass(frozen=True)
class Preset:
    """A named point of the space, as people call it."""

    name: str
    label: str
    spec: CacheSpec
    lossless: bool
    summary: str
    needs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()


FULL = "layers with full attention"
WEIGHTS = (FULL, "attention weights")
KEYS = (FULL, "keys, not a latent")
LAYOUT = ("layout",)  # a rule drops rows in the growing layout, whole pages in the paged one
SCORED = ("budget", "ratio", "sinks", "window", *LAYOUT)


def scored(name: str) -> RetentionSpec:
    """A published rule with the budget that presets have."""
    if name == "pyramidkv":
        return RetentionSpec("snapkv", budget=256, schedule="pyramid")
    return RetentionSpec(name, budget=256)  # type: ignore[arg-type]


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("none", "None", CacheSpec("none"), True, "No cache: every step recomputes K and V of every token."),
        Preset("dynamic", "Dynamic", CacheSpec("dynamic"), True, "transformers' DynamicCache, grown by concatenation."),
        Preset(
            "static",
            "Static",
            CacheSpec("static"),
            True,
            "transformers' StaticCache: all room reserved before the first token.",
            parameters=("max_length",),
        ),
        Preset(
            "growing", "Growing", CacheSpec("growing"), True, "Preallocated room that doubles: a new row costs O(1)."
        ),
        Preset(
            "paged",
            "Paged",
            CacheSpec("paged"),
            True,
            "A pool of pages and page tables: shared prefixes, copy-on-write, preemption.",
            parameters=("page_size", "num_pages", "replace_duplicates"),
        ),
        Preset(
            "offloaded",
            "Offloaded",
            CacheSpec("host", host_gib=1.0),
            True,
            "Paged, with a second-level prefix cache in host memory.",
            parameters=("page_size", "num_pages", "replace_duplicates", "host_gib"),
        ),
        Preset(
            "allocated",
            "Allocated but unused",
            CacheSpec("allocated"),
            True,
            "A cache is reserved and never read: every step recomputes, as MAX's GPT-2 does.",
        ),
        Preset(
            "sliding",
            "Sliding",
            CacheSpec(retention=RetentionSpec("window", window=256)),
            False,
            "Keeps the latest tokens and nothing else.",
            (FULL,),
            ("window", *LAYOUT),
        ),
        Preset(
            "streamingllm",
            "StreamingLLM",
            CacheSpec(retention=RetentionSpec("sinks+window", sinks=4, window=252)),
            False,
            "Keeps the first tokens, on which attention rests, and the latest.",
            (FULL,),
            ("sinks", "window", "rerotate", *LAYOUT),
        ),
        *(
            Preset(name, label, CacheSpec(retention=scored(name)), False, summary, needs, parameters)
            for name, label, summary, needs, parameters in (
                ("h2o", "H2O", "Keeps the tokens that received most attention, and the latest.", WEIGHTS, SCORED),
                ("snapkv", "SnapKV", "When the prompt ends, keeps what its last queries attend to.", WEIGHTS, SCORED),
                (
                    "pyramidkv",
                    "PyramidKV",
                    "SnapKV with more rows for the first layers than for the last.",
                    WEIGHTS,
                    SCORED[:4],
                ),
                ("tova", "TOVA", "Drops what the newest query attends to least.", WEIGHTS, SCORED),
                ("knorm", "Knorm", "Drops the keys of largest norm.", KEYS, SCORED),
                ("keydiff", "KeyDiff", "Drops the keys most like the others.", KEYS, SCORED),
                ("random", "Random", "Drops at random: what any rule must beat.", KEYS[:1], SCORED),
            )
        ),
        Preset(
            "fp8",
            "FP8",
            CacheSpec(codec=uniform("fp8")),
            False,
            "e4m3 with one scale a tensor, frozen when the prompt ends.",
        ),
        Preset("int8", "INT8", CacheSpec(codec=uniform("int8")), False, "int8 with one scale per token and head."),
        Preset(
            "paged-fp8",
            "Paged FP8",
            CacheSpec("paged", codec=uniform("fp8-token-head")),
            False,
            "Pages of e4m3 codes with one scale per token and head: shared as exact pages are.",
            parameters=("page_size", "num_pages", "replace_duplicates"),
        ),
        Preset(
            "paged-int8",
            "Paged INT8",
            CacheSpec("paged", codec=uniform("int8")),
            False,
            "Pages of int8 codes with one scale per token and head: shared as exact pages are.",
            parameters=("page_size", "num_pages", "replace_duplicates"),
        ),
        *(
            Preset(
                f"kivi-{bits}",
                f"KIVI-{bits}",
                CacheSpec(codec=uniform(f"kivi-{bits}")),  # type: ignore[arg-type]
                False,
                f"{bits} bits: keys per channel over groups of tokens, values per token, the latest exact.",
                ("a group that divides head_dim",),
                ("bits", "group", "residual"),
            )
            for bits in (4, 2)
        ),
        Preset(
            "transformers-quantized",
            "Quantized (transformers)",
            CacheSpec("quantized", quantizer=Quantizer()),
            False,
            "transformers' QuantizedCache as it is: fp8, or quanto and hqq where they are installed.",
            ("full attention in every layer",),
            ("backend", "bits", "group", "residual"),
        ),
    )
}


def cache_preset(name: str) -> Preset:
    """The preset of that name; raises `InputError` naming those that exist."""
    if name not in PRESETS:
        raise InputError(f"Unknown cache '{name}': choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def preset_of(spec: CacheSpec) -> Preset:
    """The preset a spec belongs to, its parameters aside: named by its retention, else its codec, else its layout."""
    retention = spec.retention
    if retention.schedule == "pyramid" and retention.name == "snapkv":
        return PRESETS["pyramidkv"]
    if not retention.keeps_all:
        return next(p for p in PRESETS.values() if p.spec.retention.name == retention.name)
    if spec.codec.is_exact:
        return next(p for p in PRESETS.values() if p.spec.layout == spec.layout and not p.spec.is_compact)
    coding = next(coding for coding in spec.codec.codings if not coding.is_exact)
    family = {"kivi-8": "kivi-4"}.get(coding.name, coding.name.split("-")[0] if not coding.is_kivi else coding.name)
    return PRESETS[f"paged-{family}" if spec.is_paged else family]


def cache_name(spec: CacheSpec) -> str:
    """A cache by the name that it has on the command line: its preset's, or what its codec is where that is another
    one: `int8/kivi-4` for K and V, `h2o+int8`, `paged+fp8-max`."""
    preset, words = preset_of(spec), codec_words(spec.codec)
    if words == codec_words(preset.spec.codec):
        return preset.name
    if spec.retention.keeps_all and not spec.is_paged:
        return words
    return f"{'paged' if spec.retention.keeps_all else preset.name}+{words}"


def cache_named(name: str) -> CacheSpec:
    """The cache that `cache_name` calls so: a preset, or one with a codec of its own; anything else is refused."""
    base, plus, codec = name.rpartition("+")
    if plus:
        return replace(cache_preset(base).spec, codec=parse_codec(codec))
    if name not in PRESETS and ("/" in name or name in get_codec_names()):
        return CacheSpec(codec=parse_codec(name))
    return cache_preset(name).spec


def cache_label(spec: CacheSpec) -> str:
    """`cache_name` as people read it: `INT8/KIVI-4`, `H2O · INT8`."""
    preset, words = preset_of(spec), codec_words(spec.codec)
    if words == codec_words(preset.spec.codec):
        return preset.label
    for name in ("fp8", "int8", "kivi"):
        words = words.replace(name, name.upper())
    if spec.retention.keeps_all and not spec.is_paged:
        return words
    return f"{'Paged' if spec.retention.keeps_all else preset.label} · {words}"


def cache_summary(spec: CacheSpec) -> str:
    """One sentence: the preset's, with the codec where that is another one."""
    preset, words = preset_of(spec), codec_words(spec.codec)
    if words == codec_words(preset.spec.codec):
        return preset.summary
    kept = "" if spec.retention.keeps_all else f"{preset.summary} "
    parts = " (K/V)" if "/" in words else ""
    return f"{kept}Numbers are written as {words}{parts}."


def with_room_for(spec: CacheSpec, num_tokens: int) -> CacheSpec:
    """The spec for a work of so many tokens: a static cache that was given no length reserves just those."""
    if spec.layout != "static" or spec.max_length is not None:
        return spec
    return replace(spec, max_length=num_tokens)


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen. `temperature` 0 is greedy; None switches a filter off.

    The draw at a position depends on `seed` and that position alone, so going back and stepping again repeats it.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"Temperature {self.temperature} is not a number from 0 up; 0 means greedy.")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top-k {self.top_k} keeps no token: give 1 or more.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top-p {self.top_p} is outside (0, 1].")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise InputError(f"min-p {self.min_p} is outside [0, 1].")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"Seed {self.seed} is outside 0 … 2^63 - 1.")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Prompt:
    """What a sequence starts from: text, or token ids taken as they are. Exactly one of the two. `sampling` None: what
    the session says of the next prompt."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: SamplingParams | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.token_ids is None):
            raise InputError("A prompt is either text or token ids: give exactly one of them.")
        if self.text == "" or self.token_ids == ():
            raise InputError("The prompt is empty: type some text first.")
        if self.text is not None and any("\ud800" <= c <= "\udfff" for c in self.text):
            raise InputError("The prompt holds half a character, which is no text: remove or retype it.")


RETENTION_PARAMETERS = ("budget", "ratio", "sinks", "window", "rerotate")
CODEC_PARAMETERS = ("bits", "group", "residual")


def tuned(spec: CacheSpec, **parameters: Any) -> CacheSpec:
    """The spec with those parameters set that are not None; what is nonsense or does not apply is refused."""
    given = {name: value for name, value in parameters.items() if value is not None}
    retention = {name: given.pop(name) for name in RETENTION_PARAMETERS if name in given}
    if retention:
        given["retention"] = _tuned_retention(spec.retention, retention)
    coded = {name: given.pop(name) for name in CODEC_PARAMETERS if name in given}
    backend = given.pop("backend", None)
    if spec.quantizer is not None:
        given["quantizer"] = replace(spec.quantizer, **coded, **({"backend": backend} if backend else {}))
    elif backend is not None:
        raise InputError("A backend belongs to transformers' quantised cache; this one has none.")
    elif coded:
        codec = given.get("codec", spec.codec)
        given["codec"] = recoded(codec, coded.get("bits"), coded.get("group"), coded.get("residual"))
    return replace(spec, **given)


def _tuned_retention(retention: RetentionSpec, given: dict[str, Any]) -> RetentionSpec:
    if retention.keeps_all:
        raise InputError(
            f"This cache keeps all rows, so a {next(iter(given))} means nothing to it: choose one that drops rows."
        )
    budget = given.get("budget")
    if isinstance(budget, LayerBudgets):
        given |= {"budget": budget.mean, "layer_budgets": budget.layers, "schedule": budget.schedule}
    if "ratio" in given and budget is None:  # one takes the other's place
        given |= {"budget": None, "layer_budgets": (), "schedule": "uniform"}
    elif budget is not None and "ratio" not in given:
        given = {"layer_budgets": (), **given, "ratio": None}
    return replace(retention, **given)


@dataclass(frozen=True)
class LayerBudgets:
    """A budget that differs by layer: one for each layer that drops rows, or the mean of a pyramid."""

    layers: tuple[int, ...] = ()
    mean: int | None = None

    @property
    def schedule(self) -> Schedule:
        return "uniform" if self.layers else "pyramid"


def parse_budget(text: str) -> int | LayerBudgets:
    """`N`, `N,N,…` with one for every layer that drops rows, or `pyramid:N` with their mean."""
    kind, _, mean = text.rpartition(":")
    try:
        if kind == "pyramid":
            return LayerBudgets(mean=int(mean))
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers:
        raise InputError(
            f"'{text[:60]}' is no budget: write 256, one number for each layer like 384,128, or pyramid:256."
        )
    return numbers[0] if len(numbers) == 1 else LayerBudgets(numbers)
