"""One step of a session: schedule, forward, sample, measure, compress, record. A step that fails changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from msgspec import structs

from engine.cache.contract import Evicted
from engine.errors import is_out_of_memory
from engine.history.history import History
from engine.history.journal import NoteCounts
from engine.look.candidates import Sample
from engine.memory import trim_heap
from engine.model.loader import LoadedModel
from engine.model.text import TokenTexts
from engine.session.ahead import LaunchedAhead, may_launch
from engine.session.captured import Captured
from engine.session.clock import StepClock
from engine.session.forward import Forward, Runner
from engine.session.live import LiveSequences, RestorePoint
from engine.session.observe import sequence_step
from engine.session.observer import Observer, PendingMeasures
from engine.session.phases import PhasedStep, Reached
from engine.session.sampler import sample
from engine.session.scheduler import Batch, Scheduler
from engine.wire.records import NO_TIMES, CacheBytes, Phase, SequenceStep, StepRecord
from engine.wire.tree import Node, PlannedPart, PlannedStep

# the bytes in the records of an aside session: counting them would reset the memory peak that the live session reports
NOTHING_COUNTED = CacheBytes((), 0, 0, None)

LONG_PROMPT, LONG_CHUNK_S = 1024, 1.0  # tokens, seconds: after these, unused memory is returned to the system


class Stepper:
    """Runs the batch that the scheduler chooses: forward, sample, observe, compress, record. `num_bytes` counts the
    bytes that the caches hold; `observer` measures each step. `is_scratch`: the records of these steps reach no client,
    and page events stay in the page store, to be reported with the next step of the live session."""

    def __init__(
        self,
        model: LoadedModel,
        live: LiveSequences,
        history: History,
        scheduler: Scheduler,
        text_of: TokenTexts,
        num_bytes: Callable[[], CacheBytes],
        captured: Captured,
        observer: Observer,
        is_scratch: bool,
    ) -> None:
        self._model, self._live, self._history, self._text_of = model, live, history, text_of
        self._scheduler, self._num_bytes = scheduler, num_bytes
        self._observer, self._is_scratch = observer, is_scratch
        self._runner, self._captured = Runner(model, history.surprisal, captured), captured
        self._ahead: LaunchedAhead | None = None  # the forward of the next step, launched already
        self._clock: StepClock | None = None  # of the previous step, if the next one follows it without a pause
        self.phases: PhasedStep | None = None  # of the running step, if the caller watches its phases

    def step(
        self,
        check: Callable[[], None] | None = None,
        planned: PlannedStep | None = None,
        reached: Reached | None = None,
    ) -> StepRecord:
        """Do one unit of work and return its complete record: this waits for the measurements to leave the device.

        `check` is called between the layers of a prefill and raises to cancel. `planned` is an earlier step to repeat;
        None: the scheduler chooses. `reached` is called at every phase of the step and raises to cancel it. Raises and
        changes nothing if any part fails."""
        if planned is not None or reached is not None:
            self.discard_ahead()
        ahead = self._use_ahead()
        clock = self._clock_for(ahead)
        phases = self.phases = self._phased_step(clock, reached) if reached is not None else None
        try:
            record = self._step(clock, check, planned, ahead)
        finally:
            self.phases = None
        if phases is not None:
            phases.written(record, {seq_id: self._live.get(seq_id).cache for seq_id in phases.seq_ids})
        return record

    def step_late(self, check: Callable[[], None] | None = None) -> list[StepRecord]:
        """Do one unit of work as `step` does, without waiting for its measurements. Returns the completed records of
        earlier steps whose measurements have left the device by now; they lag a step or two behind this one."""
        ahead = self._use_ahead()
        clock = self._clock_for(ahead)
        self._step(clock, check, None, ahead, is_late=True)
        records = self._observer.complete(num_late=self._observer.ring.late_steps)
        if self._ahead is None:  # with a launched forward the end of this clock was marked before the launch
            clock.end()
        return records

    def rest(self) -> None:
        """Note a pause: the time until the next step is not counted as a gap between two steps."""
        self._clock = None

    def discard_ahead(self) -> None:
        """Discard the forward that was launched for the next step, because something else than that step comes."""
        if self._ahead is not None:
            self._ahead.discard()
            self._ahead = None

    def _clock_for(self, ahead: LaunchedAhead | None) -> StepClock:
        """The clock of this step: that of the launched forward, else a new one that continues the previous step's."""
        return StepClock(self._model.device, self._clock) if ahead is None else ahead.clock

    def _use_ahead(self) -> LaunchedAhead | None:
        """The forward that was launched with the previous step, if it is of this one; else it is discarded: None."""
        ahead = self._ahead
        is_next = ahead is not None and ahead.belongs_to(self._live, self._history, self._captured.level)
        if not is_next or self._captured.by_layer:
            self.discard_ahead()
            return None
        self._ahead = None
        return ahead

    def _launch_next(
        self, forwards: list[Forward], choices: list[Sample | None], clock: StepClock
    ) -> LaunchedAhead | None:
        """Launch the forward of the next step before the host has read the tokens that this step chose. None where that
        is not possible, or where memory runs out: the next step then runs its own forward."""
        work, chosen = [forward.work for forward in forwards], [choice.chosen for choice in choices if choice]
        if self._captured.by_layer or self._observer.ring.late_steps == 0:
            return None  # on a CPU nothing is gained, and the forward after an end of text would be wasted
        if len(chosen) < len(work) or not may_launch(self._live, work):
            return None
        clock.end()
        following, step = StepClock(self._model.device, clock), self._history.next_step
        try:
            return self._runner.launch(work, chosen, self._live.mode.store, step, following)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None  # this step still reports its token; the next one fails by itself and says how much is missing

    def _trim_heap(self, batch: Batch, took_s: float) -> None:
        """Return memory to the system after a long chunk, and at the end of a long prompt: the C heap keeps what the
        products of large matrices leave behind, more than a gigabyte at 4,096 tokens of a large model. After short
        chunks the pages would be needed again at once, and taking them anew costs more."""
        sequences = [work.live.sequence for work in batch.work]
        has_ended = any(len(each.token_ids) >= LONG_PROMPT and not each.is_prefilling for each in sequences)
        if has_ended or took_s > LONG_CHUNK_S:
            trim_heap()

    def _phased_step(self, clock: StepClock, reached: Reached) -> PhasedStep:
        num_layers = self._model.info.geometry.num_blocks
        return PhasedStep(self._history.next_step, num_layers, self._text_of, clock, reached)

    def _step(
        self,
        clock: StepClock,
        check: Callable[[], None] | None,
        planned: PlannedStep | None,
        ahead: LaunchedAhead | None,
        *,
        is_late: bool = False,
    ) -> StepRecord:
        """Do one unit of work and return its record. If `is_late` the record has no measurements yet."""
        self._clock = None
        began = time.perf_counter()
        if planned is None:
            self._scheduler.check_has_work()
        before, noted = self._live.restore_points(), self._history.journal.note_counts()
        launched: LaunchedAhead | None = None
        measuring: PendingMeasures | None = None
        try:
            batch = self._scheduler.next_batch() if planned is None else self._scheduler.planned_batch(planned)
            clock.lap("prepare")
            if self.phases:
                self.phases.scheduled(batch, self._scheduler.preempted)
            self._model.runners.begin()
            if ahead is None:
                with self._model.runners.chosen_as("" if planned is None else planned.runner):
                    forwards = self._runner.run(batch, self._live.mode.store, clock, check, self.phases)
                clock.compile_s = self._model.runners.compile_s
            else:
                forwards = self._runner.take(batch, ahead, clock)
            runner = self._model.runners.used if ahead is None else ahead.runner
            clock.lap("forward")
            sampled = [self._sample(forward) for forward in forwards]
            choices = sampled
            if planned is not None:
                choices = [as_planned(choice, part) for choice, part in zip(sampled, planned.parts, strict=True)]
            clock.lap("sample")
            if self.phases:
                self.phases.chosen(choices)
            measuring = self._observer.begin(forwards, sampled)
            clock.lap("observe")
            evicted = [each for forward in forwards for each in self._compress(forward)]
            clock.lap("prepare")
            self._observer.send(measuring, evicted)
            clock.lap("observe")
            launched = self._launch_next(forwards, sampled, clock) if is_late else None
            parts = [
                self._accept(each, choice, measured.attention, batch.phase)
                for each, choice, measured in zip(forwards, choices, measuring.parts, strict=True)
            ]
            record = self._record(batch.phase, parts, runner)
            if launched is None and is_late:
                clock.end()
            elif not is_late:
                record = self._observer.complete_at_once(record, measuring, clock)
            chosen_ids = [None if choice is None else choice.token_id for choice in sampled]
            reported = record if planned is None else with_choices(record, chosen_ids)
            self._history.add({live.seq_id: live.sequence for live in self._live}, Node.of(record))
        except BaseException:
            try:
                if measuring is not None:
                    self._observer.discard(measuring)
                if launched is not None:
                    launched.discard()
            finally:
                self._undo(before, noted)
            raise
        with suppress(MemoryError):  # the step is done: what cannot be released now is released with a later step
            for work in batch.work:
                work.live.cache.release_undo()
            if batch.phase == "prefill" and self._model.device.type == "cpu":
                self._trim_heap(batch, time.perf_counter() - began)
        self._scheduler.preempted.clear()
        self._clock = clock
        if is_late:
            self._observer.complete_later(record, measuring, clock)
        self._ahead = launched
        if launched is not None and not all(each.live.sequence.has_work for each in launched.work):  # one has ended
            self.discard_ahead()
        return reported

    def _record(self, phase: Phase, parts: list[SequenceStep], runner: str) -> StepRecord:
        """The record of the step without anything measured: rows, attention, candidates and timings are still empty."""
        store, step = self._live.mode.store, self._history.next_step
        if store is not None:
            store.note_step(step)
        events, pools = store.drain(step) if store is not None and not self._is_scratch else ((), ())
        return StepRecord(
            step=step,
            phase=phase,
            cache=self._live.mode.spec,
            dtype=self._model.info.dtype,
            random_weights=self._model.info.random_weights,
            sequences=tuple(parts),
            num_bytes=NOTHING_COUNTED if self._is_scratch else self._num_bytes(),
            timings=NO_TIMES,
            non_finite=(),
            wall_time=time.time(),
            page_events=events,
            pools=pools,
            preempted=tuple(self._scheduler.preempted),
            waiting=self._scheduler.waiting,
            parent=self._history.last_step,
            changes=tuple(self._history.changes),
            runner=runner,
        )

    def _sample(self, forward: Forward) -> Sample | None:
        """Sample the next token; None while tokens of the prompt remain to be fed."""
        sequence, position = forward.work.live.sequence, forward.work.num_tokens
        if position < len(sequence.token_ids):
            return None
        fed = sequence.token_ids if sequence.is_prefilling else [*sequence.token_ids, *forward.work.token_ids]
        ruled = self._model.apply_generation_rules(
            forward.logits, fed, sequence.num_prompt_tokens, sequence.sampling.max_new_tokens
        )
        logprobs = None if forward.strip is None else forward.strip.logprobs
        return sample(forward.logits, sequence.sampling, position, ruled, logprobs)

    def _compress(self, forward: Forward) -> tuple[Evicted, ...]:
        """Let the cache quantise and evict rows as its spec says; what was evicted."""
        live = forward.work.live
        return live.cache.compress(forward.work.num_tokens, live.sequence.num_prompt_tokens, forward.probe)

    def _accept(
        self, forward: Forward, choice: Sample | None, attention: dict[int, torch.Tensor], phase: Phase
    ) -> SequenceStep:
        """Commit the step of one sequence: cache, tokens, logits, history, next token. Returns its part of the
        record."""
        live, mode, num_tokens = forward.work.live, self._live.mode, forward.work.num_tokens
        computed = live.sequence.computed(num_tokens, forward.work.token_ids[-1])
        stop = None
        if choice is not None:  # a forced token comes before the sampled one, which then cannot end the text
            full = mode.full_at(num_tokens, live.cache)
            stop = full if computed.forced else mode.stop_after(computed, choice, live.cache)
        live.cache.commit(num_tokens)  # before the record: its bytes are without pages that leave a window here
        part = sequence_step(forward, choice, phase, stop, self._text_of)
        live.sequence = computed if choice is None else computed.chosen(choice.token_id, stop)
        live.cache.register_prefix(computed.token_ids)
        live.set_logits(forward.logits, choice.logprobs if choice else None)
        self._history.log(live.seq_id, forward.logits, attention)
        if forward.surprisal is not None and forward.surprisal.is_waiting:
            step, first = self._history.next_step, part.first_position + 1
            self._history.surprisal.put(step, live.seq_id, first, forward.surprisal)
        return part

    def _undo(self, before: list[RestorePoint], noted: NoteCounts) -> None:
        """Restore all sequences after a failed step. Preemptions are undone as well: the rows that were freed are
        computed again before the next step. Pages that the step registered are no longer found by their prefix."""
        store = None if self._is_scratch else self._live.mode.store
        if store is not None:
            store.undo_drain(self._history.next_step)
        self._live.restore(before, self._history)
        self._history.journal.discard_notes_after(noted)
        self._scheduler.preempted.clear()
        if store is not None:
            store.note_step(self._history.next_step)
            store.evict_outside_path(set(self._history.journal.steps))


def as_planned(choice: Sample | None, part: PlannedPart) -> Sample | None:
    """The sample of this run with the token that the planned step recorded put in its place."""
    if choice is None or part.sampled is None or choice.token_id == part.sampled:
        return choice
    return replace(choice, chosen=torch.tensor(part.sampled), is_choice=None)


def with_choices(record: StepRecord, token_ids: list[int | None]) -> StepRecord:
    """The record with the tokens that were sampled in this run in place of the planned ones."""
    parts = zip(record.sequences, token_ids, strict=True)
    return structs.replace(record, sequences=tuple(structs.replace(part, sampled=token) for part, token in parts))
