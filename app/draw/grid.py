"""Columns of pictures over tokens: which are visible, which position is in which, and several in one
pixel; and the means of rows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from app.draw.colormap import Floats, Indices


def resample(low: Floats, high: Floats, size: int, axis: int) -> tuple[Floats, Floats]:
    """Resample to `size` cells along an axis: minimum and maximum of cells that are merged, repeated cells if there are
    fewer."""
    count = low.shape[axis]
    if count == size:
        return low, high
    if count < size:
        source = source_cells(count, size)
        return low.take(source, axis=axis), high.take(source, axis=axis)
    starts = first_cells(count, size)
    return np.minimum.reduceat(low, starts, axis=axis), np.maximum.reduceat(high, starts, axis=axis)


def pooled_rows(indices: Indices, most: int, ground: int) -> Indices:
    """Colour indices `[rows, columns]` in at most so many rows: of each group of rows that of the value farthest from
    zero, whose index is `ground`."""
    if len(indices) <= most:
        return indices
    starts = first_cells(len(indices), most)
    low, high = np.minimum.reduceat(indices, starts), np.maximum.reduceat(indices, starts)
    return np.where(high.astype(np.int16) - ground >= ground - low.astype(np.int16), high, low)


def row_means(rows: Floats) -> list[float]:
    """The mean of each row of numbers without its NaN (places that do not exist); NaN if none is left."""
    is_there = ~np.isnan(rows)
    count = is_there.sum(axis=1)
    total = np.where(is_there, rows, 0).sum(axis=1)
    means: list[float] = np.where(count > 0, total / np.maximum(count, 1), np.nan).tolist()
    return means


def whole_steps(pixels: float, step: int) -> int:
    """How many columns to request for so many pixels: a multiple of `step`, at most one per pixel, at least `step`."""
    return max(step, int(pixels) // step * step)


def source_cells(count: int, size: int) -> npt.NDArray[np.intp]:
    """For each of `size` pixels, the index of the cell (of `count`) that it shows."""
    return np.arange(size, dtype=np.intp) * count // size


def first_cells(count: int, size: int) -> npt.NDArray[np.intp]:
    """For each of `size` pixels, the first of the cells (of `count >= size`) that are merged in it."""
    return -(-np.arange(size, dtype=np.intp) * count // size)


def cell_span(cell: int, count: int, size: int) -> tuple[int, int]:
    """The pixels `start … stop` of a cell, at least one."""
    if count > size:
        pixel = min(cell * size // count, size - 1)
        return pixel, pixel + 1
    start, stop = -(-cell * size // count), -(-(cell + 1) * size // count)
    return start, max(stop, start + 1)


def cell_at(pixel: int, count: int, size: int) -> int:
    """The cell that a pixel shows; the first, if it shows several."""
    return min(max(pixel, 0), size - 1) * count // size if count <= size else -(-pixel * count // size)


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
