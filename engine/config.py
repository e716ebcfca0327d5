"""What a session is made from: a model, a cache and a way to sample. Frozen, and validated when constructed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from engine.errors import InputError

Layout = Literal["none", "dynamic", "static", "growing"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

BUNDLED = "bundled"
SHAPE_PREFIX = "shape:"
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
    """

    layout: Layout = "growing"
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise InputError(f"Unknown cache layout '{self.layout}': choose one of {', '.join(get_args(Layout))}.")
        if self.max_length is not None and self.layout != "static":
            raise InputError(f"max_length reserves a static cache; the {self.layout} layout has no use for it.")
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"A static cache of {self.max_length} tokens holds nothing: give 1 or more.")

    @property
    def is_append_only(self) -> bool:
        """Whether the rows of a past step are a prefix of the present ones, bit for bit."""
        return self.layout != "none"


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
        Preset("growing", "Growing", CacheSpec("growing"), True, "Preallocated room that doubles: a new row costs O(1)."),
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


def with_max_length(spec: CacheSpec, max_length: int | None) -> CacheSpec:
    """The spec with its reservation set, for layouts that reserve."""
    return replace(spec, max_length=max_length)
