"""Outliers among new rows of K and V: their norms against those of the rows before them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.wire.records import RowStats

Norms = npt.NDArray[np.float32]  # [L, 2 * H_kv, T]: of keys, then of values

MOST_ROWS = 64
FEWEST_ROWS = 8  # fewer have no median to speak of


def norms_of(stats: RowStats) -> Norms:
    """The norms of new rows."""
    return np.concatenate([stats.key_norm, stats.value_norm], 1)


def with_rows(before: Norms | None, stats: RowStats) -> Norms:
    """The norms of the last rows after a step."""
    new = norms_of(stats)
    if before is None or before.shape[:2] != new.shape[:2]:
        return new[..., -MOST_ROWS:]
    return np.concatenate([before, new], -1)[..., -MOST_ROWS:]


def norm_ratio(stats: RowStats, before: Norms | None) -> float | None:
    """The norm of the new row that is largest against the median of its head, over up to 64 rows before it; where there
    are fewer than 8, over the new ones too. None where there are fewer than 8 even so."""
    new = norms_of(stats)
    known = before if before is not None and before.shape[:2] == new.shape[:2] else new[..., :0]
    if known.shape[-1] < FEWEST_ROWS:
        known = np.concatenate([known, new], -1)
    if known.shape[-1] < FEWEST_ROWS:
        return None
    median = _median(known)[..., None]
    ratios = np.divide(new, median, out=np.full_like(new, np.nan), where=median > 0)
    return None if np.isnan(ratios).all() else float(np.nanmax(ratios))


def _median(norms: Norms) -> Norms:
    """Of the last axis, without what is NaN; NaN where all is."""
    ordered = np.sort(norms, -1)  # NaN stands last
    count = (~np.isnan(norms)).sum(-1, keepdims=True)
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    high = np.minimum(high, norms.shape[-1] - 1)
    pair = np.take_along_axis(ordered, low, -1) + np.take_along_axis(ordered, high, -1)
    return (pair[..., 0] / 2).astype(np.float32)
