"""A sweep as a table that can be sorted, as text, and as bytes against what they cost."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.draw.scale import Floats, LogScale, log_scale
from engine.wire.records import SweepRow, Unavailable

Row = SweepRow | Unavailable
COLUMNS = ("cache", "kv_bytes", "tok_per_s", "mean_kl", "top1_agreement", "perplexity", "lossless")
LEAST_KL = 1e-8  # below it float32 cannot tell two distributions apart


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points of the rows that hold bytes, by `names`: places 0 … 1, `x` bytes and `y` KL, both logarithmic; a KL that
    rounding explains stands on the floor. `front` are the points that nobody beats, by rising bytes."""

    names: tuple[str, ...]
    x: Floats
    y: Floats
    is_lossless: npt.NDArray[np.bool_]
    front: tuple[int, ...]
    y_scale: LogScale
    x_ticks: tuple[tuple[float, int], ...]


def cloud(rows: Sequence[Row]) -> Cloud:
    """A mode that keeps nothing and recomputes has no place on an axis of bytes: it is left out."""
    shown = [row for row in rows if isinstance(row, SweepRow) and row.kv_bytes > 0]
    num_bytes = np.array([row.kv_bytes for row in shown], dtype=np.float64)
    kl = np.array([row.mean_kl if row.mean_kl >= LEAST_KL else 0.0 for row in shown], dtype=np.float64)
    y_scale = log_scale(kl.tolist(), -5, 0, -8)
    low, high = (float(num_bytes.min()), float(num_bytes.max())) if len(shown) else (1.0, 2.0)
    margin = 1.35
    low, high = low / margin, high * margin
    span = math.log(high / low)
    marks = []
    power = 2 ** math.floor(math.log2(low))
    while power <= high:
        if power >= low:
            marks.append((math.log(power / low) / span, int(power)))
        power *= 2
    return Cloud(
        names=tuple(row.cache for row in shown),
        x=np.log(num_bytes / low) / span if len(shown) else num_bytes,
        y=y_scale.at(kl),
        is_lossless=np.array([row.lossless for row in shown], dtype=np.bool_),
        front=front(num_bytes, kl),
        y_scale=y_scale,
        x_ticks=tuple(marks),
    )


def front(num_bytes: Floats, kl: Floats) -> tuple[int, ...]:
    """The points with less damage than everything that takes no more bytes: the Pareto front, by rising bytes."""
    best, found = math.inf, []
    for index in np.lexsort((kl, num_bytes)):
        if kl[index] < best:
            best = float(kl[index])
            found.append(int(index))
    return tuple(found)


def clusters(x: Floats, y: Floats, reach: float) -> tuple[tuple[int, ...], ...]:
    """Points in pixels that lie on each other, in their order: they share one mark and one name."""
    found: list[list[int]] = []
    for index in range(len(x)):
        home = next((c for c in found if math.hypot(x[c[0]] - x[index], y[c[0]] - y[index]) <= reach), None)
        if home is None:
            found.append([index])
        else:
            home.append(index)
    return tuple(tuple(cluster) for cluster in found)


@dataclass(frozen=True)
class Label:
    """A name beside its point: the left end and the middle of the text, in pixels from the upper left corner."""

    index: int
    left: float
    middle: float


def labels(
    x: Floats, y: Floats, widths: Sequence[float], size: tuple[float, float], height: float, first: Sequence[int] = ()
) -> tuple[Label, ...]:
    """Names where they cover neither points nor each other, those of `first` before the others; some find no room.

    `x` and `y` are pixels from the upper left corner of a plot of that `size`.
    """
    taken = [(px - 5, py - 5, px + 5, py + 5) for px, py in zip(x, y, strict=True)]
    found: list[Label] = []
    for index in [*first, *(i for i in range(len(x)) if i not in first)]:
        width = widths[index]
        for left, middle in _places(float(x[index]), float(y[index]), width, height):
            box = (left - 2, middle - height / 2, left + width + 2, middle + height / 2)
            inside = box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]
            others = [other for i, other in enumerate(taken) if i != index]
            if inside and not any(_overlap(box, other) for other in others):
                taken.append(box)
                found.append(Label(index, left, middle))
                break
    return tuple(found)


def _places(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    beside = [(x + 9, y), (x - 9 - width, y), (x - width / 2, y - height), (x - width / 2, y + height)]
    return [*beside, (x + 7, y - height * 0.8), (x + 7, y + height * 0.8), (x - 7 - width, y - height * 0.8)]


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def sorted_rows(rows: Sequence[Row], column: int, is_descending: bool) -> list[Row]:
    """By a column; what is unavailable stays at the end either way."""
    there = [row for row in rows if isinstance(row, SweepRow)]
    missing = [row for row in rows if isinstance(row, Unavailable)]
    if column >= 0:
        there.sort(key=lambda row: getattr(row, COLUMNS[column]), reverse=is_descending)
    return [*there, *missing]


def csv_text(rows: Sequence[Row]) -> str:
    """The table as CSV, numbers in full; the last column says why a mode is unavailable."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, "max_abs_logit_diff", "unavailable"])
    for row in rows:
        if isinstance(row, SweepRow):
            writer.writerow([*(getattr(row, name) for name in COLUMNS), row.max_abs_logit_diff, ""])
        else:
            writer.writerow([row.cache, *[""] * len(COLUMNS), row.unavailable])
    return out.getvalue()
