"""The largest numbers of K and V and where they are, and the tokens that receive most of the newest query's
attention."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch
from torch.nn.functional import pad

from engine.cache.stacking import on_one_device
from engine.geometry.dimensions import CacheGeometry
from engine.look.lenses import held_of_all
from engine.look.magnitude_counts import Counts, LayerCount
from engine.look.magnitudes import ranges_of
from engine.look.reductions import as_slice, ms_since
from engine.look.seen import Peaks, Seen
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
        keys=largest(keys, source, "keys", request.count, seen.peaks),
        values=largest(values, source, "values", request.count, seen.peaks),
        attended=most_attended(attention, geometry, request.count, num_attended),
        note=source.why_not or ("" if keys or values else "No K and V are held now."),
        took_ms=ms_since(began),
    )


def largest(
    counts: Mapping[int, LayerCount], source: Source, tensor: Part, how_many: int, known: Peaks
) -> tuple[Outlier, ...]:
    """The channels whose largest number is farthest beyond the colour range of their layer, one entry each. Not tokens
    and not bare numbers, because the same channel is large at many tokens, and layers differ in scale."""
    limits, together = ranges_of(list(counts.values()))[:, 0], dict[Counts, list[tuple[int, int, float]]]()
    for (layer, count), limit in zip(counts.items(), limits.tolist(), strict=True):
        if limit > 0:
            together.setdefault(count.of, []).append((layer, count.place, limit))
    found: list[tuple[float, int, int, int, float]] = []
    for of, members in together.items():
        layers, places, limits_of = zip(*members, strict=True)
        peak = of.peak[as_slice(places)]
        ratios = (np.abs(peak) / np.array(limits_of)[:, None, None]).ravel()
        count = min(how_many, ratios.size)
        least = np.partition(ratios, -count)[-count]
        best = np.flatnonzero(ratios >= least)  # equal ones all: which are listed is decided by their places
        numbers, heads, channels = np.unravel_index(best, peak.shape)
        those = [layers[number] for number in numbers]
        columns = ratios[best], those, heads, channels, peak.ravel()[best]
        found += zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    return tuple([_located(source, tensor, known, *one) for one in sorted(found, key=_order)[:how_many]])


def _order(one: tuple[float, ...]) -> tuple[float, ...]:
    """Larger ratios first; where they are equal, by place."""
    return -one[0], *one[1:]


def _located(
    source: Source, tensor: Part, known: Peaks, ratio: float, layer: int, head: int, channel: int, peak: float
) -> Outlier:
    """The entry of a channel: the token at which its number is largest. That of a row which no later step overwrites is
    searched once."""
    place = tensor, layer, head, channel
    found = known.get(place)
    if found is None or found[1] != peak:
        found = _position_of_largest(source, tensor, layer, head, channel)
        if found[0] < source.num_final(layer, tensor):
            known[place] = found
    position, value = found
    is_coded = source.exact_from(layer, tensor) > position
    return Outlier(layer, head, channel, position, value, ratio, is_coded)


def _position_of_largest(source: Source, tensor: Part, layer: int, head: int, channel: int) -> tuple[int, float]:
    """The position at which a channel has its number farthest from zero, and that number."""
    rows = source.rows(layer, tensor, head=head)
    assert rows is not None, "a layer that was counted holds rows"
    column = rows.numbers[0, :, channel].float().nan_to_num(0.0, 0.0, 0.0)
    if rows.positions is not None:
        column = column.masked_fill(rows.positions[0] >= source.num_tokens, 0.0)
    slot = int(column.abs().argmax())
    return rows.first + slot if rows.positions is None else int(rows.positions[0, slot]), float(column[slot])


def most_attended(
    attention: Mapping[int, torch.Tensor], geometry: CacheGeometry, how_many: int, num_tokens: int
) -> tuple[Attended, ...]:
    """The positions with the largest mean weight over all layers and heads, each with the head that gave it most."""
    rows = on_one_device(attention.values())
    if not rows:
        return ()
    length = max([row.shape[1] for row in rows])
    # rows end at the newest token: a shorter row begins at a later position
    padded = [row if row.shape[1] == length else pad(row, (length - row.shape[1], 0)) for row in rows]
    aligned = torch.cat(padded).float().nan_to_num(0.0)
    owners = [(layer, head) for layer, row in zip(attention, rows, strict=True) for head in range(row.shape[0])]
    mean, first = aligned.mean(0), max(0, num_tokens - length)  # where every layer keeps a window
    weights, columns = mean.topk(min(how_many, length))
    most, givers = aligned[:, columns].max(0)
    found = []
    for column, weight, much, giver in zip(*(each.tolist() for each in (columns, weights, most, givers)), strict=True):
        layer, head = owners[giver]
        group = max(1, geometry.layers[layer].num_heads // max(1, geometry.layers[layer].num_kv_heads))
        found.append(Attended(first + column, weight, layer, head, head // group, much))
    return tuple(found)
