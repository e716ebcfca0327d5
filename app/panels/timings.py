"""The Step time panel: the phases of each step's time, and what measuring it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from PySide6.QtCore import QRectF
from PySide6.QtGui import QImage, QPainter, QPen

from app.draw.axis import Flags, Floats, LinearTicks, StepAxis, StepSeries
from app.draw.colormap import Pixels
from app.draw.format import byte_size, milliseconds, percent, thousands, tick_time
from app.kit.bars import ColorKey, names_of
from app.kit.chart import Chart, Painted, PlotFrame
from app.kit.painting import TextPainter, argb, pixels_image
from app.kit.provenance import Provenance, source_of
from app.kit.reader import SELECTION, STEPS
from app.kit.theme import font_fixed
from app.kit.view import View
from app.kit.widgets import column
from app.models import Models
from engine.spec.model import runner_words
from engine.wire.records import StepRecord, Timings

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
    millis: Floats,
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


def full_scale(total: Floats, is_prefill: Flags) -> float:
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


def looking_share(millis: Floats, is_prefill: Flags) -> float | None:
    """The fraction of the recent decode steps' time that was spent on looking; None without any."""
    decode = millis[~is_prefill][-RECENT_STEPS:, : PHASES.index("gap")]
    total = float(decode.sum())
    return float(decode[:, PHASES.index("looking")].sum()) / total if total > 0 else None


def _step_of_columns(total: Floats, x_range: tuple[float, float], width: int) -> npt.NDArray[np.intp]:
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


# ---- the panel -------------------------------------------------------------------------------------------------------


# The colours in the order of PHASES.
ROLES = ("page_used", "accent", "page_host", "page_shared", "signed_positive", "page_cached", "faint")
MOST_LABELS = 40
_LEAST_STEPS = 32  # least number of steps on the axis, so that the first few are narrow bars


class TimeBars:
    """Paints the bars of a range of steps; the image is cached until the range or size changes."""

    def __init__(self, millis: Floats, is_prefill: Flags, first: int, selected: int | None) -> None:
        """`first` is the place of the first row; `selected` the index of a row."""
        self._millis, self._is_prefill = millis, is_prefill
        self._first, self._selected = first, selected
        self.full_ms = full_scale(millis.sum(axis=1), is_prefill)
        self._key: object = None
        self._bars: Bars | None = None
        self._image = QImage()
        self._text = TextPainter(font_fixed(10))

    def bars(self, frame: PlotFrame) -> Bars:
        key = (frame.rect, frame.x_range, frame.ratio, frame.theme)
        if key != self._key or self._bars is None:
            ratio = frame.ratio
            size = (max(1, round(frame.rect.width() * ratio)), max(1, round(frame.rect.height() * ratio)))
            colours = tuple(argb(getattr(frame.theme, role)) for role in ROLES)
            x_range = frame.x_range[0] - self._first, frame.x_range[1] - self._first
            self._bars = paint(self._millis, self._is_prefill, x_range, self.full_ms, size, colours, round(ratio))
            self._image = pixels_image(self._bars.pixels, ratio)
            self._key = key
        return self._bars

    def paint(self, painter: QPainter, frame: PlotFrame) -> None:
        bars = self.bars(frame)
        painter.drawImage(frame.rect.topLeft(), self._image)
        if self._selected is not None:  # below the labels, which would be crossed by it
            painter.setPen(QPen(frame.theme.color("selected"), 1))
            left, right = self._span(frame, self._selected)
            box = QRectF(round(left) - 0.5, frame.rect.top() + 0.5, max(round(right - left), 2), frame.rect.height())
            painter.drawRect(box)
        self._paint_cut(painter, frame, bars)
        if bars.per_bar > 1:
            self._paint_tag(painter, frame, f"each bar the slowest of {bars.per_bar}")

    def _span(self, frame: PlotFrame, index: int) -> tuple[float, float]:
        """The pixels of a bar; at least one wide, where several share a pixel."""
        at = index + self._first
        left, right = frame.x_of(at - 0.5), frame.x_of(at + 0.5)
        return left, max(right, left + 1)

    def _paint_cut(self, painter: QPainter, frame: PlotFrame, bars: Bars) -> None:
        """Write the times of bars taller than the plot, the tallest first, as many as fit."""
        totals = {index: float(self._millis[index].sum()) for index in bars.clipped}
        tallest = sorted(totals, key=totals.__getitem__, reverse=True)[:MOST_LABELS]
        texts = ["↑ " + milliseconds(totals[index]) for index in tallest]
        start, top = frame.rect.left(), frame.rect.top()
        spans = [(left - start, right - start) for left, right in (self._span(frame, index) for index in tallest)]
        places = label_places(spans, [self._text.width(text) for text in texts], frame.rect.width())
        for text, x in zip(texts, places, strict=True):
            if x is not None:
                self._paint_words(painter, frame, start + x, top, "text", text)

    def _paint_tag(self, painter: QPainter, frame: PlotFrame, text: str) -> None:
        """Write that not every step has a bar."""
        left = frame.rect.right() - self._text.width(text) - 2
        self._paint_words(painter, frame, left, frame.rect.top() + 13, "muted", text)

    def _paint_words(self, painter: QPainter, frame: PlotFrame, x: float, top: float, role: str, text: str) -> None:
        """Write a text on a background of its own, which covers the bars behind."""
        painter.fillRect(QRectF(x - 1, top, self._text.width(text) + 3, 13), frame.theme.color("panel", 215))
        painter.setPen(frame.theme.color(role))
        self._text.left(painter, x, top + 6.5, text)


