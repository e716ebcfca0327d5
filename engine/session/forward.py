"""The forwards of a step: a single batched one where the cache can batch sequences of different lengths, else one for
each sequence; what is captured of them, how they are timed, and the phases at which a watched step pauses."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch

from engine.cache.attention_probe import Probe
from engine.cache.part_timer import LayerPart, PartTimer, timed_layers
from engine.cache.sequence_cache import SequenceCache
from engine.device import DeviceTime, HostTime, device_now, to_device
from engine.errors import Check
from engine.history.history import LateSurprisal
from engine.look.measures import WantedMeasures, nan_where_evicted, spread
from engine.look.source import HalfWritten
from engine.model.batch import Batch, LayerCallback, Result, Surprisal
from engine.model.loader import LoadedModel
from engine.model.tokenizer import TokenTexts
from engine.model.weights import products_ms
from engine.session.sampler import SampledToken, with_candidates
from engine.session.scheduler import SequenceWork
from engine.session.states import LiveSequences
from engine.spec.model import CAPTURES, DEFAULT_CAPTURE, CaptureLevel, captures
from engine.wire.pages import PageAllocated
from engine.wire.records import LayerTimes, SequenceStep, StepRecord, Timings, read_only_floats
from engine.wire.status import (
    Chosen,
    ChosenToken,
    LayerDone,
    NewRow,
    PhaseReached,
    Scheduled,
    ScheduledSequence,
    StepPhase,
    SuspendedStep,
    Written,
    WrittenRows,
)

Computed = tuple[Batch, Result]  # one forward of one sequence, or of several together; its logits [B, V] stay valid


class Forwards:
    """Runs the forwards of a step and collects the attention that the cache's rule needs or that is `captured`. `late`
    says whether surprisals may be computed after the step."""

    def __init__(self, model: LoadedModel, live: LiveSequences, late: LateSurprisal, captured: Captured) -> None:
        self._model, self._live, self._late, self._captured = model, live, late, captured
        self._products_ms: float | None = None  # measured once, when layers are first timed

    def run(self, whole: list[SequenceWork], clock: StepClock, check: Check | None, phases: PhasedStep | None) -> None:
        """Run the forwards of a step. `check` is called between the layers of a prefill and raises to cancel; a decode
        step is short and is not cancelled. Every forward pauses after each layer if there are `phases`."""
        check, parts = check if whole[0].phase == "prefill" else None, self.together(whole)
        for work in parts:
            ids = [each.token_ids for each in work]
            if work[0].live.cache.spec.recomputes:  # keeps nothing: all tokens so far
                ids = [each.live.sequence.token_ids[: each.first_position] + each.token_ids for each in work]
            given = to_device(torch.tensor(ids), self._model.device)
            surprisal = self._new_surprisal(work[0].token_ids) if len(work[0].token_ids) > 1 else None
            computed = self.compute(work, given, clock, check, phases, surprisal)
            clock.lap("forward")
            if work is not parts[-1]:
                keep_weights(computed)
            self.collect(work, computed)
            clock.lap("observe")

    def together(self, work: list[SequenceWork]) -> list[list[SequenceWork]]:
        """The sequences of each forward of a step: all in one where the cache can batch them, else one by one."""
        store = self._live.mode.store
        is_one = len(work) > 1 and store is not None and store.can_batch
        is_one = is_one and not any(each.live.cache.needs_own_forward for each in work)
        return [work] if is_one else [[each] for each in work]

    def compute(
        self,
        work: list[SequenceWork],
        ids: torch.Tensor,
        clock: StepClock,
        check: Check | None = None,
        phases: PhasedStep | None = None,
        surprisal: Surprisal | None = None,
    ) -> Computed:
        """Run one forward of sequences whose caches have room: `ids` `[B, T]`, which may be on the device and
        unread."""
        cache, store = work[0].live.cache, self._live.mode.store
        is_several = len(work) > 1
        probe = cache.probe(self._captured.attention_rows or self._captured.by_layer)
        if probe is not None and self._captured.by_layer:
            self._time_layers(probe, clock)
        if is_several and store is not None:
            store.plan([each.live.cache.tables for each in work], 1)
        else:
            cache.plan_forward(ids.shape[1])
        weights_of = weights_among(work) if is_several else weights_of_one
        on_layer = None if phases is None else phases.after_layer(work, probe, weights_of)
        batch = Batch(
            ids,
            cache.model_cache,
            probe,
            surprisal,
            self._captured.wanted,
            tuple(each.first_position for each in work) if is_several else None,
            hidden=cache.hidden_rows(),
            check=check,
            on_layer=on_layer,
        )
        with timed_layers(cache.model_cache, clock.parts):
            result = self._model.forward(batch)
        clock.encoder_s += cache.take_encoder_s()
        clock.compile_s += result.compile_s
        # a view would keep the logits of the whole chunk in memory where the model computes them all
        return batch, result._replace(logits=result.logits[:, -1].clone())

    def collect(self, work: list[SequenceWork], computed: Computed) -> None:
        """Give each sequence what its forward computed, with the attention that the probe collected."""
        batch, result = computed
        probe, packed = batch.probe, [None] * len(work) if result.measured is None else result.measured.of_each()
        for n, each in enumerate(work):
            each.logits, each.packed, each.surprisal, each.probe = result.logits[n], packed[n], batch.surprisal, probe
            each.runners = result.runners
        if probe is not None and self._captured.attention_rows:
            collect_weights(work, probe)

    def _new_surprisal(self, token_ids: list[int]) -> Surprisal | None:
        if not (self._captured.statistics and self._late.is_wanted):
            return None
        if self._model.info.geometry.has_encoder:
            return None  # it gives no logits for the tokens that the encoder reads
        return Surprisal(token_ids, self._model.vocab_size, may_wait=self._late.has_room)

    def _time_layers(self, probe: Probe, clock: StepClock) -> None:
        """Have a forward timed layer by layer."""
        if self._products_ms is None:
            self._products_ms = products_ms(self._model.model, self._model.device)
        clock.parts = clock.parts or PartTimer(self._model.device)
        clock.products_ms, probe.timer = self._products_ms, clock.parts


def keep_weights(computed: Computed) -> None:
    """Copy the attention that a forward left in shared buffers, which the next one overwrites."""
    if computed[0].probe is not None:
        computed[0].probe.copy_borrowed()


def weights_of_one(work: SequenceWork, layer: int, rows: torch.Tensor) -> torch.Tensor:
    """The newest query's weights `[H, S]` over all tokens, from the weights `[1, H, R]` over the rows that the cache
    held in the forward of one sequence."""
    count = work.num_tokens
    held, own = rows[0], work.live.cache.num_own(layer, count)
    return spread(held if own >= rows.shape[2] else held.narrow(1, 0, own), work.live.cache.positions(layer), count)


def weights_among(work: list[SequenceWork]) -> NewestWeightsOf:
    """As `weights_of_one`, for a sequence of a batched forward: takes its right-aligned row out of `[B, H, R]`."""
    numbers = {each.live.seq_id: number for number, each in enumerate(work)}
    return lambda one, _layer, rows: rows[numbers[one.live.seq_id], :, max(0, rows.shape[2] - one.num_tokens) :]


def collect_weights(work: list[SequenceWork], probe: Probe) -> None:
    """Give each sequence of a forward the newest query's weights `[H, S]` by layer. Each has tensors of its own if
    attention ran for each sequence apart, and then nothing needs to be copied."""
    rows, cache = [probe.rows()] if len(work) == 1 else [part.rows() for part in probe.parts], work[0].live.cache
    pairs = zip(work, rows, strict=bool(rows))
    is_apart = len(work) == 1 or (
        bool(rows) and all(row.shape[2] == each.num_tokens for each, mine in pairs for row in mine.values())
    )
    if not is_apart:
        weights_of, together = weights_among(work), probe.rows()
        found = [{layer: weights_of(each, layer, row) for layer, row in together.items()} for each in work]
    elif len(work) == 1 and (cache.num_source or cache.scattered()):
        found = [{layer: weights_of_one(work[0], layer, row) for layer, row in rows[0].items()}]
    else:
        found = [{layer: row[0] for layer, row in mine.items()} for mine in rows]
    for one, weights in zip(work, found, strict=True):
        one.weights = weights
        one.num_together, one.is_borrowed = (1, probe.is_borrowed) if is_apart else (len(work), False)


# ---- what is captured ----------------------------------------------------------------------------------------------

COSTS_KEPT = 64  # decode steps whose median cost is reported


class Captured:
    """The capture level and what it includes; changed only between two steps. `by_layer`: forwards are timed layer by
    layer. `statistics`: row statistics, candidates and surprisals are measured; `attention_rows`: the newest query's
    attention weights are captured; `new_rows`: so are K and V of the new tokens as they are computed. `wanted` is what
    a recorded step is to measure itself, None if nothing is measured."""

    def __init__(self, level: CaptureLevel = DEFAULT_CAPTURE) -> None:
        self._costs_ms: dict[CaptureLevel, deque[float]] = {}
        self.set(level, by_layer=False)

    def set(self, level: CaptureLevel, *, by_layer: bool) -> None:
        self.level, self.by_layer = level, by_layer
        self.statistics, self.attention_rows = captures(level, "statistics"), captures(level, "rows")
        self.new_rows = captures(level, "everything")
        self.wanted = WantedMeasures(self.attention_rows, self.new_rows) if self.statistics else None

    def note_cost(self, level: CaptureLevel, cost_ms: float) -> None:
        """Note how many milliseconds of a decode step measuring took at that level."""
        self._costs_ms.setdefault(level, deque(maxlen=COSTS_KEPT)).append(cost_ms)

    @property
    def costs_ms(self) -> tuple[tuple[CaptureLevel, float], ...]:
        """The median cost of each level that was used, in milliseconds, in the order of the levels."""
        return tuple((name, statistics.median(self._costs_ms[name])) for name in CAPTURES if name in self._costs_ms)


# ---- the time of a step --------------------------------------------------------------------------------------------

# "prepare": the cache makes room, codes and evicts; "apart": a pause in a phase, which is no part of the step
TimedPart = Literal["prepare", "forward", "sample", "observe", "gap", "apart"]


class StepClock:
    """Times one step, from its construction to `end`; every lap adds the time since the last one to a part. `before` is
    the clock of the previous step if this one follows without a pause: the time between them is the gap. Device events
    are read only by `timings`, so that the host does not wait for the device during the step."""

    def __init__(self, device: torch.device, before: StepClock | None = None) -> None:
        self._device = device
        self._laps: list[tuple[TimedPart, DeviceTime]] = []
        self._start = device_now(self._device) if before is None else before._laps[-1][1]
        self._host_start: float = host_seconds(self._start) if before is None else before.host_end
        self.host_end: float = self._host_start
        self.encoder_s = 0.0  # seconds of the forward that the encoder took
        self.compile_s = 0.0  # seconds of the forward that torch.compile took: not counted in the step
        self.parts: PartTimer | None = None  # times the forward layer by layer, where that is asked for
        self.products_ms = 0.0
        if before is not None:
            self.lap("gap")

    def lap(self, part: TimedPart) -> None:
        """Add the time since the last lap to this part."""
        self._laps.append((part, device_now(self._device)))

    @contextmanager
    def stopped(self, part: TimedPart) -> Iterator[None]:
        """Add the time since the last lap to `part`, and leave the time within the block out of the step."""
        self.lap(part)
        try:
            yield
        finally:
            self.lap("apart")

    def end(self) -> None:
        """End the step; the time since the last lap was spent on observing."""
        self.lap("observe")
        self.host_end = host_seconds(self._laps[-1][1])

    def timings(self) -> Timings:
        """What each part took, in milliseconds; on a GPU this waits until the device has finished the step."""
        total: dict[TimedPart, float] = dict.fromkeys(("prepare", "forward", "sample", "observe", "gap", "apart"), 0.0)
        before = self._start
        for part, lap in self._laps:
            total[part] += lap.ms_since(before)
            before = lap
        wall_ms = (self.host_end - self._host_start) * 1e3 - total["apart"]
        encoder_ms, compile_ms = self.encoder_s * 1e3, self.compile_s * 1e3
        return Timings(
            total["prepare"],
            max(0.0, total["forward"] - encoder_ms - compile_ms),
            total["sample"],
            total["observe"],
            encoder_ms,
            total["gap"],
            wall_ms - compile_ms,
            None if self.parts is None else layer_times(self.parts, self.products_ms),
            compile_ms,
        )


def host_seconds(moment: DeviceTime) -> float:
    """When that was on the host's clock, in seconds. Of a moment on a GPU, which may be to come, the present time."""
    return moment.seconds if isinstance(moment, HostTime) else time.perf_counter()


