"""The plot of memory over the steps: bytes stored and reserved by the cache, held by allocator and process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from app.draw.axis import ByteTicks, LinearTicks
from app.draw.format import byte_size, thousands, tick_size
from app.draw.step_axis import StepAxis
from app.kit.chart.marks import Chart, ChartMark, Curve, Dots, SelectedLine
from engine.wire.records import StepRecord

NAMES = ("stored", "reserved", "overhead", "weights", "allocator", "process", "peak")
ROLES = ("page_used", "page_shared", "good", "accent", "page_cached", "muted", "warning")
_LEAST_STEPS = 12


def memory_row(record: StepRecord) -> tuple[float, ...]:
    """A record's bytes in the order of `NAMES`; NaN if unknown or zero."""
    held = record.num_bytes
    aside = (held.looking, held.weights, held.allocator, held.process, held.peak)
    return float(held.stored), float(held.reserved), *(float(size) if size else float("nan") for size in aside)


def memory_chart(rows: npt.NDArray[np.float64], axis: StepAxis, selected: int | None) -> Chart:
    """`rows` `[N, 7]` of bytes on a logarithmic axis, as a process holds thousands of times what a short cache does.
    Each curve has a dot at its peak. `axis` has the steps of the rows; `selected` is one of them."""
    first = axis.first
    steps = np.arange(first, first + len(rows), dtype=np.float64)
    values = np.log2(np.maximum(rows, 1.0))
    marks: list[ChartMark] = []
    for column, role in enumerate(ROLES):
        held = np.isfinite(rows[:, column])
        if held.any():
            x, y = steps[held], values[held, column]
            peak = int(y.argmax())
            marks.append(Curve(x, y, role, 1.6, is_dashed=NAMES[column] in ("reserved", "peak")))
            marks.append(Dots(x[peak : peak + 1], y[peak : peak + 1], role, size=6, fill="panel"))
    if selected is not None and (place := axis.place_of(selected)) is not None:
        marks.append(SelectedLine(place))
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    return Chart(
        tuple(marks),
        np.column_stack([steps, values[:, 0]]),
        ((first - 0.5, first + max(len(rows), _LEAST_STEPS) - 0.5), (low - 0.5, high + 0.5)),
        LinearTicks(axis.name, least=1),
        ByteTicks(tick_size),
        "",
        peak_words(rows),
        can_zoom_y=True,
    )


def key_names(rows: npt.NDArray[np.float64]) -> tuple[str, ...]:
    """A name for each column; empty if it has no curve (on a CPU there is no allocator)."""
    has_curve = [bool(np.isfinite(column).any()) for column in rows.T]
    return tuple(name if has else "" for name, has in zip(NAMES, has_curve, strict=True))


def peak_words(rows: npt.NDArray[np.float64]) -> str:
    """`peak: stored 390.0 KiB · process 587.1 MiB`."""
    return f"peak: {_words(np.nanmax(np.where(np.isfinite(rows), rows, 0), axis=0))}"


def step_words(record: StepRecord) -> str:
    """The bytes after a step, with their names."""
    return f"step {thousands(record.step)} · {_words(np.array(memory_row(record)))}"


def _words(row: npt.NDArray[np.float64]) -> str:
    return " · ".join(f"{name} {byte_size(int(size))}" for name, size in zip(NAMES, row, strict=True) if size > 0)
