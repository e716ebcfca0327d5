"""A difference per step as points of a plot: how large it is, and whether it is allowed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.scale import Floats, LogScale, log_scale

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WITHIN, LOSSY, DEPARTS, UNJUDGED = range(4)


class StepPoints(Struct, frozen=True, eq=False):
    """One point per step: `x`, the step; `y`, 0 … 1 on `scale`; `kinds`, WITHIN, LOSSY, DEPARTS, or UNJUDGED if
    rounding is no criterion; `disagrees`, whether the top token is another one. At the indices `breaks` the line is
    interrupted, because steps are missing before."""

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
    """The points of all steps; NaN and Inf are at the top. The scale covers at least 1e-6 to 1e-2 and the values
    `extra`, and nothing below `10**floor`."""
    numbers = np.asarray(values, np.float64)
    scale = log_scale([*numbers.tolist(), *extra], -6, -2, floor)
    x, other = np.asarray(steps, np.float64), np.asarray(disagrees, np.bool_)
    return StepPoints(x, scale.at(numbers), kinds, other, scale, breaks)


def kinds_of(is_beyond: Flags, may_differ: npt.ArrayLike) -> Ints:
    """Each step's kind: within rounding; beyond it where the mode may differ (lossy); or a departure."""
    return np.where(~is_beyond, WITHIN, np.where(np.asarray(may_differ, np.bool_), LOSSY, DEPARTS)).astype(np.int64)
