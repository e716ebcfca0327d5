"""More cells than pixels, or fewer: resampling an axis without losing what stands out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from app.draw.colormap import Floats


def resample(low: Floats, high: Floats, size: int, axis: int) -> tuple[Floats, Floats]:
    """`size` cells along an axis: extremes of the cells that fall together, repeats where there are fewer."""
    count = low.shape[axis]
    if count == size:
        return low, high
    if count < size:
        source = source_cells(count, size)
        return low.take(source, axis=axis), high.take(source, axis=axis)
    starts = first_cells(count, size)
    return np.minimum.reduceat(low, starts, axis=axis), np.maximum.reduceat(high, starts, axis=axis)


def whole_steps(pixels: float, step: int) -> int:
    """Columns for so many pixels: at most one each, in whole steps, at least one step."""
    return max(step, int(pixels) // step * step)


def source_cells(count: int, size: int) -> npt.NDArray[np.intp]:
    """For each of `size` pixels, which of `count` cells it shows."""
    return np.arange(size, dtype=np.intp) * count // size


def first_cells(count: int, size: int) -> npt.NDArray[np.intp]:
    """For each of `size` pixels, the first of the `count` cells that fall into it (`count >= size`)."""
    return -(-np.arange(size, dtype=np.intp) * count // size)


def cell_span(cell: int, count: int, size: int) -> tuple[int, int]:
    """The pixels `start … stop` of one cell, at least one of them."""
    if count > size:
        pixel = min(cell * size // count, size - 1)
        return pixel, pixel + 1
    start, stop = -(-cell * size // count), -(-(cell + 1) * size // count)
    return start, max(stop, start + 1)


def cell_at(pixel: int, count: int, size: int) -> int:
    """The cell that a pixel shows; of several, the first."""
    return min(max(pixel, 0), size - 1) * count // size if count <= size else -(-pixel * count // size)
