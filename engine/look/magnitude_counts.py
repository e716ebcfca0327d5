"""Histograms of magnitudes on a logarithmic scale, sixteen bins to the octave, computed from the bits of float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct

COUNTED_AT_ONCE = 1 << 17  # numbers

_SHIFT = 19  # bits dropped of the 23 of a mantissa, so that four are kept
_NO_SIGN = (1 << 31) - 1
_LOW, _HIGH = (127 - 40) << 4, (127 + 24) << 4  # 2**-40 to 2**24; the end bins take the rest
EDGES = (np.arange(_LOW, _HIGH + 1, dtype=np.uint32) << _SHIFT).view(np.float32).astype(np.float64)
EDGES[0] = 0.0


@dataclass(eq=False)
class Counts:
    """Histograms of a lens in layers of one shape: `counts` `[L, bins]` of finite magnitudes, and `peak` `[L, H, D]`,
    per channel the finite number farthest from zero. `num_rows` rows of each layer are included. `ranges` `[L, 3]`
    caches what was computed from them (colour limit, largest magnitude, share beyond the limit); None since rows were
    added."""

    counts: npt.NDArray[np.int64]
    peak: npt.NDArray[np.float32]
    num_rows: int
    ranges: npt.NDArray[np.float64] | None = None

    def copy(self) -> Counts:
        return Counts(self.counts.copy(), self.peak.copy(), self.num_rows, self.ranges)

    def part(self, places: slice | list[int]) -> Counts:
        """The histograms of some of the layers; views where these are consecutive."""
        return Counts(self.counts[places], self.peak[places], self.num_rows)

    def add(self, later: Counts) -> Counts:
        """Add the histograms of later rows of the same layers, in place."""
        self.counts += later.counts
        put_peak(self.peak, later.peak)
        self.num_rows += later.num_rows
        self.ranges = None
        return self


class LayerCount(Struct, frozen=True, eq=False):
    """The histogram of one layer, which is number `place` of several."""

    of: Counts
    place: int

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self.of.counts[self.place]
        return found

    @property
    def peak(self) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self.of.peak[self.place]
        return found

    @property
    def num_rows(self) -> int:
        return self.of.num_rows


def put_peak(peak: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> None:
    """Replace numbers in `peak` by those in `other` that are farther from zero."""
    np.copyto(peak, other, where=np.abs(other) > np.abs(peak))


def joined(layers: Sequence[LayerCount]) -> Counts:
    """The histograms of some layers, of equally many rows, as one: the object that has all of them if it has no others,
    else a copy."""
    of = layers[0].of
    if [each.of for each in layers] == [of] * len(of.counts) and [each.place for each in layers] == [
        *range(len(layers))
    ]:
        return of
    return Counts(np.stack([each.counts for each in layers]), np.stack([each.peak for each in layers]), of.num_rows)


def counted(numbers: torch.Tensor, positions: torch.Tensor | None, num_tokens: int) -> Counts:
    """Histograms of the rows `[L, H, T, D]` of layers, whose positions `[L, H, T]` are given only if they are not
    consecutive: then rows of later tokens than the first `num_tokens` are left out. Few numbers at a time, so that
    temporary tensors stay small beside a long cache."""
    num_layers, heads, num_rows, dims = numbers.shape
    if 0 < numbers.numel() <= COUNTED_AT_ONCE:
        return Counts(*_count(numbers, positions, num_tokens), num_rows)
    made = np.zeros((num_layers, _HIGH - _LOW), np.int64), np.zeros((num_layers, heads, dims), np.float32)
    layers_at_once = max(1, COUNTED_AT_ONCE // max(1, heads * num_rows * dims))
    rows_at_once = max(1, COUNTED_AT_ONCE // max(1, heads * dims))
    for layer in range(0, num_layers, layers_at_once):
        layers = slice(layer, layer + layers_at_once)
        for start in range(0, num_rows, rows_at_once):
            part = layers, slice(None), slice(start, start + rows_at_once)
            counts, peak = _count(numbers[part], None if positions is None else positions[part], num_tokens)
            made[0][layers] += counts
            put_peak(made[1][layers], peak)
    return Counts(*made, num_rows)


def _count(
    numbers: torch.Tensor, positions: torch.Tensor | None, num_tokens: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    values = numbers.float()
    if positions is not None:
        is_later = positions >= num_tokens
        if bool(is_later.any()):  # where positions are not consecutive, rows of later steps may be among them
            values = values.masked_fill(is_later[..., None], torch.nan)
    # without the sign bit, the bits of floats are in the order of their magnitudes
    bins = (values.view(torch.int32) & _NO_SIGN).bitwise_right_shift_(_SHIFT).clamp_(_LOW, _HIGH - 1)
    peak = farthest_from_zero(values, 2).cpu().numpy()
    if not np.isfinite(peak).all():
        is_finite = values.isfinite()
        bins.masked_fill_(~is_finite, _HIGH)
        peak = farthest_from_zero(values.masked_fill(~is_finite, 0.0), 2).cpu().numpy()
    num_bins = _HIGH - _LOW + 1  # the last one has what is no number
    first = torch.arange(-_LOW, len(bins) * num_bins - _LOW, num_bins, dtype=torch.int32, device=bins.device)
    found = histogram(bins.add_(first[:, None, None, None]).flatten(), len(bins) * num_bins)
    return found.reshape(-1, num_bins)[:, :-1], peak


def farthest_from_zero(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The number farthest from zero along a dimension, with its sign; NaN if any is NaN."""
    low, high = values.amin(dim), values.amax(dim)
    return torch.where(-low >= high, low, high)


def histogram(bins: torch.Tensor, count: int) -> npt.NDArray[np.int64]:
    """How often each of `count` numbers occurs; on a CPU numpy counts five times faster than torch."""
    if bins.device.type != "cpu":
        return torch.bincount(bins, minlength=count).cpu().numpy()
    return np.bincount(bins.numpy(), minlength=count)