def timing_chart(millis: Floats, is_prefill: Flags, axis: StepAxis, selected: int | None) -> Chart:
    """The chart with one bar per step: `millis` `[N, 7]`; `axis` has the steps of the rows, `selected` is an index."""
    first = axis.first
    bars = TimeBars(millis, is_prefill, first, selected)
    count, total = len(millis), millis.sum(axis=1)
    points = np.column_stack([np.arange(first, first + count), np.minimum(total, bars.full_ms)])
    return Chart(
        (Painted(bars.paint),),
        points,
        axis.steps,
        ((first - 0.5, first + max(count, _LEAST_STEPS) - 0.5), (0.0, bars.full_ms)),
        LinearTicks(axis.name, least=1),
        LinearTicks(tick_time),
    )


HIDDEN_SHARE = 0.2  # fraction of a forward: if attention and cache take less, other cache modes look alike
READING_RATE = 2e9  # bytes a second: assumed so low that any memory reaches it, even for one core and scattered rows


class StepTimes(Struct, frozen=True):
    """The history up to its newest record, the index of the selected one, and the record to describe."""

    newest: StepRecord
    num_steps: int
    selected: int | None
    described: StepRecord


class TimingsView(View[StepTimes]):
    """Clicking a bar selects its step."""

    name = "timings"
    follows = (SELECTION, STEPS)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._series = StepSeries(step_row, len(PHASES) + 1)
        self.plot = self.new_plot("Time of every step, split into phases", self.select_step)
        self.key = ColorKey()
        self.set_body(column(self.key, self.plot))
        self.follow(models)

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> StepTimes | str:
        timeline, pointed = self._models.timeline, self.plot.pointed_key
        records, step = timeline.records, self._models.selection.now.step
        newest = timeline.latest
        if newest is None:
            return "Each step's time, phase by phase, appears here."
        if why_not := self._models.status.why_unmeasured("times"):
            return why_not
        if self._models.status.has_file and newest.timings.total_ms == 0:
            return "No times are in this file: nothing of its steps was recorded."
        shown = timeline.at(step) or newest
        described = timeline.record(pointed) if pointed is not None else None
        selected = None if step is None else timeline.index_of(shown.step)
        return StepTimes(newest, len(records), selected, described or shown)

    def provenance(self, state: StepTimes) -> Provenance:
        return source_of(self._models, "recorded", "", state.described.step)

    def show_state(self, state: StepTimes) -> None:
        self.plot.show_made((state.newest, state.num_steps, state.selected), partial(self._chart, state.selected))
        record = state.described
        total = milliseconds(record.timings.total_ms)
        encoder = f", encoder {milliseconds(record.timings.encoder_ms)}" if record.timings.encoder_ms else ""
        compiled = f" · compiled before, {milliseconds(record.timings.compile_ms)}" if record.timings.compile_ms else ""
        ways = f" · {runner_words(record.runner)}" if record.runner else ""
        hidden = " · the cache takes little of it" if hides_cache(record) else ""
        self.plot.show_words(
            f"step {thousands(record.step)} · {record.phase} · {total}{encoder}{compiled}{ways}{hidden}"
        )
        self.plot.setToolTip(phase_words(record))

    def _chart(self, selected: int | None) -> Chart:
        timeline = self._models.timeline
        rows = self._series.follow(timeline.records)
        millis, is_prefill = rows[:, :-1], rows[:, -1] > 0
        names = _key_names(looking_share(millis, is_prefill), is_inside=bool(millis[:, 1:3].any()))
        self.key.show_keys(names_of(ROLES, names))
        return timing_chart(millis, is_prefill, StepAxis(timeline.steps), selected)


