"""Where each step's time went: stacked bars, one picture however many steps there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.draw.resample import first_cells
from engine.wire.records import StepRecord

Pixels = npt.NDArray[np.uint32]
Millis = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

# From the bottom of a bar up
PHASES = ("forward_ms", "prepare_ms", "sample_ms", "observe_ms")
_MAX_BAR = 14
_HATCH = 4


@dataclass(frozen=True)
class Bars:
    """Which step each bar shows and where it stands. `scale_ms` is the full height; `clipped` bars are taller."""

    pixels: Pixels
    steps: npt.NDArray[np.intp]
    num_steps: int
    per_bar: int
    pitch: int
    bar_width: int
    scale_ms: float
    clipped: tuple[int, ...]

    def index_at(self, x: float) -> int | None:
        """The index of the step under a pixel column, None beside the bars."""
        bar = int(x // self.pitch)
        return int(self.steps[bar]) if 0 <= bar < self.steps.size else None

    def bar_of(self, index: int) -> tuple[int, int] | None:
        """Left edge and width of the bar that shows a step, or stands for it."""
        if not 0 <= index < self.num_steps:
            return None
        # runs are cut as `first_cells` cuts them, so the bar of a step is that of its run
        bar = index if self.per_bar == 1 else index * self.steps.size // self.num_steps
        return bar * self.pitch, self.bar_width


def phase_row(record: StepRecord) -> tuple[float, ...]:
    """A record's milliseconds in the order of `PHASES`."""
    return tuple(float(getattr(record.timings, phase)) for phase in PHASES)


