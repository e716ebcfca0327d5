"""Finds outliers among new rows of K and V by comparing their norms with those of earlier rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.wire.records import RowStats

Norms = npt.NDArray[np.float32]  # [L, 2 * H_kv, T]: of keys, then of values

MOST_ROWS = 64  # earlier rows that are compared with
FEWEST_ROWS = 8  # fewer rows give no meaningful median


def norms_of(stats: RowStats) -> Norms:
    """The norms of new rows, K and V concatenated along the heads."""
    return np.concatenate([stats.key_norm, stats.value_norm], 1)


def with_rows(before: Norms | None, stats: RowStats) -> Norms:
    """The norms of the last `MOST_ROWS` rows, after adding those of a step."""
    new = norms_of(stats)
    if before is None or before.shape[:2] != new.shape[:2]:
        return new[..., -MOST_ROWS:]
    return np.concatenate([before, new], -1)[..., -MOST_ROWS:]


def norm_ratio(stats: RowStats, before: Norms | None) -> float | None:
    """The largest ratio of a new row's norm to the median of its head over up to 64 earlier rows. With fewer than 8
    earlier rows the new ones are included; None if there are fewer than 8 even so."""
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
    """The median over the last axis, ignoring NaN; NaN if all values are."""
    ordered = np.sort(norms, -1)  # NaN is sorted last
    count = (~np.isnan(norms)).sum(-1, keepdims=True)
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    high = np.minimum(high, norms.shape[-1] - 1)
    pair = np.take_along_axis(ordered, low, -1) + np.take_along_axis(ordered, high, -1)
    return (pair[..., 0] / 2).astype(np.float32)
