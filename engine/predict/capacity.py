"""How many tokens a sequence may have: what the model was built for, and what a cache reserves. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.geometry.families import READ_ALL_ROOM, RELATIVE_POSITIONS
from engine.spec.cache import CacheSpec
from engine.spec.possible import ConditionSetting

if TYPE_CHECKING:
    from engine.wire.status import ModelInfo

DEFAULT_MAX_LENGTH = 2048
DEFAULT_STATIC_TOKENS = 4096
DEFAULT_POOL_TOKENS = 16_384


def check_layout(spec: CacheSpec, geometry: CacheGeometry) -> None:
    """Refuse what no cache of an encoder-decoder can be."""
    if not geometry.has_encoder:
        return
    if spec.layout == "allocated":
        raise InputError(
            "The allocated layout reserves room for one decoder as MAX's GPT-2 does, and this model has an encoder: "
            "use the static cache."
        )
    if spec.form == "static" and geometry.model_type in READ_ALL_ROOM:
        raise InputError(
            f"The decoder of a {geometry.model_type} model masks nothing where a single token is fed, so it would read "
            "the empty room of a static cache: use the growing cache."
        )
    if spec.retention.only_at_prompt_end:
        raise InputError(
            f"{spec.retention.name} drops rows of the prompt when it ends, and the decoder of this model starts from "
            "one token, while its encoder reads the prompt: use a rule that drops rows as tokens come."
        )
    if not spec.retention.keeps_all and geometry.model_type in RELATIVE_POSITIONS:
        raise InputError(
            f"Attention of a {geometry.model_type} model adds a bias by distance, which it counts by the rows held: it "
            "would be wrong once rows are dropped. Use a cache that keeps all rows."
        )


def possible_layout(spec: CacheSpec, geometry: CacheGeometry) -> CacheSpec:
    """A mode, or in its place one that grows where this model has an encoder that it does not go with."""
    try:
        check_layout(spec, geometry)
    except InputError:
        return CacheSpec()
    return spec


def num_source(geometry: CacheGeometry, num_prompt_tokens: int) -> int:
    """Tokens of a prompt that an encoder reads: all but the last, from which the decoder starts; 0 without one."""
    return max(0, num_prompt_tokens - 1) if geometry.has_encoder else 0


def context_length(geometry: CacheGeometry) -> int:
    """Positions that a model was built for; 2,048 where its config names no limit."""
    return geometry.max_length or DEFAULT_MAX_LENGTH


def static_capacity(spec: CacheSpec, max_length: int) -> int:
    """Tokens that a static layout reserves: as asked, else the model's maximum, at most 4,096."""
    if spec.max_length is not None and spec.max_length > max_length:
        raise InputError(
            f"A static cache of {spec.max_length} tokens is longer than the model's context of {max_length}: "
            f"reserve at most {max_length}."
        )
    return reserved_length(spec, max_length)


def reserved_length(spec: CacheSpec, max_length: int) -> int:
    """Tokens that a static or an allocated cache reserves."""
    return spec.max_length or min(max_length, DEFAULT_STATIC_TOKENS)


def pool_pages(spec: CacheSpec, max_length: int) -> int:
    """Pages of a pool, the null page included: as asked, else room for four full contexts, at most 16,384 tokens."""
    if spec.num_pages is not None:
        return spec.num_pages
    tokens = min(4 * max_length, max(DEFAULT_POOL_TOKENS, max_length))
    return -(-tokens // spec.page_size) + 1


def cache_capacity(spec: CacheSpec, max_length: int, geometry: CacheGeometry) -> int | None:
    """Tokens of one sequence for which a cache has room; None where it grows, or where pages become free again as fast
    as they are taken because every layer of the model keeps a window."""
    if spec.form == "static":
        return static_capacity(spec, max_length)
    if not spec.is_paged or tokens_at_once(spec, max_length, geometry) is not None:
        return None
    return pool_tokens(spec, max_length)


def pool_tokens(spec: CacheSpec, max_length: int) -> int:
    """Tokens for which a pool has pages."""
    return (pool_pages(spec, max_length) - 1) * spec.page_size


def tokens_at_once(spec: CacheSpec, max_length: int, geometry: CacheGeometry) -> int | None:
    """Tokens that a pool takes in one forward however long the sequence is, if every layer keeps a window and a page
    besides it fits; None where the pool fills up."""
    windows = [window_of(layer) for layer in geometry.layers if is_pageable(layer)]
    longest = max((window for window in windows if window is not None), default=0)
    if not windows or None in windows:
        return None
    held = longest - 1 + spec.page_size - 1  # of a whole window, whose first page began before it
    room = pool_tokens(spec, max_length) - held
    return room if room >= spec.page_size else None


def is_pageable(layer: LayerGeometry) -> bool:
    """Whether a layer keeps K and V and nothing else, one row more with every token: a state or an indexer's keys have
    no pages and no codes, and the rows of a cross layer are written once and stay as they are."""
    is_written_once = layer.kind == "cross"
    return layer.stores_kv and layer.state_elements is None and layer.index_dim is None and not is_written_once


def window_of(layer: LayerGeometry) -> int | None:
    """The window of a layer whose pages leave it."""
    return layer.window if layer.kind == "sliding" else None


def most_tokens(spec: CacheSpec, geometry: CacheGeometry) -> int:
    """The longest prompt that model and cache take."""
    limit = context_length(geometry)
    if geometry.has_encoder:
        return geometry.max_source_length or limit  # its rows are in no room that was reserved for others
    capacity = cache_capacity(spec, limit, geometry)
    return limit if capacity is None else min(limit, capacity)


# ---- rows of buffers that grow -----------------------------------------------------------------------------------

FIRST_CAPACITY = 64


def grown_capacity(num_rows: int) -> int:
    """Rows of a buffer that doubles: the next power of two, at least 64."""
    return max(FIRST_CAPACITY, 1 << (num_rows - 1).bit_length())


def tight_capacity(num_rows: int) -> int:
    """Rows of a buffer made anew for rows that were kept when others were dropped: one more fits, 64 at most."""
    return (num_rows // FIRST_CAPACITY + 1) * FIRST_CAPACITY


def is_endless(spec: CacheSpec, info: ModelInfo) -> bool:
    """Whether such a cache keeps so little of this model's rows that a context of any length goes through it."""
    return spec.retention.is_by_position and not spec.is_paged and info.goes_beyond_context


def setting_of(info: ModelInfo, spec: CacheSpec, *, is_compared: bool) -> ConditionSetting:
    """What decides whether a condition can ever hold: this model in that cache mode."""
    most = None if is_endless(spec, info) else context_length(info.geometry) * (1 + info.geometry.has_encoder)
    return ConditionSetting(spec, info.captures_attention, most, is_compared)
