"""How large a new row is against those before it in its head."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from engine.wire.records import RowStats

Norms = npt.NDArray[np.float32]  # [L, 2 * H_kv, T]: of keys, then of values

MOST_ROWS = 64  # earlier rows that are compared with
FEWEST_ROWS = 8  # fewer rows give no meaningful median


def norms_of(stats: RowStats) -> Norms:
    """The norms of new rows, K and V concatenated along the heads."""
    return np.concatenate([stats.key_norm, stats.value_norm], 1)


def norms_before(stats: Iterable[RowStats]) -> Norms | None:
    """The norms of the last `MOST_ROWS` rows of steps, whose statistics come newest first; None where there are
    none."""
    found: list[Norms] = []
    for each in stats:
        if found and (norms_of(each).shape[:2] != found[0].shape[:2] or sum(n.shape[-1] for n in found) >= MOST_ROWS):
            break
        found.append(norms_of(each))
    return np.concatenate(found[::-1], -1)[..., -MOST_ROWS:] if found else None


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
    most = float(np.fmax.reduce(ratios, axis=None))  # NaN only where all are
    return None if math.isnan(most) else most


def _median(norms: Norms) -> Norms:
    """The median over the last axis, ignoring NaN; NaN if all values are."""
    ordered = np.sort(norms.reshape(-1, norms.shape[-1]), -1)  # NaN is sorted last
    rows, count = np.arange(len(ordered)), (ordered == ordered).sum(-1)
    high = np.minimum(count // 2, norms.shape[-1] - 1)
    pair: Norms = ordered[rows, np.maximum(count - 1, 0) // 2] + ordered[rows, high]
    return (pair / np.float32(2)).reshape(norms.shape[:-1])
