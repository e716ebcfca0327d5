"""Verifies that the extremes stored with large layers are those of their rows, since pictures are drawn from them. No
torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.snapshot.format import PARTS, LayerEntry, PyramidEntry
from engine.snapshot.read import SnapshotFile
from engine.spec.codec import Part

Array = np.ndarray[Any, Any]
ROWS_AT_ONCE = 8192


def num_numbers(file: SnapshotFile, *parts: Part) -> int:
    """How many numbers the rows with extremes have, of these parts."""
    layers = ((entry, part) for entry, part in with_extremes(file) if part in parts)
    return sum(len(entry.heads) * entry.num_rows * entry.dim(part) for entry, part in layers)


def with_extremes(file: SnapshotFile) -> Iterator[tuple[LayerEntry, Part]]:
    """K or V of the layers that have extremes."""
    if file.manifest.pyramid is not None:
        yield from ((entry, part) for entry in file.layers for part in PARTS if entry.name(f"{part}.low") in file)


def check_extremes(file: SnapshotFile, problems: list[str]) -> Iterator[int]:
    """Compute the extremes again and compare them. Adds what is wrong to `problems`; yields how many numbers were
    read."""
    pyramid = file.manifest.pyramid
    for entry, part in with_extremes(file):
        assert pyramid is not None
        largest, is_alike = 0.0, True
        for place, head in enumerate(entry.heads):
            made = HeadExtremes(entry, part, pyramid, file.manifest.num_tokens)
            for start in range(0, entry.num_rows, ROWS_AT_ONCE):
                rows = file.rows(entry.index, part, head, range(start, start + ROWS_AT_ONCE))
                made.update(rows, entry.first + start)
                yield rows.size
            for name, found in (("low", made.low), ("high", made.high)):
                is_alike &= np.array_equal(file.numbers(entry.name(f"{part}.{name}"), place), found, equal_nan=True)
            largest = max(largest, made.largest)
        if not is_alike:
            problems.append(f"'{entry.name(part)}.low' and '.high' are not the extremes of the rows")
        problems += _magnitude_problems(file, entry.name(f"{part}.magnitudes"), largest)


class HeadExtremes:
    """Computes the extremes of one head from pieces of its rows, in order. `largest` is the largest finite
    magnitude."""

    def __init__(self, entry: LayerEntry, part: Part, pyramid: PyramidEntry, num_tokens: int) -> None:
        _, columns, bands = pyramid.shape(entry, part, num_tokens)
        self.low, self.high = (np.full((columns, bands), np.nan) for _ in range(2))
        self.largest = 0.0
        self._last_column = -1
        self._size, self._channels = pyramid.tokens_per_column, pyramid.channels(part)

    def update(self, rows: Array, first: int) -> None:
        """Add rows `[T, D]` that begin at position `first`."""
        stop = first + len(rows)
        columns = range(first // self._size, (stop - 1) // self._size + 1)
        begins = [max(first, column * self._size) - first for column in columns]
        bands = np.arange(0, rows.shape[1], self._channels)
        within = slice(columns.start, columns.stop)
        for cells, extreme in ((self.low, np.minimum), (self.high, np.maximum)):
            found = extreme.reduceat(extreme.reduceat(rows, bands, axis=1), begins, axis=0)
            if columns.start == self._last_column:
                found[0] = extreme(found[0], cells[columns.start])
            cells[within] = found
        finite = rows[np.isfinite(rows)]
        self.largest = max(self.largest, float(np.abs(finite).max(initial=0.0)))
        self._last_column = columns[-1]


def _magnitude_problems(file: SnapshotFile, name: str, largest: float) -> Iterator[str]:
    limit, told, clipped = (float(number) for number in file.numbers(name))
    if not (0 <= limit <= told and 0 <= clipped <= 1) or np.float32(told) != np.float32(largest):
        yield f"'{name}' are not the magnitudes of the rows"
