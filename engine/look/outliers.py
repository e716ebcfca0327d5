"""The largest numbers of K and V and where they are, and the tokens that receive most of the newest query's
attention."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch

from engine.cache.stacking import on_one_device
from engine.geometry.dimensions import CacheGeometry
from engine.look.lenses import held_of_all
from engine.look.magnitude_counts import LayerCount
from engine.look.magnitudes import magnitudes_of
from engine.look.reductions import ms_since
from engine.look.seen import Seen
from engine.look.source import PARTS, Source, provenance_of
from engine.spec.codec import Part
from engine.spec.lenses import LENSES
from engine.wire.pictures import Attended, Outlier, OutliersPicture, OutliersRequest


def outliers_picture(
    request: OutliersRequest,
    source: Source,
    geometry: CacheGeometry,
    seen: Seen,
    attention: Mapping[int, torch.Tensor],
    num_attended: int,
) -> OutliersPicture:
    """The list for the window. `attention` `[H, S]` by layer: weights of the newest of `num_attended` tokens, NaN where
    a row had been evicted."""
    began = time.perf_counter()
    held = held_of_all(source, LENSES["keys"], [layer.index for layer in geometry.attention_layers])
    keys, values = (seen.blocks.of(LENSES[part], source, held) for part in PARTS)
    return OutliersPicture(
        request=request,
        provenance=provenance_of(source, sorted(keys.keys() | values.keys())),
        keys=largest(keys, source, "keys", request.count),
        values=largest(values, source, "values", request.count),
        attended=most_attended(attention, geometry, request.count, num_attended),
        note=source.why_not or ("" if keys or values else "No K and V are held now."),
        took_ms=ms_since(began),
    )


def largest(counts: Mapping[int, LayerCount], source: Source, tensor: Part, how_many: int) -> tuple[Outlier, ...]:
    """The channels whose largest number is farthest beyond the colour range of their layer, one entry each. Not tokens
    and not bare numbers, because the same channel is large at many tokens, and layers differ in scale."""
    limits = magnitudes_of(list(counts.values())).limit
    found: list[tuple[float, int, int, int]] = []
    for (layer, count), limit in zip(counts.items(), limits, strict=True):
        if limit > 0:
            ratios = (np.abs(count.peak) / limit).ravel()
            best = np.argsort(-ratios)[:how_many]
            heads, channels = np.unravel_index(best, count.peak.shape)
            found += zip(ratios[best].tolist(), [layer] * len(best), heads.tolist(), channels.tolist(), strict=True)
    chosen_ones = sorted(found, key=lambda one: -one[0])[:how_many]
    return tuple(_located(source, tensor, layer, head, channel, ratio) for ratio, layer, head, channel in chosen_ones)


def _located(source: Source, tensor: Part, layer: int, head: int, channel: int, ratio: float) -> Outlier:
    """The entry of a channel: the token at which its number is largest."""
    rows = source.rows(layer, tensor, head=head)
    assert rows is not None, "a layer that was counted holds rows"
    column = rows.numbers[0, :, channel].float().nan_to_num(0.0, 0.0, 0.0)
    if rows.positions is not None:
        column = column.masked_fill(rows.positions[0] >= source.num_tokens, 0.0)
    slot = int(column.abs().argmax())
    position = rows.first + slot if rows.positions is None else int(rows.positions[0, slot])
    is_coded = source.exact_from(layer, tensor) > position
    return Outlier(layer, head, channel, position, float(column[slot]), ratio, is_coded)


def most_attended(
    attention: Mapping[int, torch.Tensor], geometry: CacheGeometry, how_many: int, num_tokens: int
) -> tuple[Attended, ...]:
    """The positions with the largest mean weight over all layers and heads, each with the head that gave it most."""
    together = on_one_device(attention.values())
    rows = {layer: row.float().nan_to_num(0.0) for layer, row in zip(attention, together, strict=True)}
    if not rows:
        return ()
    length = max(row.shape[1] for row in rows.values())
    # rows end at the newest token: a shorter row begins at a later position
    aligned = torch.cat([torch.nn.functional.pad(row, (length - row.shape[1], 0)) for row in rows.values()])
    owners = [(layer, head) for layer, row in rows.items() for head in range(row.shape[0])]
    mean, first = aligned.mean(0), max(0, num_tokens - length)  # where every layer keeps a window
    found = []
    for column in mean.topk(min(how_many, length)).indices.tolist():
        layer, head = owners[int(aligned[:, column].argmax())]
        group = max(1, geometry.layers[layer].num_heads // max(1, geometry.layers[layer].num_kv_heads))
        most = float(aligned[:, column].max())
        found.append(Attended(first + column, float(mean[column]), layer, head, head // group, most))
    return tuple(found)
