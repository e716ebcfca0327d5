"""Statistics of a tile for colour scales: histogram, range and a robust limit, to which new rows are added."""

from __future__ import annotations

import numpy as np
import torch

from engine.wire.records import Ints

HISTOGRAM_BINS = 64
ROBUST_QUANTILE = 0.995
MORE_KEPT = 256  # of the largest magnitudes, beside twice those beyond the limit


class TileStatistics:
    """The statistics of one tile, a tensor of any shape.

    `counts` and `edges` are a histogram of the finite numbers between minus and plus the largest magnitude; `limit`
    is the 99.5th percentile of the magnitudes of those that are not zero, exactly; 1 where there are none: zeros, such
    as those of edited rows, would let it collapse. For a tile on a GPU the counting runs there, and what is copied to
    the host does not grow with the tile. `add` reads no earlier numbers again.
    """

    def __init__(self, values: torch.Tensor) -> None:
        numbers = values.float().flatten()
        finite = numbers
        if numbers.numel() and not torch.stack(numbers.aminmax()).isfinite().all():
            finite = numbers[numbers.isfinite()]
        self.num_nan = int(numbers.isnan().sum()) if len(finite) < len(numbers) else 0
        self.num_inf = len(numbers) - len(finite) - self.num_nan
        self.lowest, self.highest = map(float, finite.aminmax()) if len(finite) else (0.0, 0.0)
        self._span = max(-self.lowest, self.highest) or 1.0
        self.edges = np.linspace(-self._span, self._span, HISTOGRAM_BINS + 1).astype(np.float32)
        self.counts = self._histogram(finite)
        magnitudes = finite.abs()
        self._num_sized = int(magnitudes.count_nonzero())
        num_kept = min(self._num_sized, 2 * num_beyond(self._num_sized) + MORE_KEPT)
        self._largest = magnitudes.topk(num_kept).values

    def _histogram(self, finite: torch.Tensor) -> Ints:
        return finite.double().histc(HISTOGRAM_BINS, -self._span, self._span).long().cpu().numpy()

    @property
    def limit(self) -> float:
        return float(self._largest[num_beyond(self._num_sized) - 1]) if self._num_sized else 1.0

    def add(self, values: torch.Tensor) -> bool:
        """Add more numbers. False, and nothing is added, where all must be counted again: some are beyond the range of
        the histogram or not finite, or more are beyond the limit than were kept."""
        numbers = values.float().flatten()
        if not numbers.numel():
            return True
        low, high = torch.stack(numbers.aminmax()).tolist()
        magnitudes = numbers.abs()
        num_sized = self._num_sized + int(magnitudes.count_nonzero())
        is_inside = -self._span <= low and high <= self._span  # no NaN is
        if not self._num_sized or not is_inside or num_beyond(num_sized) > len(self._largest):
            return False
        self.lowest, self.highest, self._num_sized = min(self.lowest, low), max(self.highest, high), num_sized
        self.counts = self.counts + self._histogram(numbers)
        self._largest = torch.cat([self._largest, magnitudes]).topk(len(self._largest)).values
        return True


def num_beyond(count: int) -> int:
    """How many of so many magnitudes are at the limit or beyond it."""
    return count - min(count - 1, int(ROBUST_QUANTILE * count))
