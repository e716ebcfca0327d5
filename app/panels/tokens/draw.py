"""The layout of the token chips, in rows that wrap where they are full."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

GAP = 1.0


class ChipPlace(NamedTuple):
    left: float
    width: float
    row: int


class ChipLayout:
    """The places of chips of given widths, in pixels; adding chips costs O(new chips)."""

    def __init__(self) -> None:
        self.width = -1
        self._places: list[ChipPlace] = []
        self._row_starts = [0]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> ChipPlace:
        return self._places[index]

    @property
    def num_rows(self) -> int:
        return len(self._row_starts)

    def truncate(self, count: int) -> None:
        """Keep the first `count` chips."""
        del self._places[count:]
        del self._row_starts[bisect_left(self._row_starts, max(count, 1)) :]
        if not self._row_starts:
            self._row_starts = [0]

    def extend(self, widths: Iterable[float]) -> None:
        """Add chips at the end."""
        for width in widths:
            place = self.after_last(width)
            if place.row >= self.num_rows:
                self._row_starts.append(len(self._places))
            self._places.append(place)

    def after_last(self, width: float) -> ChipPlace:
        """The place of one more chip."""
        if not self._places:
            return ChipPlace(0.0, width, 0)
        left, before, row = self._places[-1]
        left += before + GAP
        return ChipPlace(0.0, width, row + 1) if left + width > self.width else ChipPlace(left, width, row)

    def in_rows(self, first: int, last: int) -> range:
        """The indices of the chips in rows `first … last`."""
        first = min(max(0, first), self.num_rows - 1)
        return range(self._row_starts[first], self._end_of(last))

    def _end_of(self, row: int) -> int:
        return self._row_starts[row + 1] if row + 1 < self.num_rows else len(self._places)

    def at(self, x: float, row: int) -> int | None:
        """The chip at `x` in a row; None if there is none."""
        if not self._places or not 0 <= row < self.num_rows:
            return None
        index = self._last_before(x, row)
        is_on_it = index >= self._row_starts[row] and x <= self._places[index].left + self._places[index].width
        return index if is_on_it else None

    def beside(self, index: int, by: int) -> int:
        """The chip above (-1) or below (+1) another; the same one if there is no such row."""
        left, width, row = self._places[index]
        if not 0 <= row + by < self.num_rows:
            return index
        return max(self._row_starts[row + by], self._last_before(left + width / 2, row + by))

    def _last_before(self, x: float, row: int) -> int:
        """The last chip of a row that begins at or left of `x`; the one before the row if none does."""
        return bisect_right(self._places, x, self._row_starts[row], self._end_of(row), key=_left) - 1


def _left(place: ChipPlace) -> float:
    return place.left
