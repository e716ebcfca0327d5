"""Histograms of magnitudes on a logarithmic scale, sixteen bins to the octave, computed from the bits of float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.stacking import on_one_device

COUNTED_AT_ONCE = 1 << 17  # numbers

_SHIFT = 19  # bits dropped of the 23 of a mantissa, so that four are kept
_BINS = 1 << (31 - _SHIFT)
_FINITE = 255 << (23 - _SHIFT)  # the exponent 255 is that of infinities and NaN
_LOW, _HIGH = (127 - 40) << 4, (127 + 24) << 4  # 2**-40 to 2**24; the end bins take the rest
EDGES = (np.arange(_LOW, _HIGH + 1, dtype=np.uint32) << _SHIFT).view(np.float32).astype(np.float64)
EDGES[0] = 0.0

# A layer, its rows [H_kv, T, D], and their positions [H_kv, T] if these are not consecutive
LayerRows = tuple[int, torch.Tensor, torch.Tensor | None]


@dataclass(eq=False)
class LayerCount:
    """Histogram of a lens in one layer: `counts` `[bins]` of finite magnitudes, and `peak` `[H, D]`, per channel the
    finite number farthest from zero. `num_rows` rows are included. `ranges` caches what was computed from them (colour
    limit, largest magnitude, share beyond the limit); None since rows were added."""

    counts: npt.NDArray[np.int64]
    peak: npt.NDArray[np.float32]
    num_rows: int
    ranges: tuple[float, float, float] | None = None

    def copy(self) -> LayerCount:
        return LayerCount(self.counts.copy(), self.peak.copy(), self.num_rows, self.ranges)

    def add(self, later: LayerCount) -> LayerCount:
        """Add the histogram of later rows, in place."""
        self.counts += later.counts
        np.copyto(self.peak, later.peak, where=np.abs(later.peak) > np.abs(self.peak))
        self.num_rows += later.num_rows
        self.ranges = None
        return self


def counted(items: Sequence[LayerRows], num_tokens: int) -> Iterable[tuple[int, LayerCount]]:
    """Yield histograms of the rows of layers, where positions are given only of those of the first `num_tokens` tokens;
    layers of equal shape are computed together."""
    forms: dict[object, list[LayerRows]] = {}
    for item in items:
        _, new, places = item
        forms.setdefault((new.shape, new.dtype, new.device, places is None), []).append(item)
    for parts in forms.values():
        at_once = max(1, COUNTED_AT_ONCE // max(1, parts[0][1].numel()))
        for start in range(0, len(parts), at_once):
            yield from _count_in_pieces(parts[start : start + at_once], num_tokens)


def _count_in_pieces(parts: Sequence[LayerRows], num_tokens: int) -> Iterable[tuple[int, LayerCount]]:
    """Histograms of layers of equal shape, computed for a limited number of rows at a time, so that temporary tensors
    stay small beside a long cache."""
    _, new, _ = parts[0]
    heads, num_rows, dims = new.shape
    rows_at_once = max(1, COUNTED_AT_ONCE // max(1, heads * dims))
    found: dict[int, LayerCount] = {}
    for start in range(0, max(1, num_rows), rows_at_once):
        rows = slice(start, start + rows_at_once)
        piece = [(layer, new[:, rows], None if at is None else at[:, rows]) for layer, new, at in parts]
        for layer, count in _count_stacked(piece, num_tokens):
            if layer in found:
                found[layer].add(count)
            else:
                found[layer] = count
    return found.items()


def _count_stacked(parts: Sequence[LayerRows], num_tokens: int) -> Iterable[tuple[int, LayerCount]]:
    values = torch.stack(on_one_device(new for _, new, _ in parts)).float()  # [L, H_kv, T, D]
    num_layers, heads, num_rows, dims = values.shape
    if not num_rows:
        for layer, _, _ in parts:
            yield layer, LayerCount(np.zeros(_HIGH - _LOW, np.int64), np.zeros((heads, dims), np.float32), 0)
        return
    if any(places is not None for _, _, places in parts):
        is_later = torch.stack(on_one_device(at for _, _, at in parts if at is not None)) >= num_tokens
        if bool(is_later.any()):  # where positions are not consecutive, rows of later steps may be among them
            values = values.masked_fill(is_later[..., None], torch.nan)
    # without the sign bit, the bits of floats are in the order of their magnitudes
    bins = ((values.view(torch.int32) >> _SHIFT) & (_BINS - 1)).flatten(1)
    bins += torch.arange(num_layers, dtype=torch.int32, device=values.device)[:, None] * _BINS
    found = _histogram(bins.flatten(), num_layers * _BINS).view(num_layers, _BINS)
    counts = found[:, _LOW:_HIGH].clone()
    counts[:, 0] += found[:, :_LOW].sum(1)
    counts[:, -1] += found[:, _HIGH:_FINITE].sum(1)
    if bool(found[:, _FINITE:].any()):
        values = values.masked_fill(~values.isfinite(), 0.0)
    low, high = values.amin(2), values.amax(2)
    kept, peak = counts.cpu().numpy(), torch.where(-low > high, low, high).cpu().numpy()
    for index, (layer, _, _) in enumerate(parts):
        yield layer, LayerCount(kept[index], peak[index], num_rows)


def _histogram(bins: torch.Tensor, count: int) -> torch.Tensor:
    """How often each of `count` numbers occurs; on a CPU numpy counts five times faster than torch."""
    if bins.device.type != "cpu":
        return torch.bincount(bins, minlength=count)
    return torch.from_numpy(np.bincount(bins.numpy(), minlength=count))
