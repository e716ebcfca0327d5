"""Where the largest numbers of K and V stand, and which tokens the newest query attends to most."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch

from engine.commands import OutliersRequest
from engine.geometry import CacheGeometry
from engine.magnitudes import LayerCount
from engine.records import Attended, Outlier, OutliersSlice, Provenance


def outliers_slice(
    request: OutliersRequest,
    provenance: Provenance,
    geometry: CacheGeometry,
    keys: Mapping[int, LayerCount],
    values: Mapping[int, LayerCount],
    attention: Mapping[int, torch.Tensor],
) -> OutliersSlice:
    """`keys` and `values` by layer; `attention` `[H, S]` by layer, NaN where a row had been dropped."""
    began = time.perf_counter()
    return OutliersSlice(
        request=request,
        provenance=provenance,
        keys=largest(keys, request.count),
        values=largest(values, request.count),
        attended=most_attended(attention, geometry, request.count),
        note="" if keys or values else "No K and V are held now.",
        took_ms=(time.perf_counter() - began) * 1e3,
    )


def largest(counts: Mapping[int, LayerCount], how_many: int) -> tuple[Outlier, ...]:
    """The channels farthest beyond the range of their layer, one line each: the same channel is large at many tokens,
    and layers differ in size, so that neither tokens nor bare values would make a list worth reading."""
    found: list[Outlier] = []
    for layer, count in counts.items():
        limit = count.limit
        if not limit:
            continue
        sizes = np.abs(count.peak).ravel()
        for place in np.argsort(-sizes)[:how_many]:
            head, channel = np.unravel_index(int(place), count.peak.shape)
            value = float(count.peak[head, channel])
            position = int(count.position[head, channel])
            found.append(Outlier(layer, int(head), int(channel), position, value, abs(value) / limit))
    return tuple(sorted(found, key=lambda one: -one.ratio)[:how_many])


def most_attended(
    attention: Mapping[int, torch.Tensor], geometry: CacheGeometry, how_many: int
) -> tuple[Attended, ...]:
    """The positions with the largest weight in the mean of all layers and heads, and the head that gave each most."""
    rows = {layer: row.float().nan_to_num(0.0) for layer, row in attention.items()}
    if not rows:
        return ()
    length = max(row.shape[1] for row in rows.values())
    # rows end at the newest token: a shorter one begins later
    aligned = torch.cat([torch.nn.functional.pad(row, (length - row.shape[1], 0)) for row in rows.values()])
    owners = [(layer, head) for layer, row in rows.items() for head in range(row.shape[0])]
    mean = aligned.mean(0)
    found = []
    for position in mean.topk(min(how_many, length)).indices.tolist():
        layer, head = owners[int(aligned[:, position].argmax())]
        group = max(1, geometry.layers[layer].num_heads // max(1, geometry.layers[layer].num_kv_heads))
        most = float(aligned[:, position].max())
        found.append(Attended(position, float(mean[position]), layer, head, head // group, most))
    return tuple(found)
