"""Predicted bytes of a KV cache: any geometry, context and batch, in any way of keeping it; and what fits in a memory.

Formulas, for H_kv cached heads of dimension D in L layers at b bytes a number: multi-head, grouped and multi-query
attention keep 2·L·H_kv·D·b bytes a token, latent attention L·(latent + rotary)·b, recurrent layers a constant.
*Stored* is what holds tokens; *reserved* is what is allocated for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from engine.errors import InputError
from engine.geometry import CacheGeometry, LayerGeometry, LayerKind, dtype_bytes

BudgetMode = Literal["none", "allocated", "dynamic", "growing", "static", "paged", "host", "sliding"]

_RECOMPUTING: Final = ("none", "allocated")
_TOKENS_LIMIT: Final = 10**12
_SMALLEST_GROWING: Final = 64


@dataclass(frozen=True)
class Codec:
    """How a stored number is written, in effective bits: its code, and its share of a scale that a group shares.

    ``group`` numbers share ``scale_bits`` of scale and offset; None: the whole head vector does; 0: so many do that it
    does not count. ``residual`` latest tokens stay exact; keys leave them a whole residual at a time, values singly.
    """

    name: str
    code_bits: int | None = None
    scale_bits: int = 0
    group: int | None = 0
    residual: int = 0

    def __post_init__(self) -> None:
        if self.code_bits is not None and not 1 <= self.code_bits <= 64:
            raise InputError(f"A code of {self.code_bits} bits cannot be stored; use 1 to 64.")
        if self.group is not None and self.group < 0:
            raise InputError(f"A group of {self.group} numbers cannot share a scale; use 1 or more.")
        if self.scale_bits < 0 or self.residual < 0:
            raise InputError("Scale bits and the exact residual must be 0 or more.")

    def effective_bits(self, dim: int, exact_bits: int) -> float:
        """Bits per number of a head vector of ``dim`` numbers."""
        if self.code_bits is None:
            return exact_bits
        group = dim if self.group is None else self.group
        return self.code_bits + (self.scale_bits / group if group else 0.0)

    def num_coded(self, num_tokens: int) -> tuple[int, int]:
        """How many of the keys and of the values of so many tokens are coded; the rest is exact."""
        if self.code_bits is None:
            return 0, 0
        keys = num_tokens // self.residual * self.residual if self.residual else num_tokens
        return keys, max(0, num_tokens - self.residual)


EXACT: Final = Codec("exact")
CODECS: Final[Mapping[str, Codec]] = {
    codec.name: codec
    for codec in (
        EXACT,
        Codec("fp8", 8),
        Codec("fp8-token-head", 8, 32, None),
        Codec("fp8-max", 8, 32, 128),
        Codec("fp8-max-e8m0", 8, 8, 128),
        Codec("int8", 8, 16, None),
        Codec("kivi-8", 8, 32, 64, 128),
        Codec("kivi-4", 4, 32, 64, 128),
        Codec("kivi-2", 2, 32, 64, 128),
    )
}


@dataclass(frozen=True)
class BudgetSpec:
    """What is to be kept: ``context`` tokens of each of ``batch`` sequences, and how.

    ``max_length`` is what a static or allocated cache reserves (None: just the context), ``window`` what the sliding
    mode keeps, ``page_size`` the tokens of a page in the paged and host modes.
    """

    mode: BudgetMode = "dynamic"
    context: int = 1
    batch: int = 1
    dtype: str = "bfloat16"
    max_length: int | None = None
    page_size: int = 16
    window: int | None = None
    codec: Codec = EXACT

    def __post_init__(self) -> None:
        if self.mode not in get_args(BudgetMode):
            raise InputError(f"The cache {self.mode!r} is not known; use one of {', '.join(get_args(BudgetMode))}.")
        dtype_bytes(self.dtype)
        for name in ("context", "batch", "max_length", "page_size", "window"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"{name} must be a whole number of 1 or more, not {value!r}.")
            if value is not None and value > _TOKENS_LIMIT:
                raise InputError(f"{name} of {value} is beyond every memory; use at most {_TOKENS_LIMIT:,}.")
        if self.mode == "static" and self.max_length is not None and self.max_length < self.context:
            raise InputError(
                f"A static cache of {self.max_length} tokens cannot hold a context of {self.context}; raise max_length."
            )
        if self.mode == "sliding" and self.window is None:
            raise InputError("The sliding cache keeps a window of tokens and none is given; give window.")


@dataclass(frozen=True)
class KindBudget:
    """The layers of one kind together; bytes for one sequence. ``state_bytes`` None: only the model can tell."""

    kind: LayerKind
    num_layers: int
    bytes_per_token: int
    stored_bytes: int
    reserved_bytes: int
    state_bytes: int | None


@dataclass(frozen=True)
class Budget:
    """Predicted bytes. ``host_bytes`` is the copy in host memory, over all sequences; 0 without that tier."""

    spec: BudgetSpec
    kinds: tuple[KindBudget, ...]
    host_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token adds while no window is full and nothing is rounded to pages."""
        return sum(kind.bytes_per_token for kind in self.kinds)

    @property
    def stored_bytes_per_sequence(self) -> int:
        """Bytes that hold tokens of one sequence."""
        return sum(kind.stored_bytes for kind in self.kinds)

    @property
    def reserved_bytes_per_sequence(self) -> int:
        """Bytes allocated for the tokens of one sequence."""
        return sum(kind.reserved_bytes for kind in self.kinds)

    @property
    def state_bytes_per_sequence(self) -> int | None:
        """Bytes of recurrent and convolution state of one sequence; None when a layer's size is not known."""
        known = [kind.state_bytes for kind in self.kinds if kind.state_bytes is not None]
        return sum(known) if len(known) == len(self.kinds) else None

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes allocated for one sequence, known state included."""
        return self.reserved_bytes_per_sequence + (self.state_bytes_per_sequence or 0)

    @property
    def total_bytes(self) -> int:
        """Bytes allocated for the whole batch."""
        return self.bytes_per_sequence * self.spec.batch


def predict(geometry: CacheGeometry, spec: BudgetSpec) -> Budget:
    """The bytes that a cache of this geometry takes in the way that ``spec`` says."""
    kinds = tuple(_kind_budget(kind, layers, spec) for kind, layers in geometry.layers_by_kind().items())
    return Budget(spec, kinds, _host_bytes(geometry, spec))


def tokens_that_fit(geometry: CacheGeometry, spec: BudgetSpec, available_bytes: int) -> int | None:
    """The longest context, the same in every sequence of the batch, whose bytes fit; None if no context is too long.

    0: not even one token fits. The mode and everything else is taken from ``spec``, except its context and the static
    reservation, which is the context itself. With a codec that keeps its latest tokens exact, a slightly longer
    context may fit again: coding a whole residual at once frees memory.
    """
    if available_bytes < 0:
        raise InputError(f"Available memory must be 0 bytes or more, not {available_bytes}.")
    free = replace(spec, context=1, max_length=None)
    different = Counter(replace(layer, index=0) for layer in geometry.layers)  # most layers are alike

    def fits(num_tokens: int) -> bool:
        at = replace(free, context=num_tokens)
        per_sequence = sum(count * _allocated_bytes(layer, at) for layer, count in different.items())
        return per_sequence * spec.batch <= available_bytes

    if fits(_TOKENS_LIMIT):
        return None
    low, high = 0, _TOKENS_LIMIT
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def held_tokens(layer: LayerGeometry, spec: BudgetSpec) -> int:
    """Tokens of one sequence that this layer keeps after ``spec.context`` of them."""
    return _RULES[spec.mode](layer, spec)[0]


def reserved_tokens(layer: LayerGeometry, spec: BudgetSpec) -> int:
    """Tokens of one sequence that this layer has room for."""
    return _RULES[spec.mode](layer, spec)[1]


# --- tokens kept and reserved, mode by mode ---------------------------------------------------------------------------


def _none(layer: LayerGeometry, spec: BudgetSpec) -> tuple[int, int]:
    return 0, 0


def _allocated(layer: LayerGeometry, spec: BudgetSpec) -> tuple[int, int]:
    return 0, spec.max_length or spec.context  # reserved and never written: GPT-2 as MAX's tutorial serves it


def _dynamic(layer: LayerGeometry, spec: BudgetSpec) -> tuple[int, int]:
    # transformers keeps window - 1 tokens: the next one completes the window
    held = spec.context if layer.window is None else min(spec.context, layer.window - 1)
    return held, held


def _growing(layer: LayerGeometry, spec: BudgetSpec) -> tuple[int, int]:
    # the whole history in every layer, so that every past step stays a prefix; room is a power of two
    return spec.context, max(_SMALLEST_GROWING, 1 << (spec.context - 1).bit_length())


def _static(layer: LayerGeometry, spec: BudgetSpec) -> tuple[int, int]:
    reserved = spec.max_length or spec.context
    if layer.window is not None:
        reserved = min(layer.window, reserved)
    return min(spec.context, reserved), reserved


def _paged(layer: LayerGeometry, spec: BudgetSpec) -> tuple[int, int]:
    num_pages = math.ceil(spec.context / spec.page_size)
    if layer.window is None:
        return spec.context, num_pages * spec.page_size
    # a window that starts anywhere in a page touches one page more than it fills
    reachable = math.ceil((layer.window - 1) / spec.page_size) + 1
    return min(spec.context, layer.window - 1), min(num_pages, reachable) * spec.page_size


def _sliding(layer: LayerGeometry, spec: BudgetSpec) -> tuple[int, int]:
    kept = min(spec.context, spec.window or spec.context)
    held = min(kept, _dynamic(layer, spec)[0])
    return held, held


_RULES: Final[Mapping[BudgetMode, Callable[[LayerGeometry, BudgetSpec], tuple[int, int]]]] = {
    "none": _none,
    "allocated": _allocated,
    "dynamic": _dynamic,
    "growing": _growing,
    "static": _static,
    "paged": _paged,
    "host": _paged,
    "sliding": _sliding,
}


# --- bytes ------------------------------------------------------------------------------------------------------------


def _kind_budget(kind: LayerKind, layers: tuple[LayerGeometry, ...], spec: BudgetSpec) -> KindBudget:
    is_kept = spec.mode not in _RECOMPUTING
    states = [_state_bytes(layer, spec) for layer in layers]
    known = [state for state in states if state is not None]
    return KindBudget(
        kind=kind,
        num_layers=len(layers),
        bytes_per_token=sum(_bytes_of_one_more(layer, spec) for layer in layers) if is_kept else 0,
        stored_bytes=sum(_bytes_of(layer, held_tokens(layer, spec), spec) for layer in layers),
        reserved_bytes=sum(_bytes_of(layer, reserved_tokens(layer, spec), spec) for layer in layers),
        state_bytes=sum(known) if len(known) == len(layers) else None,
    )


def _state_bytes(layer: LayerGeometry, spec: BudgetSpec) -> int | None:
    return 0 if spec.mode in _RECOMPUTING else layer.state_bytes(spec.dtype)


def _allocated_bytes(layer: LayerGeometry, spec: BudgetSpec) -> int:
    return _bytes_of(layer, reserved_tokens(layer, spec), spec) + (_state_bytes(layer, spec) or 0)


def _bytes_of(layer: LayerGeometry, num_tokens: int, spec: BudgetSpec) -> int:
    if not layer.stores_kv:
        return 0
    coded_keys, coded_values = spec.codec.num_coded(num_tokens)
    keys = _vectors_bits(layer.key_dim, coded_keys, num_tokens - coded_keys, spec)
    values = _vectors_bits(layer.value_dim, coded_values, num_tokens - coded_values, spec)
    indexer = (layer.index_dim or 0) * num_tokens * dtype_bytes(spec.dtype)
    return layer.num_kv_heads * math.ceil((keys + values) / 8) + indexer


def _vectors_bits(dim: int, num_coded: int, num_exact: int, spec: BudgetSpec) -> int:
    exact_bits = dtype_bytes(spec.dtype) * 8
    coded = math.ceil(num_coded * dim * spec.codec.effective_bits(dim, exact_bits)) if num_coded else 0
    return coded + num_exact * dim * exact_bits


def _bytes_of_one_more(layer: LayerGeometry, spec: BudgetSpec) -> int:
    """What a token takes in the long run: coded where there is a codec."""
    return _bytes_of(layer, 1, replace(spec, codec=replace(spec.codec, residual=0)))


def _host_bytes(geometry: CacheGeometry, spec: BudgetSpec) -> int:
    """Full pages are written through to host memory once; windowed layers' pages come back too soon to be worth it."""
    if spec.mode != "host":
        return 0
    full_pages = spec.context // spec.page_size * spec.page_size
    per_sequence = sum(_bytes_of(layer, full_pages, spec) for layer in geometry.layers if layer.window is None)
    return per_sequence * spec.batch


# --- the tutorial's table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TutorialRow:
    """One line of the table: a model's cache in 16-bit numbers at one length, one sequence."""

    model: str
    context: int
    bytes: int

    @property
    def megabytes(self) -> float:
        """Decimal: bytes / 1e6, as the tutorial prints them."""
        return self.bytes / 1e6


def tutorial_table() -> tuple[TutorialRow, ...]:
    """The memory table of the KV cache tutorial: three models at 512, 2,048 and 8,192 tokens.

    That tutorial's text puts a 7B model at 1,024 tokens at 1-2 GB; by its own formula it is 537 MB in 16-bit numbers
    and 1.07 GB in 32-bit ones.
    """
    models = {
        "GPT-2 Small": CacheGeometry.uniform(12, 12, 64),
        "GPT-2 Large": CacheGeometry.uniform(36, 20, 64),
        "LLaMA-7B": CacheGeometry.uniform(32, 32, 128),
    }
    return tuple(
        TutorialRow(name, context, predict(geometry, BudgetSpec(context=context, dtype="float16")).total_bytes)
        for name, geometry in models.items()
        for context in (512, 2048, 8192)
    )