def phase_table(records: Iterable[StepRecord]) -> tuple[Millis, Flags]:
    """`[N, 4]` milliseconds, and which steps are prefill."""
    rows = [(phase_row(record), record.phase == "prefill") for record in records]
    millis = np.array([row for row, _ in rows], dtype=np.float32).reshape(-1, len(PHASES))
    return millis, np.array([is_prefill for _, is_prefill in rows], dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Every step of a history, oldest first: `[N, 4]` milliseconds, which steps are prefill, and the first one."""

    millis: Millis
    is_prefill: Flags
    first_step: int

    @property
    def num_steps(self) -> int:
        return len(self.millis)


NO_TIMES = StepTimes(np.zeros((0, len(PHASES)), np.float32), np.zeros(0, np.bool_), 0)


class StepTimesTable:
    """Step times that grow with the history: taking records costs what is new."""

    def __init__(self) -> None:
        self._millis = np.zeros((256, len(PHASES)), np.float32)
        self._is_prefill = np.zeros(256, np.bool_)
        self._last: StepRecord | None = None
        self._times = NO_TIMES

    def take(self, records: Sequence[StepRecord]) -> StepTimes:
        """The times of these records; the same object as long as nothing is new. A history that was cut is read
        again."""
        known = self._times.num_steps
        if known > len(records) or (known and records[known - 1] is not self._last):
            known = 0
        if known < len(records) or known < self._times.num_steps:
            self._append(known, records[known:])
            first = records[0].step if records else 0
            count = len(records)
            self._times = StepTimes(self._millis[:count], self._is_prefill[:count], first)
            self._last = records[-1] if records else None
        return self._times

    def _append(self, known: int, new: Sequence[StepRecord]) -> None:
        need = known + len(new)
        if need > len(self._millis):
            room = max(need, 2 * len(self._millis))
            self._millis = np.resize(self._millis, (room, len(PHASES)))
            self._is_prefill = np.resize(self._is_prefill, room)
        self._millis[known:need], self._is_prefill[known:need] = phase_table(new)


def paint(
    millis: Millis, is_prefill: Flags, width: int, height: int, colours: tuple[int, int, int, int], scale: int = 1
) -> Bars:
    """Bars of 0xAARRGGBB on transparency; of steps that share a bar the slowest is shown.

    The scale follows the decode steps: a prefill that takes a hundred times longer is cut and told, hatched as it is.
    """
    total = millis.sum(axis=1)
    steps, per_bar = _slowest_of_each(total, max(1, width)), max(1, -(-total.size // max(1, width)))
    pitch = max(1, min(_MAX_BAR * scale, width // max(1, steps.size)))
    bar_width = pitch - scale if pitch > 3 * scale else pitch
    full = _full_scale(total, is_prefill)
    heights = np.rint(np.cumsum(millis[steps], axis=1) * (height / full)).astype(np.int32)
    pixels = np.zeros((height, width), dtype=np.uint32)
    if steps.size:
        coloured = _stack(np.minimum(heights, height), is_prefill[steps], height, colours)
        columns = np.repeat(coloured, pitch, axis=1)
        columns[:, np.arange(columns.shape[1]) % pitch >= bar_width] = 0
        pixels[:, : columns.shape[1]] = _hatched(columns, np.repeat(is_prefill[steps], pitch), scale)
    clipped = tuple(int(bar) for bar in np.flatnonzero(heights[:, -1] > height)) if steps.size else ()
    return Bars(pixels, steps, total.size, per_bar, pitch, bar_width, full, clipped)


def grid_lines(scale_ms: float) -> tuple[float, ...]:
    """Two to four round heights below the full one, in milliseconds, to read the others by."""
    if not scale_ms > 0:
        return ()
    power = 10.0 ** math.floor(math.log10(scale_ms / 2))
    step = max(unit * power for unit in (1, 2, 5) if unit * power * 2 <= scale_ms * 1.000001)
    return tuple(step * n for n in range(1, int(scale_ms / step + 1e-9) + 1) if step * n < scale_ms * 0.97)


def label_places(
    bars: Sequence[tuple[float, float]], widths: Sequence[float], high: float, gap: float = 3.0
) -> list[float | None]:
    """Where a label stands beside each of some bars `(left, right)`, given the most important first: to the right, else
    to the left, never over another bar or label nor beyond `0 … high`; None where there is no room."""
    taken = list(bars)
    places: list[float | None] = []
    for (left, right), width in zip(bars, widths, strict=True):
        found = None
        for start in (right + gap, left - gap - width):
            is_free = all(start + width <= low or start >= end for low, end in taken)
            if is_free and start >= 0 and start + width <= high:
                found = start
                taken.append((start - gap, start + width + gap))
                break
        places.append(found)
    return places


def looking_share(millis: Millis, is_prefill: Flags, last: int = 64) -> float | None:
    """What part of the recent decode steps' time went into looking."""
    decode = millis[~is_prefill][-last:]
    total = float(decode.sum())
    return float(decode[:, PHASES.index("observe_ms")].sum()) / total if total > 0 else None


def _slowest_of_each(total: Millis, bars: int) -> npt.NDArray[np.intp]:
    """Every step where there is room, else of each run of neighbours the slowest one."""
    if total.size <= bars:
        return np.arange(total.size, dtype=np.intp)
    starts = first_cells(total.size, bars)
    peaks = np.maximum.reduceat(total, starts)
    run = np.repeat(np.arange(bars), np.diff(np.append(starts, total.size)))
    at_peak = np.flatnonzero(total == peaks[run])
    first_of_run = np.searchsorted(run[at_peak], np.arange(bars))
    slowest: npt.NDArray[np.intp] = at_peak[first_of_run]
    return slowest


def _full_scale(total: Millis, is_prefill: Flags) -> float:
    """A little more than the slow decode steps take; one hiccup of many does not flatten all the others."""
    decode = total[~is_prefill] if not is_prefill.all() else total
    if not decode.size:
        return 1.0
    rank = int(0.99 * (decode.size - 1)) if decode.size > 50 else decode.size - 1
    top = float(np.partition(decode, rank)[rank])
    return max(1.15 * top, 1e-3)


def _stack(
    heights: npt.NDArray[np.int32], is_prefill: Flags, height: int, colours: tuple[int, int, int, int]
) -> Pixels:
    """`[height, bars]`: each pixel takes the colour of the first phase that reaches up to it."""
    above = np.arange(height, 0, -1, dtype=np.int32)[:, None]
    phase = (above > heights.T[0]).astype(np.uint8)
    for top in heights.T[1:]:
        phase += above > top
    coloured: Pixels = np.take(np.array([*colours, 0], dtype=np.uint32), phase)
    return coloured


def _hatched(columns: Pixels, is_prefill: Flags, scale: int) -> Pixels:
    """Prefill is crossed by transparent diagonals: told by more than its colour."""
    marked = np.flatnonzero(is_prefill)
    if marked.size:
        diagonal = (np.arange(columns.shape[0])[:, None] + marked[None, :]) // scale % _HATCH == 0
        columns[:, marked] = np.where(diagonal, 0, columns[:, marked])
    return columns
