"""Places the names of points in a plot so that they cover neither points nor each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from app.draw.scale import Floats


class Label(Struct, frozen=True):
    """The name of point `index`: the left end and the vertical middle of the text, in pixels from the upper left
    corner."""

    index: int
    left: float
    middle: float


def clusters(x: Floats, y: Floats, reach: float) -> tuple[tuple[int, ...], ...]:
    """Groups of points at most `reach` pixels apart, in their order: each group shares one mark and one name."""
    found: list[list[int]] = []
    for index in range(len(x)):
        home = next((c for c in found if math.hypot(x[c[0]] - x[index], y[c[0]] - y[index]) <= reach), None)
        if home is None:
            found.append([index])
        else:
            home.append(index)
    return tuple(tuple(cluster) for cluster in found)


def labels(
    x: Floats, y: Floats, widths: Sequence[float], size: tuple[float, float], height: float, first: Sequence[int] = ()
) -> tuple[Label, ...]:
    """Place the names, those of `first` before the others; some may not fit.

    `x` and `y` are pixels from the upper left corner of a plot of that `size`; `widths` and `height` are those of the
    texts.
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