def phase_words(record: StepRecord) -> str:
    """A step's phases with their times."""
    times, step = record.timings, thousands(record.step)
    measured = times.forward_ms + times.encoder_ms, times.prepare_ms, times.sample_ms, times.observe_ms
    forward, prepare, sample, observe = map(milliseconds, measured)
    by = f" by {runner_words(record.runner)}" if record.runner else ""
    if record.timings.encoder_ms:
        by += f", {milliseconds(record.timings.encoder_ms)} for the encoder"
    words = f"step {step}: forward {forward}{by}, prepare {prepare}, sample {sample}, measuring {observe}"
    if times.gap_ms:
        words += f"; {milliseconds(times.gap_ms)} passed since the step before"
    if times.compile_ms:
        words += f"; the step was compiled in {milliseconds(times.compile_ms)}, which is in none of these"
    if times.layers is not None:
        return f"{words}\n{inside_words(times)}"
    return f"{words}\n{reading_words(record)}" if hides_cache(record) else words


def reading_words(record: StepRecord) -> str:
    """Why the cache mode hardly affects a forward that was not timed by layer, and how to measure it."""
    share, rate = percent(reading_share(record) or 0.0), f"{READING_RATE / 1e9:g} GB a second"
    return (
        f"K and V take {byte_size(record.num_bytes.stored)}: at {rate}, a speed that is assumed and that slow memory "
        f"has too, reading them takes {share} of this forward. With a model and a context of this size, products and "
        "fixed costs hide what the cache saves. Time every layer, under Run · Measuring, measures it"
    )


def inside_words(times: Timings) -> str:
    """The parts of a forward that was timed layer by layer, and whether the cache mode affects it."""
    layers = times.layers
    assert layers is not None
    parts = (
        ("attention", layers.attention_ms),
        ("cache", layers.cache_ms),
        ("dequantising", layers.dequantise_ms),
        ("gathering", layers.copies_ms),
    )
    found = [f"{name} {milliseconds(sum(each))}{_slowest(layers.layers, each)}" for name, each in parts if sum(each)]
    rest = max(0.0, times.forward_ms - sum(layers.attention_ms) - layers.in_cache_ms)
    products = min(layers.products_ms, rest)
    found.append(f"matrix products {milliseconds(products)}, measured by themselves")
    found.append(f"the rest {milliseconds(rest - products)}, which are fixed costs")
    words = "inside the forward: " + "; ".join(found)
    if (share := inside_share(times)) is not None and share < HIDDEN_SHARE:
        words += (
            f"\nAttention and the cache are {percent(share)} of this forward: with a model and a "
            "context of this size, products and fixed costs hide what the cache saves"
        )
    return words


def hides_cache(record: StepRecord) -> bool:
    """Whether attention and cache take so little of a step's forward that modes look alike: as timed by layer, else
    estimated from the bytes read."""
    share = inside_share(record.timings)
    share = reading_share(record) if share is None else share
    return share is not None and share < HIDDEN_SHARE


def inside_share(times: Timings) -> float | None:
    """The fraction of a forward for attention and cache; None if it was not timed by layer."""
    if times.layers is None or not times.forward_ms:
        return None
    return (sum(times.layers.attention_ms) + times.layers.in_cache_ms) / times.forward_ms


def reading_share(record: StepRecord) -> float | None:
    """An upper bound on the fraction of a decode step's forward for reading all K and V. None if the cache has other
    costs: rows that are dequantised or recomputed."""
    spec, times = record.cache, record.timings
    is_read = spec.holds_exact_rows and not spec.recomputes
    if record.phase != "decode" or not is_read or not times.forward_ms or not record.num_bytes.stored:
        return None
    return record.num_bytes.stored / READING_RATE * 1e3 / times.forward_ms


def _slowest(layers: tuple[int, ...], each: tuple[float, ...]) -> str:
    """Name the layer that took most, if it took much more than the mean."""
    worst = max(range(len(each)), key=each.__getitem__)
    is_apart = len(each) > 1 and each[worst] > 3 * sum(each) / len(each)
    return f" (layer {layers[worst]}: {milliseconds(each[worst])})" if is_apart else ""


def _key_names(share: float | None, *, is_inside: bool) -> tuple[str, ...]:
    """The legend in the order of `PHASES`; empty for phases that were not timed."""
    measuring = f"measuring {percent(share)} of decoding" if share is not None else "measuring"
    inside = ("attention", "cache") if is_inside else ("", "")
    return "rest of the forward" if is_inside else "forward", *inside, "prepare", "sample", measuring, "between"
