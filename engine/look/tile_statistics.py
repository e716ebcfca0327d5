"""Statistics of a tile for colour scales (histogram, range and a robust limit), updated as rows are added."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine.wire.records import Ints

HISTOGRAM_BINS = 64
ROBUST_QUANTILE = 0.995
# how many of the largest magnitudes are kept: twice as many as are beyond the quantile, and 256 more
_KEPT_SHARE = 2.0
_KEPT_AT_LEAST = 256

Values = npt.NDArray[np.float32]


class TileStatistics:
    """The statistics of one tile, a tensor of any shape; `add` adds numbers without reading the earlier ones again.

    `counts` and `edges` are a histogram of the finite numbers between minus and plus the largest magnitude; `limit`
    is the 99.5th percentile of the magnitudes of those that are not zero, exactly. For a tile on a GPU the counting
    runs there, and what is copied to the host does not grow with the tile.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self.num_nan = self.num_inf = 0
        # all magnitudes from `_least_kept` on, and none below it
        self._tail: Values | torch.Tensor
        self._num_sized: int
        self._least_kept = np.float32(0.0)
        if values.device.type == "cuda" and values.numel():
            self._count_on_device(values.float().flatten())
        else:
            self._count(values.float().cpu().numpy())

    def _count(self, values: Values) -> None:
        finite = self._counted(values)
        magnitudes = np.abs(finite[finite != 0])
        self._num_sized = magnitudes.size
        self._take_range(float(magnitudes.max(initial=0.0)))
        self.counts = self._histogram(finite)
        self.lowest = float(finite.min()) if finite.size else 0.0
        self.highest = float(finite.max()) if finite.size else 0.0
        kept = self._num_kept
        self._tail = magnitudes
        if kept < magnitudes.size:
            self._least_kept = np.partition(magnitudes, magnitudes.size - kept)[magnitudes.size - kept]
            self._tail = magnitudes[magnitudes >= self._least_kept]

    def _count_on_device(self, values: torch.Tensor) -> None:
        """Count numbers `[N]` on a GPU; only six numbers and the histogram are copied to the host."""
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
        self._num_sized, self.num_nan = int(num_sized), int(num_nan)
        self.num_inf = values.numel() - int(num_finite) - self.num_nan
        self._take_range(max(0.0, largest))
        self.lowest, self.highest = (lowest, highest) if num_finite else (0.0, 0.0)
        inner = torch.from_numpy(self._edges[1:-1]).to(values.device)
        bins = torch.bucketize(values.double(), inner, right=True).masked_fill(~is_finite, HISTOGRAM_BINS)
        counts = torch.bincount(bins, minlength=HISTOGRAM_BINS + 1)[:HISTOGRAM_BINS]
        self._tail = magnitudes.topk(self._num_kept).values
        if self._num_kept < self._num_sized:
            self._least_kept = np.float32(self._tail[-1].item())
        self.counts = counts.cpu().numpy()

    def _take_range(self, largest: float) -> None:
        self._largest = largest
        span = largest or 1.0
        self._edges = np.linspace(-span, span, HISTOGRAM_BINS + 1)
        self.edges = self._edges.astype(np.float32)

    @property
    def _num_kept(self) -> int:
        """How many of the largest magnitudes are kept after counting all numbers."""
        return min(self._num_sized, int(_KEPT_SHARE * self._num_beyond) + _KEPT_AT_LEAST)

    def _counted(self, values: Values) -> Values:
        """Count NaN and infinities, and return the finite numbers, flat."""
        is_finite = np.isfinite(values)
        num_nan = int(np.isnan(values).sum())
        self.num_nan += num_nan
        self.num_inf += int(values.size - is_finite.sum()) - num_nan
        return values[is_finite]

    def _histogram(self, finite: Values) -> Ints:
        """How many numbers are in each of the `HISTOGRAM_BINS` bins between `edges`; the last bin includes its upper
        edge."""
        # sorting the numbers and looking up 63 edges takes a tenth of looking up the bin of every number
        num_below = np.sort(finite).searchsorted(self._edges[1:-1])
        return np.diff(num_below, prepend=0, append=finite.size)

    @property
    def _num_beyond(self) -> int:
        """How many magnitudes are at the limit or beyond it."""
        return self._num_sized - min(self._num_sized - 1, int(ROBUST_QUANTILE * self._num_sized))

    @property
    def limit(self) -> float:
        """The 99.5th percentile of the magnitudes; 1 where there are no finite numbers other than zero. Zeros, such as
        those of edited rows, would let it collapse."""
        if not self._num_sized:
            return 1.0
        if isinstance(self._tail, torch.Tensor):
            return float(self._tail.topk(self._num_beyond).values[-1])
        place = self._tail.size - self._num_beyond
        return float(np.partition(self._tail, place)[place])

    def add(self, values: torch.Tensor) -> bool:
        """Add more numbers. Returns False if all must be counted again, and this object must not be used any more: the
        range of the histogram has grown, or the percentile has fallen below what was kept."""
        finite = self._counted(values.float().cpu().numpy())
        if not finite.size:
            return True
        magnitudes = np.abs(finite[finite != 0])
        if not self._num_sized or magnitudes.max(initial=0.0) > self._largest:
            return False
        self._num_sized += magnitudes.size
        self.counts = self.counts + self._histogram(finite)
        self.lowest, self.highest = min(self.lowest, float(finite.min())), max(self.highest, float(finite.max()))
        added = magnitudes[magnitudes >= self._least_kept]
        if isinstance(self._tail, torch.Tensor):
            self._tail = torch.cat([self._tail, torch.from_numpy(added).to(self._tail.device)])
        else:
            self._tail = np.concatenate([self._tail, added])
        return len(self._tail) >= self._num_beyond
