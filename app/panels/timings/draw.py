"""The time of each step as stacked bars: one picture, however many steps there are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from engine.wire.records import StepRecord

Pixels = npt.NDArray[np.uint32]
Millis = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# From the bottom of a bar up. What was timed inside a forward is separate from its rest; the gap before a step is not
# part of it, and is drawn on top.
PHASES = ("forward", "attention", "cache", "prepare", "sample", "looking", "gap")
_HATCH = 4
LABEL_GAP = 3.0  # pixels between a bar and its label
RECENT_STEPS = 64  # decode steps over which the share of looking is computed


class Bars(Struct, frozen=True):
    """The picture: 0xAARRGGBB on transparency. `steps` `[width]`: the index of the step shown by each pixel column, -1
    for none; of `per_bar` steps that share a column the slowest is shown. `clipped`: indices of bars that are cut at
    the top."""

    pixels: Pixels
    steps: npt.NDArray[np.intp]
    per_bar: int
    clipped: tuple[int, ...]


def step_row(record: StepRecord) -> tuple[float, ...]:
    """A record's milliseconds in the order of `PHASES`, and 1 for a prefill. An encoder's run counts as forward."""
    times, layers = record.timings, record.timings.layers
    forward = times.forward_ms + times.encoder_ms
    attention, cache = (sum(layers.attention_ms), layers.in_cache_ms) if layers is not None else (0.0, 0.0)
    rest = max(0.0, forward - attention - cache)
    parts = rest, attention, cache, times.prepare_ms, times.sample_ms, times.observe_ms, times.gap_ms
    return *map(float, parts), float(record.phase == "prefill")


def paint(
    millis: Millis,
    is_prefill: Flags,
    x_range: tuple[float, float],
    full_ms: float,
    size: tuple[int, int],
    colours: Sequence[int],
    scale: int = 1,
) -> Bars:
    """Paint the steps of a range of indices as bars around their index, on `size` (width, height) pixels, `scale` of
    which are one logical pixel. A prefill is hatched; bars taller than the picture are cut."""
    width, height = size
    total = millis.sum(axis=1)
    steps = _step_of_columns(total, x_range, width)
    pixels = np.zeros((height, width), dtype=np.uint32)
    there = np.flatnonzero(steps >= 0)
    if not there.size:
        return Bars(pixels, steps, 1, ())
    shown = steps[there]
    heights = np.rint(np.cumsum(millis[shown], axis=1) * (height / full_ms)).astype(np.int32)
    columns = _stack(np.minimum(heights, height), height, colours)
    pixels[:, there] = _hatched(columns, is_prefill[shown], scale)
    per_column = (x_range[1] - x_range[0]) / width
    if 1 / per_column > 3 * scale:  # leave a gap between two bars
        pixels[:, :-scale][:, steps[:-scale] != steps[scale:]] = 0
    clipped = np.unique(shown[heights[:, -1] > height])
    return Bars(pixels, steps, max(1, math.ceil(per_column - 1e-9)), tuple(int(index) for index in clipped))


def full_scale(total: Millis, is_prefill: Flags) -> float:
    """The height of the plot in milliseconds: a little more than the slow decode steps take. Prefills, and the slowest
    of many steps, are not considered, so that they do not flatten the others."""
    decode = total[~is_prefill] if not is_prefill.all() else total
    if not decode.size:
        return 1.0
    rank = int(0.99 * (decode.size - 1)) if decode.size > 50 else decode.size - 1
    top = float(np.partition(decode, rank)[rank])
    return max(1.15 * top, 1e-3)


def label_places(bars: Sequence[tuple[float, float]], widths: Sequence[float], high: float) -> list[float | None]:
    """The x of a label beside each of some bars `(left, right)`, the most important first: to the right, else to the
    left, never over another bar or label nor outside `0 … high`; None if there is no space."""
    taken = list(bars)
    places: list[float | None] = []
    for (left, right), width in zip(bars, widths, strict=True):
        found = None
        for start in (right + LABEL_GAP, left - LABEL_GAP - width):
            is_free = all(start + width <= low or start >= end for low, end in taken)
            if is_free and start >= 0 and start + width <= high:
                found = start
                taken.append((start - LABEL_GAP, start + width + LABEL_GAP))
                break
        places.append(found)
    return places


def looking_share(millis: Millis, is_prefill: Flags) -> float | None:
    """The fraction of the recent decode steps' time that was spent on looking; None without any."""
    decode = millis[~is_prefill][-RECENT_STEPS:, : PHASES.index("gap")]
    total = float(decode.sum())
    return float(decode[:, PHASES.index("looking")].sum()) / total if total > 0 else None


def _step_of_columns(total: Millis, x_range: tuple[float, float], width: int) -> npt.NDArray[np.intp]:
    """`[width]`: the index of the step shown by each column, -1 for none; of several the slowest."""
    low, high = x_range
    per_column = (high - low) / width
    edges = low + np.arange(width + 1) * per_column
    if per_column <= 1:
        steps = np.floor(edges[:-1] + per_column / 2 + 0.5).astype(np.intp)
        return np.where((steps >= 0) & (steps < total.size), steps, -1)
    starts = np.clip(np.ceil(edges - 1e-9), 0, total.size).astype(np.intp)
    steps = np.full(width, -1, dtype=np.intp)
    there = np.flatnonzero(np.diff(starts) > 0)
    if there.size:
        first, last = starts[there[0]], starts[there[-1] + 1]
        part, begins = total[first:last], starts[there] - first
        peaks = np.maximum.reduceat(part, begins)
        run = np.repeat(np.arange(there.size), np.diff(np.append(begins, part.size)))
        at_peak = np.flatnonzero(part == peaks[run])
        steps[there] = first + at_peak[np.searchsorted(run[at_peak], np.arange(there.size))]
    return steps


def _stack(heights: npt.NDArray[np.int32], height: int, colours: Sequence[int]) -> Pixels:
    """`[height, columns]`: each pixel has the colour of the first phase that reaches up to it."""
    above = np.arange(height, 0, -1, dtype=np.int32)[:, None]
    phase = (above > heights.T[0]).astype(np.uint8)
    for top in heights.T[1:]:
        phase += above > top
    coloured: Pixels = np.take(np.array([*colours, 0], dtype=np.uint32), phase)
    return coloured


def _hatched(columns: Pixels, is_prefill: Flags, scale: int) -> Pixels:
    """Cross prefills by transparent diagonals, so that they differ not only in height."""
    marked = np.flatnonzero(is_prefill)
    if marked.size:
        diagonal = (np.arange(columns.shape[0])[:, None] + marked[None, :]) // scale % _HATCH == 0
        columns[:, marked] = np.where(diagonal, 0, columns[:, marked])
    return columns
