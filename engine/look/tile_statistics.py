"""Statistics of a tile for colour scales: histogram, range and a robust limit."""

from __future__ import annotations

import numpy as np
import torch

from engine.look.magnitude_counts import histogram

HISTOGRAM_BINS = 64
ROBUST_QUANTILE = 0.995


class TileStatistics:
    """The statistics of one tile, a tensor of any shape.

    `counts` and `edges` are a histogram of the finite numbers between minus and plus the largest magnitude; `limit`
    is the 99.5th percentile of the magnitudes of those that are not zero, exactly; 1 where there are none: zeros, such
    as those of edited rows, would let it collapse. For a tile on a GPU the counting runs there, and what is copied to
    the host does not grow with the tile.
    """

    def __init__(self, values: torch.Tensor) -> None:
        numbers = values.float().flatten()
        finite = numbers
        if len(numbers) and not torch.stack(numbers.aminmax()).isfinite().all():
            finite = numbers[numbers.isfinite()]
        self.num_nan = int(numbers.isnan().sum()) if len(finite) < len(numbers) else 0
        self.num_inf = len(numbers) - len(finite) - self.num_nan
        self.lowest, self.highest = map(float, finite.aminmax()) if len(finite) else (0.0, 0.0)
        span = max(-self.lowest, self.highest) or 1.0
        self.edges = np.linspace(-span, span, HISTOGRAM_BINS + 1).astype(np.float32)
        bins = finite.double().div_(span).add_(1).mul_(HISTOGRAM_BINS / 2).int().clamp_(max=HISTOGRAM_BINS - 1)
        self.counts = histogram(bins, HISTOGRAM_BINS)
        magnitudes = finite.abs()
        num_sized = int(magnitudes.count_nonzero())
        self.limit = float(magnitudes.topk(num_beyond(num_sized)).values[-1]) if num_sized else 1.0


def num_beyond(count: int) -> int:
    """How many of so many magnitudes are at the limit or beyond it."""
    return count - min(count - 1, int(ROBUST_QUANTILE * count))
