"""What a session is made from: a model, a cache and a way to sample. Frozen, and validated when constructed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from engine.errors import InputError

Layout = Literal["none", "allocated", "dynamic", "static", "growing", "paged", "host"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

BUNDLED = "bundled"
SHAPE_PREFIX = "shape:"
MAX_PAGE_SIZE = 1024
MAX_HOST_GIB = 65_536
RESOURCES = Path(__file__).resolve().parent.parent / "resources"


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


@dataclass(frozen=True)
class CacheSpec:
    """One point in the space layout x codec x retention.

    `max_length` is the number of tokens that a static layout reserves (None: the model's own maximum, at most 4,096).
    `page_size` is in tokens, `num_pages` counts the pool with its null page (None: room for four full contexts),
    `replace_duplicates` chooses what happens when two pages come to hold the same tokens: keep both, as vLLM does, or
    replace the newer one, as MAX does. `host_gib` is the size of the host tier in GiB.
    """

    layout: Layout = "growing"
    max_length: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    replace_duplicates: bool = False
    host_gib: float | None = None

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise InputError(f"Unknown cache layout '{self.layout}': choose one of {', '.join(get_args(Layout))}.")
        if self.max_length is not None and self.layout != "static":
            raise InputError(f"max_length reserves a static cache; the {self.layout} layout has no use for it.")
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"A static cache of {self.max_length} tokens holds nothing: give 1 or more.")
        self._check_pages()

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
    def is_append_only(self) -> bool:
        """Whether the rows of a past step are a prefix of the present ones, bit for bit."""
        return not self.recomputes


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
    )
}


def cache_preset(name: str) -> Preset:
    """The preset of that name; raises `InputError` naming those that exist."""
    if name not in PRESETS:
        raise InputError(f"Unknown cache '{name}': choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def preset_of(spec: CacheSpec) -> Preset:
    """The preset a spec belongs to, its parameters set aside."""
    return next(p for p in PRESETS.values() if p.spec.layout == spec.layout)


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
    """What a sequence starts from: text, or token ids taken as they are. Exactly one of the two."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        if (self.text is None) == (self.token_ids is None):
            raise InputError("A prompt is either text or token ids: give exactly one of them.")
        if self.text == "" or self.token_ids == ():
            raise InputError("The prompt is empty: type some text first.")
        if self.text is not None and any("\ud800" <= c <= "\udfff" for c in self.text):
            raise InputError("The prompt holds half a character, which is no text: remove or retype it.")


def tuned(spec: CacheSpec, **parameters: Any) -> CacheSpec:
    """The spec with those parameters set that are not None; nonsense is refused like anywhere else."""
    return replace(spec, **{name: value for name, value in parameters.items() if value is not None})
