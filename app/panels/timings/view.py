"""The Step time panel: the phases of each step's time, and what measuring it cost."""

from __future__ import annotations

from msgspec import Struct

from app.draw.format import byte_size, milliseconds, percent, thousands
from app.draw.step_axis import StepAxis, StepSeries
from app.kit.boxes import column
from app.kit.chart.key import ColorKey
from app.kit.chart.plot import StepPlot
from app.kit.provenance import Provenance, source_of
from app.kit.reader import SELECTION, STEPS
from app.kit.theme import current_theme
from app.kit.view import View
from app.models import Models
from app.panels.timings import draw
from app.panels.timings.chart import ROLES, timing_chart
from engine.spec.runners import runner_words
from engine.wire.records import StepRecord, Timings

HIDDEN_SHARE = 0.2  # fraction of a forward: if attention and cache take less, other cache modes look alike
READING_RATE = 2e9  # bytes a second: assumed so low that any memory reaches it, even for one core and scattered rows


class StepTimes(Struct, frozen=True):
    """The history up to its newest record, the index of the selected one, and the record to describe."""

    newest: StepRecord
    num_steps: int
    selected: int | None
    told: StepRecord


class TimingsView(View[StepTimes]):
    """Clicking a bar selects its step."""

    title = "Step time"
    abilities = frozenset(("view.reset",))
    follows = (SELECTION, STEPS)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._series = StepSeries(draw.step_row, len(draw.PHASES) + 1)
        self._drawn: tuple[object, ...] = ()
        self.plot = StepPlot("Time of every step, split into phases")
        self.key = ColorKey(ROLES)
        self.set_body(column(self.key, self.plot))
        self.plot.connect_steps(self.refresh, self._on_picked, self.told)
        self.follow(models)

    def _on_picked(self, step: int) -> None:
        self._models.selection.update(step=step)

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> StepTimes | str:
        timeline, pointed = self._models.timeline, self.plot.pointed_step
        records, step = timeline.records, self._models.selection.now.step
        newest = timeline.latest
        if newest is None:
            return "Each step's time, phase by phase, appears here."
        if why_not := self._models.status.why_unmeasured("times"):
            return why_not
        if self._models.status.has_file and newest.timings.total_ms == 0:
            return "No times are in this file: nothing of its steps was recorded."
        shown = timeline.at(step) or newest
        told = timeline.record(pointed) if pointed is not None else None
        selected = None if step is None else timeline.index_of(shown.step)
        return StepTimes(newest, len(records), selected, told or shown)

    def provenance(self, state: StepTimes) -> Provenance:
        return source_of(self._models, "recorded", "", state.told.step)

    def show_state(self, state: StepTimes) -> None:
        drawn = (state.newest, state.num_steps, state.selected, current_theme())
        if drawn != self._drawn:  # pointing at another bar needs no new plot
            self._drawn = drawn
            rows = self._series.follow(self._models.timeline.records)
            millis, is_prefill = rows[:, :-1], rows[:, -1] > 0
            axis = StepAxis(self._models.timeline.steps)
            steps = list(self._models.timeline.steps)
            self.plot.show_steps(timing_chart(millis, is_prefill, axis, state.selected), steps)
            is_inside = bool(millis[:, 1:3].any())
            self.key.set_names(_key_names(draw.looking_share(millis, is_prefill), is_inside=is_inside))
        record = state.told
        total = milliseconds(record.timings.total_ms)
        encoder = f", encoder {milliseconds(record.timings.encoder_ms)}" if record.timings.encoder_ms else ""
        compiled = f" · compiled before, {milliseconds(record.timings.compile_ms)}" if record.timings.compile_ms else ""
        ways = f" · {runner_words(record.runner)}" if record.runner else ""
        hidden = " · the cache takes little of it" if hides_cache(record) else ""
        self.plot.show_words(
            f"step {thousands(record.step)} · {record.phase} · {total}{encoder}{compiled}{ways}{hidden}"
        )
        self.plot.setToolTip(phase_words(record))


def phase_words(record: StepRecord) -> str:
    """A step's phases with their times."""
    times, step = record.timings, thousands(record.step)
    measured = times.forward_ms + times.encoder_ms, times.prepare_ms, times.sample_ms, times.observe_ms
    forward, prepare, sample, observe = map(milliseconds, measured)
    by = f" by {runner_words(record.runner)}" if record.runner else ""
    if record.timings.encoder_ms:
        by += f", {milliseconds(record.timings.encoder_ms)} for the encoder"
    words = f"step {step}: forward {forward}{by}, prepare {prepare}, sample {sample}, overhead {observe}"
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
        "overhead hide what the cache saves. Time every layer, under Run · Measuring, measures it"
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
    told = [f"{name} {milliseconds(sum(each))}{_slowest(layers.layers, each)}" for name, each in parts if sum(each)]
    rest = max(0.0, times.forward_ms - sum(layers.attention_ms) - layers.in_cache_ms)
    products = min(layers.products_ms, rest)
    told.append(f"matrix products {milliseconds(products)}, measured by themselves")
    told.append(f"the rest {milliseconds(rest - products)}, which is overhead")
    words = "inside the forward: " + "; ".join(told)
    if (share := inside_share(times)) is not None and share < HIDDEN_SHARE:
        words += (
            f"\nAttention and the cache are {percent(share)} of this forward: with a model and a "
            "context of this size, products and overhead hide what the cache saves"
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
    is_read = spec.codec.is_exact and spec.quantizer is None and not spec.recomputes
    if record.phase != "decode" or not is_read or not times.forward_ms or not record.num_bytes.stored:
        return None
    return record.num_bytes.stored / READING_RATE * 1e3 / times.forward_ms


def _slowest(layers: tuple[int, ...], each: tuple[float, ...]) -> str:
    """Name the layer that took most, if it took much more than the mean."""
    worst = max(range(len(each)), key=each.__getitem__)
    is_apart = len(each) > 1 and each[worst] > 3 * sum(each) / len(each)
    return f" (layer {layers[worst]}: {milliseconds(each[worst])})" if is_apart else ""


def _key_names(share: float | None, *, is_inside: bool) -> tuple[str, ...]:
    """The legend in the order of `draw.PHASES`; empty for phases that were not timed."""
    overhead = f"overhead {percent(share)} of decoding" if share is not None else "overhead"
    inside = ("attention", "cache") if is_inside else ("", "")
    return "rest of the forward" if is_inside else "forward", *inside, "prepare", "sample", overhead, "between"
