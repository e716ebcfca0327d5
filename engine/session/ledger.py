"""The byte ledger of a session: predicted by formula, stored in rows, reserved in storage, held for looking."""

from __future__ import annotations

import torch

from engine.cache.compressed.cache import CompactCache
from engine.cache.compressed.layer import CompactLayer
from engine.cache.layers.adapter import SequenceCache, storage_bytes, tensors_of
from engine.cache.paged.cache import PageStore
from engine.geometry.dimensions import LayerGeometry
from engine.predict.bytes import CacheFormula, Fill
from engine.spec.cache import CacheSpec
from engine.wire.records import ByteGap, CacheBytes, LayerBytes, ModelInfo


def cache_bytes(
    info: ModelInfo,
    spec: CacheSpec,
    caches: list[SequenceCache],
    store: PageStore | None,
    looking: int,
    process: int,
) -> CacheBytes:
    """Sum over sequences, layer by layer. What a recomputing layout computes is held for looking, and by nobody else.

    In a page store a row that several sequences share is stored once, and the whole pool is reserved.
    """
    formula = CacheFormula(spec, info.geometry, info.dtype)
    fills = [Fill(cache.num_tokens, cache.prompt_ended_at) for cache in caches if cache.num_tokens]
    layers = []
    all_measured = [cache.all_bytes() for cache in caches]
    for layer in info.geometry.layers:
        measured = [per_layer[layer.index] for per_layer in all_measured if layer.index < len(per_layer)]
        stored, reserved = sum(s for s, _ in measured), sum(r for _, r in measured)
        if spec.recomputes:
            looking += reserved
            stored, reserved = 0, sum(idle_bytes(cache, layer.index) for cache in caches)
        predicted = sum(formula.stored_bytes(layer, fill) for fill in fills)
        if store is not None and layer.index in store.rows_of:
            num_shared = store.shared_rows(layer)
            stored -= num_shared * store.row_bytes(layer.index)
            predicted -= spec.codec.bytes_of(layer, num_shared, formula.width).total
            reserved = sum(rows.reserved_bytes for rows in store.rows_of[layer.index])
        gaps = layer_gaps(layer, spec, caches, store, stored, reserved)
        layers.append(LayerBytes(layer.index, layer.kind, predicted, stored, reserved, gaps))
    allocator = torch.cuda.memory_allocated() if info.device.startswith("cuda") else None
    return CacheBytes(tuple(layers), looking, process, allocator)


def layer_gaps(
    layer: LayerGeometry,
    spec: CacheSpec,
    caches: list[SequenceCache],
    store: PageStore | None,
    stored: int,
    reserved: int,
) -> tuple[ByteGap, ...]:
    """What the bytes of a layer are beside the numbers of its tokens; empty ones are left out."""
    gaps: list[ByteGap] = []
    compact = [found for cache in caches if (found := compact_layer(cache, layer.index)) is not None]
    if compact:
        parts = [part.stored for part in compact]
        positions = sum(int(part.positions.nbytes) for part in compact if part.positions is not None)
        is_coded = not spec.codec.is_exact
        gaps += [
            ByteGap("scales and offsets", sum(part.scales for part in parts), "stored"),
            ByteGap("exact residual", sum(part.exact for part in parts) if is_coded else 0, "stored"),
            ByteGap("positions of the rows kept", positions, "reserved"),
            ByteGap("room to grow", max(0, reserved - stored - positions), "reserved"),
            ByteGap("dequantised copy", max((part.dequantised_bytes for part in compact), default=0), "transient"),
            ByteGap("rows kept for going back", sum(part.journal_bytes for part in compact), "looking"),
        ]
    elif store is not None and layer.index in store.rows_of:
        pair = store.rows_of[layer.index]
        rows = stored // store.row_bytes(layer.index)
        longest = max((cache.layer_bytes(layer.index)[0] for cache in caches), default=0)
        copied = sum(part.exact_row_bytes for part in pair if not part.coding.is_exact)
        used = sum(cache.layer_bytes(layer.index)[1] - cache.layer_bytes(layer.index)[0] for cache in caches)
        slack = max(0, min(used, reserved - stored))
        gaps += [
            ByteGap("scales and offsets", rows * sum(part.scale_bytes for part in pair), "stored"),
            ByteGap("page slack", slack, "reserved"),
            ByteGap("pages not in use", max(0, reserved - stored - slack), "reserved"),
            ByteGap("dequantised copy", longest // store.row_bytes(layer.index) * copied, "transient"),
        ]
    elif reserved > stored:
        name = "padding to the reserved length" if spec.layout in ("static", "allocated") else "room to grow"
        gaps.append(ByteGap(name, reserved - stored, "reserved"))
    return tuple(gap for gap in gaps if gap.num_bytes)


def compact_layer(cache: SequenceCache, index: int) -> CompactLayer | None:
    return dict(cache.compact_layers).get(index) if isinstance(cache, CompactCache) else None


def idle_bytes(cache: SequenceCache, layer: int) -> int:
    """Room that is reserved and never read."""
    return sum(storage_bytes(t) for t in tensors_of(cache.idle.layers[layer])) if cache.idle else 0
