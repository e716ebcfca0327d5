"""What differs at each step, as points: by how much, and whether it may."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.scale import Floats, LogScale, log_scale

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WITHIN, LOSSY, DEPARTS, UNJUDGED = range(4)


class StepPoints(Struct, frozen=True, eq=False):
    """One point a step: `x` the step, `y` a share of the plot from below on `scale`, `kinds` WITHIN, LOSSY, DEPARTS, or
    UNJUDGED where rounding is no measure. `disagrees`: its top token is another one. At the indices `breaks` a new line
    begins: steps are missing before."""

    x: Floats
    y: Floats
    kinds: Ints
    disagrees: Flags
    scale: LogScale
    breaks: tuple[int, ...] = ()


def step_points(
    steps: npt.ArrayLike,
    values: npt.ArrayLike,
    kinds: Ints,
    disagrees: npt.ArrayLike,
    *,
    floor: int,
    extra: tuple[float, ...],
    breaks: tuple[int, ...] = (),
) -> StepPoints:
    """Every step; what is no number stands at the top. The scale has the decades of 1e-6 to 1e-2 at least, room for
    the values in `extra`, and nothing below `floor`."""
    numbers = np.asarray(values, np.float64)
    scale = log_scale([*numbers.tolist(), *extra], -6, -2, floor)
    x, other = np.asarray(steps, np.float64), np.asarray(disagrees, np.bool_)
    return StepPoints(x, scale.at(numbers), kinds, other, scale, breaks)


def kinds_of(is_beyond: Flags, may_differ: npt.ArrayLike) -> Ints:
    """What each step's difference is: within rounding, lossy as asked, or a departure."""
    return np.where(~is_beyond, WITHIN, np.where(np.asarray(may_differ, np.bool_), LOSSY, DEPARTS)).astype(np.int64)
