"""How large the numbers of a layer are: what colours span, the largest of all, and where it stands.

Magnitudes are counted on a logarithmic scale, sixteen bins to the octave, read straight from the bits of a float32. A
cache that only appends is counted as it grows, O(new rows); any other, and any earlier step, is counted anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.adapter import HeldRows, SequenceCache
from engine.commands import TensorName
from engine.records import Magnitudes
from engine.slices import Past, chosen

QUANTILE = 0.995
# A channel apart is 1 / (H_kv * D) of a layer: more than the quantile leaves out in small layers. It shall not decide
# the colours of all others, so these reach no further than so many medians (normal numbers: 4.2 at the quantile).
MEDIANS = 8.0
COUNTED_AT_ONCE = 1 << 21

_SHIFT = 19  # of the 23 bits of a mantissa four are kept
_BINS = 1 << (31 - _SHIFT)
_FINITE = 255 << (23 - _SHIFT)  # the exponent 255 is that of infinities and NaN
_EDGES = (np.arange(_FINITE + 1, dtype=np.uint32) << _SHIFT).view(np.float32).astype(np.float64)
_EDGES[-1] = np.finfo(np.float32).max


@dataclass(eq=False)
class LayerCount:
    """One tensor of one layer: counts of magnitudes `[bins]`, and per kv head and channel `[H_kv, D]` the finite number
    farthest from zero and its position. `num_rows` of them are in."""

    counts: npt.NDArray[np.int64]
    peak: npt.NDArray[np.float32]
    position: npt.NDArray[np.int64]
    num_rows: int

    def add(self, other: LayerCount) -> None:
        """Take in the count of later rows."""
        is_larger = np.abs(other.peak) > np.abs(self.peak)
        self.counts += other.counts
        self.peak = np.where(is_larger, other.peak, self.peak)
        self.position = np.where(is_larger, other.position, self.position)
        self.num_rows += other.num_rows

    @property
    def largest(self) -> float:
        return float(np.abs(self.peak).max()) if self.peak.size else 0.0

    def quantile(self, share: float) -> float:
        """The magnitude below which that share of the finite numbers lies, to a part in sixteen of an octave."""
        running = np.cumsum(self.counts[:_FINITE])
        if not running[-1]:
            return 0.0
        target = share * float(running[-1])
        bin_ = int(np.searchsorted(running, target))
        before = float(running[bin_ - 1]) if bin_ else 0.0
        part = (target - before) / float(self.counts[bin_])
        return float(_EDGES[bin_] + part * (_EDGES[bin_ + 1] - _EDGES[bin_]))

    @property
    def limit(self) -> float:
        """What colours span: nearly all of the numbers, yet not what stands far apart from the rest of them."""
        most, median = self.quantile(QUANTILE), self.quantile(0.5)
        return min(most, self.largest, MEDIANS * median if median else most)

    def share_beyond(self, limit: float) -> float:
        """The part of the finite numbers whose magnitude is larger than that."""
        counts = self.counts[:_FINITE].astype(np.float64)
        total = counts.sum()
        if not total or limit >= self.largest:
            return 0.0
        bin_ = int(np.searchsorted(_EDGES, limit, "right")) - 1
        rest = (_EDGES[bin_ + 1] - limit) / (_EDGES[bin_ + 1] - _EDGES[bin_])
        return float((counts[bin_ + 1 :].sum() + counts[bin_] * rest) / total)


class RowMagnitudes:
    """The counts of one sequence's cache, each taken when somebody first looks, and kept up as rows come.

    `forget` must be called when rows that were counted may have been written anew: after a rewind, or a failed step.
    """

    def __init__(self, cache: SequenceCache) -> None:
        self.cache = cache
        self._live: dict[tuple[TensorName, int], LayerCount] = {}
        self._other: dict[tuple[TensorName, int], tuple[object, LayerCount]] = {}

    def forget(self) -> None:
        self._live.clear()
        self._other.clear()

    @torch.inference_mode()
    def of(self, tensor: TensorName, past: Past, layers: Iterable[int]) -> dict[int, LayerCount]:
        """The counts of the rows that those layers held when the sequence had as many tokens."""
        found: dict[int, LayerCount] = {}
        wanted: list[tuple[int, HeldRows, int]] = []
        stamp = (past.num_tokens, past.cache.num_tokens, past.provenance)
        for layer in layers:
            key = (tensor, layer)
            other = self._other.get(key)
            if other is not None and other[0] == stamp:
                found[layer] = other[1]
                continue
            rows = past.rows(layer)
            if rows is None:
                continue
            live = self._live.get(key)
            grows = past.cache.spec.is_append_only and rows.positions is None and rows.first == 0
            if grows and live is not None and live.num_rows <= rows.keys.shape[2]:
                found[layer] = live
                wanted += [(layer, rows, live.num_rows)] if live.num_rows < rows.keys.shape[2] else []
            else:
                wanted.append((layer, rows, 0))
        for layer, count in counted([(layer, rows, chosen(rows, tensor), n) for layer, rows, n in wanted], past):
            rows_of_layer = next(rows for at, rows, _ in wanted if at == layer)
            key = (tensor, layer)
            if layer in found:
                found[layer].add(count)
                continue
            found[layer] = count
            is_newest = past.num_tokens >= past.cache.num_tokens or key not in self._live
            if past.cache.spec.is_append_only and rows_of_layer.first == 0 and is_newest:
                self._live[key] = count
            else:
                self._other[key] = (stamp, count)
        return found


def counted(items: Sequence[tuple[int, HeldRows, torch.Tensor, int]], past: Past) -> Iterable[tuple[int, LayerCount]]:
    """Count layers `(index, rows, tensor [1, H_kv, S, D], first row to count)`; those of one form together."""
    forms: dict[object, list[tuple[int, torch.Tensor, torch.Tensor]]] = {}
    for layer, rows, tensor, start in items:
        new = tensor[0, :, start:]
        if rows.positions is not None:
            places = rows.positions[:, start:]
        else:
            first = rows.first + start
            places = torch.arange(first, first + new.shape[1], device=new.device).expand(new.shape[0], -1)
        forms.setdefault((new.shape, new.dtype, new.device), []).append((layer, new, places))
    for parts in forms.values():
        at_once = max(1, COUNTED_AT_ONCE // max(1, parts[0][1].numel()))
        for start in range(0, len(parts), at_once):
            some = parts[start : start + at_once]
            yield from _count_together(some, past.num_tokens)


def _count_together(
    parts: Sequence[tuple[int, torch.Tensor, torch.Tensor]], num_tokens: int
) -> Iterable[tuple[int, LayerCount]]:
    values = torch.stack([new for _, new, _ in parts]).float()  # [L, H_kv, T, D]
    places = torch.stack([places for _, _, places in parts])  # [L, H_kv, T]
    num_layers, heads, num_rows, dims = values.shape
    if not num_rows:
        empty = np.zeros((heads, dims), np.float32)
        for layer, _, _ in parts:
            yield layer, LayerCount(np.zeros(_BINS, np.int64), empty, np.zeros(empty.shape, np.int64), 0)
        return
    is_later = places >= num_tokens  # rows of later steps may stand among scattered ones
    if bool(is_later.any()):
        values = values.masked_fill(is_later[..., None], torch.nan)
    bins = (values.abs().view(torch.int32) >> _SHIFT).flatten(1)
    offsets = torch.arange(num_layers, dtype=torch.int32, device=values.device)[:, None] * _BINS
    counts = torch.bincount((bins + offsets).flatten(), minlength=num_layers * _BINS).view(num_layers, _BINS)
    sizes = values.abs().masked_fill(bins.view(values.shape) >= _FINITE, 0.0)
    slots = sizes.argmax(2, keepdim=True)  # [L, H_kv, 1, D]
    peak = values.gather(2, slots)[:, :, 0].nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
    where = places[..., None].expand_as(values).gather(2, slots)[:, :, 0].cpu().numpy()
    for index, (layer, _, _) in enumerate(parts):
        yield layer, LayerCount(counts[index].cpu().numpy().copy(), peak[index].copy(), where[index].copy(), num_rows)


def magnitudes_of(counts: Sequence[LayerCount]) -> Magnitudes:
    """What the window is told of each of those layers."""
    limits = [count.limit for count in counts]
    return Magnitudes(
        limit=np.array(limits, np.float32),
        largest=np.array([count.largest for count in counts], np.float32),
        clipped=np.array([c.share_beyond(limit) for c, limit in zip(counts, limits, strict=True)], np.float32),
    )
