"""Statistics of a tile for colour scales: histogram, range and a robust limit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

HISTOGRAM_BINS = 64
ROBUST_QUANTILE = 0.995

FLOAT_MAX = np.finfo(np.float32).max
SMALLEST = np.finfo(np.float32).smallest_subnormal

Values = npt.NDArray[np.float32]


class TileStatistics:
    """The statistics of one tile, a tensor of any shape.

    `counts` and `edges` are a histogram of the finite numbers between minus and plus the largest magnitude; `limit`
    is the 99.5th percentile of the magnitudes of those that are not zero, exactly; 1 where there are none: zeros, such
    as those of edited rows, would let it collapse. For a tile on a GPU the counting runs there, and what is copied to
    the host does not grow with the tile.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self.limit = 1.0
        if values.device.type == "cuda" and values.numel():
            self._count_on_device(values.float().flatten())
        else:
            self._count(values.float().cpu().numpy())

    def _count(self, values: Values) -> None:
        """Count numbers of any shape by sorting them once, which takes a tenth of looking up the bin of every number;
        infinities are at both ends then, and NaN comes last."""
        ordered = np.sort(values, axis=None)
        num_below, stop, num_numbers = ordered.searchsorted(np.array([-FLOAT_MAX, np.inf, np.nan], np.float32))
        finite = ordered[num_below:stop]
        self.num_nan = ordered.size - int(num_numbers)
        self.num_inf = int(num_numbers) - finite.size
        self.lowest, self.highest = (float(finite[0]), float(finite[-1])) if finite.size else (0.0, 0.0)
        self._take_range(max(-self.lowest, self.highest))
        self.counts = np.diff(finite.searchsorted(self._edges[1:-1]), prepend=0, append=finite.size)
        zeros = finite.searchsorted(np.array([0.0, SMALLEST], np.float32))
        num_sized = finite.size - int(zeros[1] - zeros[0])
        if num_sized:  # the largest magnitudes are at the ends
            count = num_beyond(num_sized)
            ends = np.abs(np.concatenate([finite[:count], finite[-count:]]))
            self.limit = float(np.partition(ends, ends.size - count)[ends.size - count])

    def _count_on_device(self, values: torch.Tensor) -> None:
        """Count numbers `[N]` on a GPU; only seven numbers and the histogram are copied to the host."""
        is_finite = values.isfinite()
        magnitudes = values.abs().masked_fill(~is_finite, -1.0)
        found = torch.stack(
            (
                is_finite.sum().double(),
                (magnitudes > 0).sum().double(),
                values.isnan().sum().double(),
                magnitudes.amax().double(),
                values.masked_fill(~is_finite, torch.inf).amin().double(),
                values.masked_fill(~is_finite, -torch.inf).amax().double(),
            )
        )
        num_finite, num_sized, num_nan, largest, lowest, highest = found.tolist()
        self.num_nan = int(num_nan)
        self.num_inf = values.numel() - int(num_finite) - self.num_nan
        self._take_range(max(0.0, largest))
        self.lowest, self.highest = (lowest, highest) if num_finite else (0.0, 0.0)
        inner = torch.from_numpy(self._edges[1:-1]).to(values.device)
        bins = torch.bucketize(values.double(), inner, right=True).masked_fill(~is_finite, HISTOGRAM_BINS)
        self.counts = torch.bincount(bins, minlength=HISTOGRAM_BINS + 1)[:HISTOGRAM_BINS].cpu().numpy()
        if num_sized:
            self.limit = float(magnitudes.topk(num_beyond(int(num_sized))).values[-1])

    def _take_range(self, largest: float) -> None:
        span = largest or 1.0
        self._edges = np.linspace(-span, span, HISTOGRAM_BINS + 1)
        self.edges = self._edges.astype(np.float32)


def num_beyond(count: int) -> int:
    """How many of so many magnitudes are at the limit or beyond it."""
    return count - min(count - 1, int(ROBUST_QUANTILE * count))
