"""A sweep as a table that can be sorted, as text, and as bytes against what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.draw.scale import Floats, LogScale, log_scale
from engine.wire.measurements import SweepRow, Unavailable

Row = SweepRow | Unavailable
COLUMNS = ("cache", "kv_bytes", "tok_per_s", "mean_kl", "top1_agreement", "perplexity", "lossless")
LEAST_KL = 1e-8  # below it float32 cannot tell two distributions apart


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points of the rows that hold bytes, by `names`: `x` is the binary logarithm of the bytes, `y` the KL as a share
    of the plot on `scale`; a KL that rounding explains stands on the floor. `front` are the points that nobody beats,
    by rising bytes."""

    names: tuple[str, ...]
    x: Floats
    y: Floats
    is_lossless: npt.NDArray[np.bool_]
    front: tuple[int, ...]
    scale: LogScale


def cloud(rows: Sequence[Row]) -> Cloud:
    """A mode that keeps nothing and recomputes has no place on an axis of bytes: it is left out."""
    shown = [row for row in rows if isinstance(row, SweepRow) and row.kv_bytes > 0]
    num_bytes = np.array([row.kv_bytes for row in shown], dtype=np.float64)
    kl = np.array([row.mean_kl if row.mean_kl >= LEAST_KL else 0.0 for row in shown], dtype=np.float64)
    scale = log_scale(kl.tolist(), -5, 0, -8)
    return Cloud(
        names=tuple(row.cache for row in shown),
        x=np.log2(num_bytes),
        y=scale.at(kl),
        is_lossless=np.array([row.lossless for row in shown], dtype=np.bool_),
        front=front(num_bytes, kl),
        scale=scale,
    )


def steps_of(cloud: Cloud) -> tuple[Floats, Floats]:
    """The front as a line of steps: with fewer bytes than a point has, no less damage is had than at the one before."""
    x = np.repeat(cloud.x[list(cloud.front)], 2)[1:]
    y = np.repeat(cloud.y[list(cloud.front)], 2)[:-1]
    return x, y


def front(num_bytes: Floats, kl: Floats) -> tuple[int, ...]:
    """The points with less damage than everything that takes no more bytes: the Pareto front, by rising bytes."""
    best, found = math.inf, []
    for index in np.lexsort((kl, num_bytes)):
        if kl[index] < best:
            best = float(kl[index])
            found.append(int(index))
    return tuple(found)
