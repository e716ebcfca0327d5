"""The visible range of positions of a picture, and which token rows it needs."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

Span = tuple[float, float]


class TokenRange(Struct, frozen=True):
    """Positions `low … high`. A range that `follows` keeps its length and stays at the newest token."""

    low: float
    high: float
    follows: bool = False

    def within(self, start: float, stop: float) -> Span | None:
        """The range shifted into the existing positions `start … stop`; None if it covers all of them."""
        span = min(self.high - self.low, stop - start)
        if span >= stop - start - 1e-6:
            return None
        low = stop - span if self.follows else min(max(self.low, start), stop - span)
        return low, low + span

    def moved_into(self, start: float, stop: float) -> TokenRange | None:
        """The same as a TokenRange; None if all positions are visible."""
        found = self.within(start, stop)
        return None if found is None else replace(self, low=found[0], high=found[1])


def rows_of(wanted: TokenRange | None, num_tokens: int) -> tuple[int, int]:
    """The token rows `start … stop` of a range; None: all."""
    found = None if wanted is None else wanted.within(0, num_tokens)
    return (0, num_tokens) if found is None else (math.floor(found[0]), math.ceil(found[1]))


def covers(extent: Span, visible: Span) -> bool:
    """Whether a picture of the positions `extent` covers everything visible."""
    return extent[0] <= visible[0] + 1e-6 and extent[1] >= visible[1] - 1e-6


def column_at(position: int, start: int, stop: int, per_column: int) -> tuple[int, int] | None:
    """Where the column that contains `position` begins and ends, for columns from `start` to `stop`; None outside."""
    if not start <= position < stop:
        return None
    first = start + (position - start) // per_column * per_column
    return first, min(first + per_column, stop)
