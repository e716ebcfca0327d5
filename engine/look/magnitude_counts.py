"""Histograms of magnitudes on a logarithmic scale, sixteen bins to the octave, computed from the bits of float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.contract import HeldRows
from engine.cache.stacking import on_one_device, stacked_view

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
    """Histogram of K or of V in one layer: `counts` `[bins]` of finite magnitudes, and `peak` `[H_kv, D]`, per channel
    the finite number farthest from zero. `num_rows` rows are included. `ranges` caches what was computed from them
    (colour limit, largest magnitude, share beyond the limit); None since rows were added. In the channels `unsearched`
    `[H_kv, D]`, `peak` is that of rows which were taken out: no other number is farther from zero."""

    counts: npt.NDArray[np.int64]
    peak: npt.NDArray[np.float32]
    num_rows: int
    ranges: tuple[float, float, float] | None = None
    unsearched: npt.NDArray[np.bool_] | None = None

    def add(self, other: LayerCount) -> None:
        """Add the histogram of later rows, in place: both may be views of a `StackedCounts`."""
        self.counts += other.counts
        update_peak(self.peak, other.peak)
        self.num_rows += other.num_rows
        self.ranges = None

    def with_later(self, other: LayerCount) -> LayerCount:
        """A new histogram of these and of later rows."""
        unsearched = None if self.unsearched is None else self.unsearched & (np.abs(other.peak) < np.abs(self.peak))
        made = LayerCount(self.counts.copy(), self.peak.copy(), self.num_rows, unsearched=unsearched)
        made.add(other)
        return made

    def without_later(self, later: LayerCount) -> LayerCount:
        """A copy with the histogram of its latest rows subtracted. A channel whose peak may lie in these is left
        `unsearched`."""
        unsearched = np.abs(later.peak) >= np.abs(self.peak)
        if self.unsearched is not None:
            unsearched |= self.unsearched
        num_rows = self.num_rows - later.num_rows
        return LayerCount(self.counts - later.counts, self.peak.copy(), num_rows, unsearched=unsearched)

    def needs_search(self, *, every_channel: bool) -> bool:
        """Whether rows must be searched for the largest number of all, or of `every_channel`."""
        if self.unsearched is None:
            return False
        if every_channel:
            return bool(self.unsearched.any())
        sizes = np.abs(self.peak)
        return bool(sizes[self.unsearched].max(initial=0.0) > sizes[~self.unsearched].max(initial=0.0))

    def search(self, rows: torch.Tensor) -> None:
        """Find the peaks of unsearched channels in the rows `[H_kv, num_rows, D]` that are counted."""
        if self.unsearched is not None and self.unsearched.any():
            heads, channels = map(torch.from_numpy, np.nonzero(self.unsearched))
            values = rows[heads, :, channels].float().nan_to_num(0.0, 0.0, 0.0)
            low, high = values.amin(1), values.amax(1)
            self.peak[self.unsearched] = torch.where(-low > high, low, high).cpu().numpy()
        self.unsearched = None


class StackedCounts:
    """Histograms of several tensors of equal shape in one array, so that new rows of all are added at once."""

    def __init__(self, parts: Sequence[LayerCount]) -> None:
        self._parts = tuple(parts)
        self._counts = np.stack([part.counts for part in parts])  # [N, bins]
        self._peak = np.stack([part.peak for part in parts])  # [N, H_kv, D]
        for part, counts, peak in zip(parts, self._counts, self._peak, strict=True):
            part.counts, part.peak = counts, peak

    def holds(self, parts: Sequence[LayerCount]) -> bool:
        """Whether it consists of these histograms, in this order, and none of them has since become part of another
        one."""
        return len(parts) == len(self._parts) and all(
            mine is part and part.counts.base is self._counts for mine, part in zip(self._parts, parts, strict=True)
        )

    def add(self, counts: npt.NDArray[np.int64], peak: npt.NDArray[np.float32], num_rows: int) -> None:
        """Add what `counts_of_rows` returned for `num_rows` more rows of each."""
        self._counts += counts
        update_peak(self._peak, peak)
        for part in self._parts:
            part.num_rows += num_rows
            part.ranges = None


def update_peak(peak: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> None:
    """Replace numbers in `peak` by those in `other` that are farther from zero."""
    np.copyto(peak, other, where=np.abs(other) > np.abs(peak))


def counts_of_rows(
    tensors: Sequence[torch.Tensor], first: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Histograms `[N, bins]` and peaks `[N, H_kv, D]` of tensors `[H_kv, T, D]` of equal shape, from row `first` on.
    For a few rows; for many see `counted`."""
    stacked = stacked_view(on_one_device(tensors))[:, :, first:].float().cpu().contiguous()  # [N, H_kv, T, D]
    values, num_bins = stacked.numpy(), _HIGH - _LOW
    num_tensors = len(values)
    # without the sign bit, the bits of floats are in the order of their magnitudes
    bins = np.abs(values).view(np.int32).reshape(num_tensors, -1)
    bins >>= _SHIFT
    is_finite = slice(None) if bins.max(initial=0) < _FINITE else np.isfinite(values).ravel()
    np.maximum(bins, _LOW, out=bins)
    np.minimum(bins, _HIGH - 1, out=bins)
    bins += np.arange(num_tensors, dtype=np.int32)[:, None] * num_bins - _LOW
    places = bins.ravel()[is_finite]
    counts = np.bincount(places, minlength=num_tensors * num_bins).reshape(num_tensors, num_bins)
    if len(places) < bins.size:
        stacked = stacked.nan_to_num(0.0, 0.0, 0.0)
    low, high = stacked.amin(2), stacked.amax(2)
    return counts, torch.where(-low > high, low, high).numpy()


def counted(
    items: Sequence[tuple[int, HeldRows, torch.Tensor, int]], num_tokens: int
) -> Iterable[tuple[int, LayerCount]]:
    """Yield histograms of layers `(index, rows, tensor [1, H_kv, S, D], first row to count)`, of rows of the first
    `num_tokens` tokens only; layers of equal shape are computed together."""
    forms: dict[object, list[LayerRows]] = {}
    for layer, rows, tensor, start in items:
        new = tensor[0, :, start:]
        places = None if rows.positions is None else rows.positions[:, start:]
        form = (new.shape, new.dtype, new.device, places is None)
        forms.setdefault(form, []).append((layer, new, places))
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
