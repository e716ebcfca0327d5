"""How many tokens a sequence may have: the context length of the model, and the room that a cache reserves. No
torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.geometry.families import READ_ALL_ROOM, RELATIVE_POSITIONS
from engine.spec.cache import CacheSpec
from engine.spec.condition import ConditionSetting

if TYPE_CHECKING:
    from engine.wire.status import ModelInfo

DEFAULT_MAX_LENGTH = 2048
DEFAULT_STATIC_TOKENS = 4096
DEFAULT_POOL_TOKENS = 16_384


def check_layout(spec: CacheSpec, geometry: CacheGeometry) -> None:
    """Raise `InputError` for a cache mode that an encoder-decoder cannot have."""
    if not geometry.has_encoder:
        return
    if spec.layout == "allocated":
        raise InputError(
            "The allocated layout reserves room for one decoder as MAX's GPT-2 does, and this model has an encoder: "
            "use the static cache."
        )
    if spec.form == "static" and geometry.model_type in READ_ALL_ROOM:
        raise InputError(
            f"The decoder of a {geometry.model_type} model masks nothing where a single token is computed, so it would "
            "read the empty room of a static cache: use the growing cache."
        )
    if spec.retention.only_at_prompt_end:
        raise InputError(
            f"{spec.retention.name} evicts rows of the prompt when it ends, and the decoder of this model starts from "
            "one token, while its encoder reads the prompt: use a rule that evicts rows as tokens come."
        )
    if not spec.retention.keeps_all and geometry.model_type in RELATIVE_POSITIONS:
        raise InputError(
            f"Attention of a {geometry.model_type} model adds a bias by distance, which it counts by the rows held: it "
            "would be wrong once rows are evicted. Use a cache that keeps all rows."
        )


def possible_layout(spec: CacheSpec, geometry: CacheGeometry) -> CacheSpec:
    """The mode itself, or the growing cache in its place if this encoder-decoder cannot have it."""
    try:
        check_layout(spec, geometry)
    except InputError:
        return CacheSpec()
    return spec


def num_source(geometry: CacheGeometry, num_prompt_tokens: int) -> int:
    """How many tokens of a prompt the encoder reads: all but the last, which starts the decoder; 0 without an
    encoder."""
    return max(0, num_prompt_tokens - 1) if geometry.has_encoder else 0


def context_length(geometry: CacheGeometry) -> int:
    """The context length of a model; 2,048 if its config names none."""
    return geometry.max_length or DEFAULT_MAX_LENGTH


def static_capacity(spec: CacheSpec, max_length: int) -> int:
    """Tokens that a static layout reserves: the given length, else the model's context, at most 4,096. Raises
    `InputError` if the given length exceeds the context."""
    if spec.max_length is not None and spec.max_length > max_length:
        raise InputError(
            f"A static cache of {spec.max_length} tokens is longer than the model's context of {max_length}: "
            f"reserve at most {max_length}."
        )
    return reserved_length(spec, max_length)


def reserved_length(spec: CacheSpec, max_length: int) -> int:
    """Tokens that a static or an allocated cache reserves, without checking them against the context."""
    return spec.max_length or min(max_length, DEFAULT_STATIC_TOKENS)


def pool_pages(spec: CacheSpec, max_length: int) -> int:
    """Pages of a pool, the null page included: the given number, else room for four full contexts or 16,384 tokens,
    whichever is less, but for one full context at least."""
    if spec.num_pages is not None:
        return spec.num_pages
    tokens = min(4 * max_length, max(DEFAULT_POOL_TOKENS, max_length))
    return -(-tokens // spec.page_size) + 1


def cache_capacity(spec: CacheSpec, max_length: int, geometry: CacheGeometry) -> int | None:
    """How many tokens of one sequence fit in the cache. None if there is no limit: the cache grows, or every layer
    keeps a window, so that pages are freed as fast as they are allocated."""
    if spec.form == "static":
        return static_capacity(spec, max_length)
    if not spec.is_paged or tokens_at_once(spec, max_length, geometry) is not None:
        return None
    return pool_tokens(spec, max_length)


def pool_tokens(spec: CacheSpec, max_length: int) -> int:
    """How many tokens fit in the pages of a pool."""
    return (pool_pages(spec, max_length) - 1) * spec.page_size


def tokens_at_once(spec: CacheSpec, max_length: int, geometry: CacheGeometry) -> int | None:
    """How many tokens one forward pass can add to a pool however long the sequence is, if every layer keeps a window
    and a page fits beside it; None if the pool fills up."""
    windows = [window_of(layer) for layer in geometry.layers if is_pageable(layer)]
    longest = max((window for window in windows if window is not None), default=0)
    if not windows or None in windows:
        return None
    held = longest - 1 + spec.page_size - 1  # a full window, whose first page also holds older tokens
    room = pool_tokens(spec, max_length) - held
    return room if room >= spec.page_size else None


def is_pageable(layer: LayerGeometry) -> bool:
    """Whether a layer keeps only K and V, with one more row per token. Recurrent states and an indexer's keys are
    neither paged nor coded, and the rows of a cross layer are written once and never change."""
    is_written_once = layer.kind == "cross"
    return layer.stores_kv and layer.state_elements is None and layer.index_dim is None and not is_written_once


def window_of(layer: LayerGeometry) -> int | None:
    """The window of a sliding layer, whose pages are freed when they leave it; None for other layers."""
    return layer.window if layer.kind == "sliding" else None


def most_tokens(spec: CacheSpec, geometry: CacheGeometry) -> int:
    """The longest prompt that fits in both the model's context and the cache."""
    limit = context_length(geometry)
    if geometry.has_encoder:
        return geometry.max_source_length or limit  # the rows of the encoder are not in the reserved room
    capacity = cache_capacity(spec, limit, geometry)
    return limit if capacity is None else min(limit, capacity)


# ---- rows of buffers that grow -----------------------------------------------------------------------------------

FIRST_CAPACITY = 64


def grown_capacity(num_rows: int) -> int:
    """Rows of a buffer that doubles when full: the next power of two, at least 64."""
    return max(FIRST_CAPACITY, 1 << (num_rows - 1).bit_length())


def tight_capacity(num_rows: int) -> int:
    """Rows of a buffer that is reallocated for the rows kept after a drop: a multiple of 64 that leaves room for 1 to
    64 more."""
    return (num_rows // FIRST_CAPACITY + 1) * FIRST_CAPACITY


def is_endless(spec: CacheSpec, info: ModelInfo) -> bool:
    """Whether a context of any length fits, because the rule keeps rows by position (a window, and sinks) and the model
    can go beyond its context length."""
    return spec.retention.is_by_position and not spec.is_paged and info.goes_beyond_context


def setting_of(info: ModelInfo, spec: CacheSpec, *, is_compared: bool) -> ConditionSetting:
    """What decides whether a condition can ever hold: this model in this cache mode."""
    most = None if is_endless(spec, info) else context_length(info.geometry) * (1 + info.geometry.has_encoder)
    return ConditionSetting(spec, info.captures_attention, most, is_compared)
