"""What a colour scale needs to know of a tile: histogram, range and a robust limit, kept up as rows are added."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.wire.records import Ints

HISTOGRAM_BINS = 64
ROBUST_QUANTILE = 0.995
_KEPT_SHARE = 2.0  # so many times what the quantile leaves out is kept of the largest magnitudes, and a few more
_KEPT_AT_LEAST = 256

Values = npt.NDArray[np.float32]


class TileStatistics:
    """The numbers of one tile: `add` takes more of them in without looking at the earlier ones again.

    `counts` and `edges` are a histogram of the finite ones between minus and plus the largest magnitude; `limit` is
    the 99.5th percentile of their magnitudes, exactly.
    """

    def __init__(self, values: Values) -> None:
        self.num_nan = self.num_inf = 0
        finite = self._counted(values)
        self._num_finite = finite.size
        magnitudes = np.abs(finite)
        self._largest = float(magnitudes.max(initial=0.0))
        span = self._largest or 1.0
        self._edges = np.linspace(-span, span, HISTOGRAM_BINS + 1)
        self.edges = self._edges.astype(np.float32)
        self.counts = self._histogram(finite)
        self.lowest = float(finite.min()) if finite.size else 0.0
        self.highest = float(finite.max()) if finite.size else 0.0
        kept = min(magnitudes.size, int(_KEPT_SHARE * self._num_beyond) + _KEPT_AT_LEAST)
        # every magnitude from `_least_kept` on is in `_tail`, and no other
        self._tail: Values = magnitudes
        self._least_kept = np.float32(0.0)
        if kept < magnitudes.size:
            self._least_kept = np.partition(magnitudes, magnitudes.size - kept)[magnitudes.size - kept]
            self._tail = magnitudes[magnitudes >= self._least_kept]

    def _counted(self, values: Values) -> Values:
        """Count what is not a number, and return the rest, flat."""
        is_finite = np.isfinite(values)
        num_nan = int(np.isnan(values).sum())
        self.num_nan += num_nan
        self.num_inf += int(values.size - is_finite.sum()) - num_nan
        return values[is_finite]

    def _histogram(self, finite: Values) -> Ints:
        """How many are in each bin, `HISTOGRAM_BINS` between `edges`; the last has its upper edge as well."""
        bins = self._edges[1:-1].searchsorted(finite.astype(np.float64), "right")  # float32 would overflow
        return np.bincount(bins, minlength=HISTOGRAM_BINS)

    @property
    def _num_beyond(self) -> int:
        """How many magnitudes reach the limit or go beyond it."""
        return self._num_finite - min(self._num_finite - 1, int(ROBUST_QUANTILE * self._num_finite))

    @property
    def limit(self) -> float:
        """1 where there are no finite numbers, the largest magnitude where the quantile is zero."""
        if not self._num_finite:
            return 1.0
        place = self._tail.size - self._num_beyond
        return float(np.partition(self._tail, place)[place]) or self._largest or 1.0

    def add(self, values: Values) -> bool:
        """Take in more numbers. False, and of no use any more, where all must be counted anew: the range of the
        histogram has grown, or the quantile fell below what was kept."""
        finite = self._counted(values)
        if not finite.size:
            return True
        magnitudes = np.abs(finite)
        if not self._num_finite or magnitudes.max() > self._largest:
            return False
        self._num_finite += finite.size
        self.counts = self.counts + self._histogram(finite)
        self.lowest, self.highest = min(self.lowest, float(finite.min())), max(self.highest, float(finite.max()))
        self._tail = np.concatenate([self._tail, magnitudes[magnitudes >= self._least_kept]])
        return self._tail.size >= self._num_beyond
