"""The part of a sequence that a picture shows: which positions are visible, and which rows they need."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

Span = tuple[float, float]


class TokenRange(Struct, frozen=True):
    """Positions `low … high`. One that `follows` keeps its length and moves along with the newest token."""

    low: float
    high: float
    follows: bool = False

    def within(self, start: float, stop: float) -> Span | None:
        """The range moved into the positions `start … stop` that there are; None where it is all of them."""
        span = min(self.high - self.low, stop - start)
        if span >= stop - start - 1e-6:
            return None
        low = stop - span if self.follows else min(max(self.low, start), stop - span)
        return low, low + span

    def moved_into(self, start: float, stop: float) -> TokenRange | None:
        """The same as a range; None where all positions are visible."""
        found = self.within(start, stop)
        return None if found is None else replace(self, low=found[0], high=found[1])


def rows_of(wanted: TokenRange | None, num_tokens: int) -> tuple[int, int]:
    """The token rows `start … stop` that a range makes visible; None is all of them."""
    found = None if wanted is None else wanted.within(0, num_tokens)
    return (0, num_tokens) if found is None else (math.floor(found[0]), math.ceil(found[1]))


def covers(extent: Span, visible: Span) -> bool:
    """Whether a picture of the positions `extent` fills all that is visible."""
    return extent[0] <= visible[0] + 1e-6 and extent[1] >= visible[1] - 1e-6


def column_at(position: int, start: int, stop: int, per_column: int) -> tuple[int, int] | None:
    """Where the column that holds `position` begins and ends, among columns from `start` to `stop`."""
    if not start <= position < stop:
        return None
    first = start + (position - start) // per_column * per_column
    return first, min(first + per_column, stop)