def layer_times(parts: PartTimer, products_ms: float) -> LayerTimes:
    """The layer times of a forward in the form of a record, in milliseconds."""
    found = parts.parts_ms()
    layers = tuple(sorted({layer for _, layer in found}))

    def column(part: LayerPart) -> tuple[float, ...]:
        return tuple(found.get((part, layer), 0.0) for layer in layers)

    return LayerTimes(layers, column("attention"), column("cache"), column("dequantise"), column("copies"), products_ms)


# ---- a step that pauses at each of its phases ----------------------------------------------------------------------

Reached = Callable[[PhaseReached], None]
NewestWeightsOf = Callable[
    [SequenceWork, int, torch.Tensor], torch.Tensor
]  # a sequence's `[H, S]` of a layer's `[B, H, S]`


class PhasedStep:
    """Calls `reached` at every phase of a step; the step continues when it returns, and is given up when it raises. The
    time spent there is not counted in the step. During the forward the layers already computed hold the new rows, and
    later layers do not yet: `half_written` says which."""

    def __init__(self, step: int, num_layers: int, text_of: TokenTexts, clock: StepClock, reached: Reached) -> None:
        self.step, self._num_layers = step, num_layers
        self._text_of, self._clock, self._reached = text_of, clock, reached
        self._work: dict[int, SequenceWork] = {}
        self._passed: dict[int, int] = {}  # number of layers computed, by sequence
        self._layer: int | None = None
        self._is_chosen = False
        self._weights: dict[tuple[int, int], torch.Tensor] = {}  # `[H, S]` by sequence and layer

    # ---- what the step has computed so far -----------------------------------------------------------------------

    @property
    def suspended(self) -> SuspendedStep | None:
        """How far the step has come; None before anything is scheduled."""
        if not self._work:
            return None
        lengths = tuple(work.num_tokens for work in self._work.values())
        return SuspendedStep(
            self.step, self._num_layers, tuple(self._work), lengths, self._layer, self._is_chosen
        )  # fmt: skip

    @property
    def seq_ids(self) -> tuple[int, ...]:
        """The sequences that this step computes."""
        return tuple(self._work)

    def half_written(self, seq_id: int) -> HalfWritten | None:
        """Which layers hold the new rows of a sequence already; None for one that this step does not compute."""
        work = self._work.get(seq_id)
        if work is None:
            return None
        had = 0 if work.live.cache.spec.recomputes else work.first_position
        weights = {layer: rows for (of, layer), rows in self._weights.items() if of == seq_id}
        return HalfWritten(self.step, had, work.num_tokens, self._passed.get(seq_id, 0), self._num_layers, weights)

    # ---- phases --------------------------------------------------------------------------------------------------

    def scheduled(self, batch: Sequence[SequenceWork], preempted: Sequence[int]) -> None:
        """Report the phase *scheduled*: the batch is chosen and has room."""
        with self._clock.stopped("prepare"):
            self._work = {work.live.seq_id: work for work in batch}
            self._tell(Scheduled(tuple(map(self._scheduled_part, batch)), tuple(preempted)))

    def _scheduled_part(self, work: SequenceWork) -> ScheduledSequence:
        first, cache = work.first_position, work.live.cache
        pages: tuple[int, ...] = ()
        if cache.spec.is_paged:
            begun = first // cache.spec.page_size
            new = [ids[begun:] for ids in cache.page_ids_at(work.num_tokens)]
            pages = tuple(page_id for ids in new for page_id in ids)
        texts = tuple(map(self._text_of, work.token_ids))
        hits = cache.page_counts().hit_tokens
        return ScheduledSequence(work.live.seq_id, work.phase, first, tuple(work.token_ids), texts, pages, hits)

    def after_layer(
        self, works: Sequence[SequenceWork], probe: Probe | None, weights_of: NewestWeightsOf
    ) -> LayerCallback:
        """The callback that a forward of these sequences calls after each layer, with the layer's index and output
        `[B, T, hidden]`."""

        def on_layer(layer: int, output: torch.Tensor) -> None:
            with self._clock.stopped("forward"):
                self._layer = layer
                for work in works:
                    self._passed[work.live.seq_id] = layer + 1
                    for one in (layer, self._num_layers + layer):  # the second is the block's cross-attention layer
                        if probe is not None and (rows := probe.row(one)) is not None:
                            mine, positions = weights_of(work, one, rows), work.live.cache.positions(one)
                            self._weights[work.live.seq_id, one] = nan_where_evicted(mine, positions)
                norms = output[:, -1].float().norm(dim=-1).tolist()
                self._tell(LayerDone(layer, tuple(map(self._new_row, works, [layer] * len(works), norms))))

        return on_layer

    def _new_row(self, work: SequenceWork, layer: int, output_norm: float) -> NewRow:
        seq_id = work.live.seq_id
        newest, weights = (
            work.live.cache.rows_at(layer, first_position=work.num_tokens - 1),
            self._weights.get((seq_id, layer)),
        )
        position, weight = None, None
        if weights is not None and weights.shape[1]:
            mean = weights.float().nan_to_num(0.0).mean(0)
            position, weight = int(mean.argmax()), float(mean.max())
            position += work.num_tokens - len(mean)
        if newest is None or not newest.keys.shape[2]:
            return NewRow(seq_id, output_norm=output_norm, position=position, weight=weight)
        keys, values = (part[0, :, -1].float().norm(dim=-1).cpu().numpy() for part in (newest.keys, newest.values))
        return NewRow(seq_id, read_only_floats(keys), read_only_floats(values), output_norm, position, weight)

    def chosen(self) -> None:
        """Report the phase *chosen*: the next tokens are sampled. Within a prompt nothing is, and nothing is
        reported."""
        self._layer, self._is_chosen = None, True
        self._passed = dict.fromkeys(self._work, self._num_layers)
        sampled = [(work, work.sample) for work in self._work.values() if work.sample is not None]
        if sampled:
            with self._clock.stopped("sample"):
                found = [self._chosen_part(work, with_candidates(one, self._text_of)) for work, one in sampled]
                self._tell(Chosen(tuple(found)))

    def _chosen_part(self, work: SequenceWork, choice: SampledToken) -> ChosenToken:
        sampling = work.live.sequence.sampling
        return ChosenToken(
            work.live.seq_id,
            choice.token_id,
            self._text_of(choice.token_id),
            choice.candidates,
            choice.entropy,
            work.num_tokens,
            None if sampling.is_greedy else sampling.seed,
        )

    def written(self, record: StepRecord, caches: Mapping[int, SequenceCache]) -> None:
        """Report the phase *written*: the step is done. `caches` are those of the sequences that were computed."""
        self._tell(Written(tuple(written_rows(part, caches[part.seq_id], record) for part in record.sequences)))

    def _tell(self, phase: StepPhase) -> None:
        self._reached(PhaseReached(self.step, self._num_layers, phase))


def written_rows(part: SequenceStep, cache: SequenceCache, record: StepRecord) -> WrittenRows:
    """What a step did to the rows and pages of a sequence."""
    deltas = cache.changes_since(part.first_position) or []
    changed = sum(max(len(delta.rewritten_keys), len(delta.rewritten_values)) for delta in deltas)
    gone = sum(len(delta.left_window) + sum(went.shape[1] for went in delta.evicted) for delta in deltas)
    pages = sum(isinstance(e, PageAllocated) and e.seq_id == part.seq_id for e in record.page_events)
    written = [len(delta.written) for delta in deltas if delta.written]
    in_each = written[0] if len(set(written)) == 1 else None
    return WrittenRows(part.seq_id, sum(written), changed, gone, pages, len(written), in_each)
