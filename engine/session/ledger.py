"""The byte ledger of a session: predicted by formula, stored in rows, reserved in storage, held for looking."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.cache.contract import HeldBytes
from engine.cache.paged.store import PageStore
from engine.cache.sequence_cache import SequenceCache
from engine.predict.bytes import CacheFormula, Fill
from engine.session.live import LiveSequence
from engine.spec.cache import CacheSpec
from engine.wire.events import ModelInfo
from engine.wire.records import ByteGap, CacheBytes, LayerBytes


def cache_bytes(
    info: ModelInfo,
    spec: CacheSpec,
    caches: list[SequenceCache],
    store: PageStore | None,
    looking: int,
    process: int,
) -> CacheBytes:
    """Sum over sequences, layer by layer. What a recomputing layout computes is held for looking, and by nobody else;
    what a rule remembers of attention is counted there as well: it is neither stored rows nor room for them.

    In a page store a row that several sequences share is stored once, and the whole pool is reserved.
    """
    formula = CacheFormula(spec, info.geometry, info.dtype)
    fills = [Fill(cache.num_tokens, cache.prompt_ended_at) for cache in caches if cache.num_tokens]
    layers = []
    per_cache = [cache.all_bytes() for cache in caches]
    for layer in info.geometry.layers:
        held = [of_layers[layer.index] for of_layers in per_cache if layer.index < len(of_layers)]
        looking += sum(one.scores for one in held)
        stored, reserved = sum(one.stored for one in held), sum(one.reserved for one in held)
        if spec.recomputes:
            looking += reserved
            stored, reserved = 0, sum(cache.idle_bytes(layer.index) for cache in caches)
            gaps = [ByteGap("padding to the reserved length", reserved, "reserved")]
        predicted = sum(formula.stored_bytes(layer, fill) for fill in fills)
        if store is not None and layer.index in store.rows_of:
            num_shared = store.shared_rows(layer)
            shared = store.layer_bytes(layer.index, num_shared)
            predicted -= formula.bytes_of_rows(layer, num_shared)
            slack = reserved - stored
            stored, reserved = stored - shared.stored, store.reserved_bytes(layer.index)
            gaps = page_gaps(held, shared, slack, reserved - stored)
        elif not spec.recomputes:
            gaps = row_gaps(held, spec, reserved - stored)
        layers.append(
            LayerBytes(
                layer.index, layer.kind, predicted, stored, reserved, tuple(gap for gap in gaps if gap.num_bytes)
            )
        )
    allocator = torch.cuda.memory_allocated() if info.device.startswith("cuda") else None
    return CacheBytes(tuple(layers), looking, process, allocator)


def growth_bytes(info: ModelInfo, spec: CacheSpec, lives: Sequence[LiveSequence]) -> int:
    """What the caches of these sequences would take more after all of their tokens were fed, by formula, and their
    logits in float32: the least that the next steps want."""
    formula, more = CacheFormula(spec, info.geometry, info.dtype), 0
    for live in lives:
        tokens = max(len(live.sequence.token_ids), live.sequence.num_tokens + 1)
        fill = Fill(tokens, min(tokens, live.sequence.num_prompt_tokens))
        then = sum(formula.layer(layer, fill).reserved for layer in info.geometry.layers)
        now = sum(one.reserved for one in live.cache.all_bytes())
        more += max(0, then - now) + 4 * (info.geometry.vocab_size or 0)
    return more


def row_gaps(held: list[HeldBytes], spec: CacheSpec, unfilled: int) -> list[ByteGap]:
    """What one layer takes beside the numbers of its tokens, over all sequences; `unfilled` is reserved, not stored."""
    positions = sum(one.positions for one in held)
    room = "padding to the reserved length" if spec.layout == "static" else "room to grow"
    return [
        ByteGap("scales and offsets", sum(one.scales for one in held), "stored"),
        ByteGap("exact residual", sum(one.residual for one in held), "stored"),
        ByteGap("positions of the rows kept", positions, "reserved"),
        ByteGap(room, max(0, unfilled - positions), "reserved"),
        dequantised_copy(held),
        ByteGap("rows kept for going back", sum(one.journal for one in held), "looking"),
        rule_scores(held),
    ]


def page_gaps(held: list[HeldBytes], shared: HeldBytes, slack: int, unfilled: int) -> list[ByteGap]:
    """The same of a layer in pages; `slack` is the room behind the rows in the pages of every sequence."""
    slack = max(0, min(slack, unfilled))
    return [
        ByteGap("scales and offsets", sum(one.scales for one in held) - shared.scales, "stored"),
        ByteGap("page slack", slack, "reserved"),
        ByteGap("pages not in use", max(0, unfilled - slack), "reserved"),
        dequantised_copy(held),
        rule_scores(held),
    ]


def dequantised_copy(held: list[HeldBytes]) -> ByteGap:
    """Sequences are computed one after the other, so the largest copy is all there ever is."""
    return ByteGap("dequantised copy", max((one.dequantised for one in held), default=0), "transient")


def rule_scores(held: list[HeldBytes]) -> ByteGap:
    """The attention that rules such as H2O add up and SnapKV notes: a number for every row, or for several queries."""
    return ByteGap("attention that the rule remembers", sum(one.scores for one in held), "looking")
