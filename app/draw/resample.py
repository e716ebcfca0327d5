"""Resamples an axis to more or fewer pixels without losing extreme values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from app.draw.colormap import Floats


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
