"""One step of a session: schedule, forward, sample, measure, compress, record. A step that fails changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from msgspec import structs

from engine.cache.contract import Evicted
from engine.cache.sequence_cache import SequenceCache
from engine.device import trim_heap
from engine.errors import is_out_of_memory
from engine.history.history import History
from engine.look.candidates import Sample
from engine.model.loader import LoadedModel
from engine.model.tokenizer import TokenTexts
from engine.session.forward import (
    Captured,
    Computed,
    Forward,
    Forwards,
    PhasedStep,
    Reached,
    StepClock,
    keep_weights,
    runner_of,
)
from engine.session.observe import Observer, sequence_step
from engine.session.sampler import sample
from engine.session.scheduler import Scheduler, SequenceWork, StepBatch
from engine.session.states import LiveSequence, LiveSequences
from engine.wire.records import NO_TIMES, CacheBytes, Phase, SequenceStep, StepRecord
from engine.wire.tree import Node, PlannedPart, PlannedStep

# The forward of the next decode step may be launched before the host has read which tokens it computes. Otherwise the
# host of a GPU would wait for the chosen tokens before it launches the next step. Now token texts, records and history
# are made while the device computes. The price: whether a token ended its text is known one forward late. No caller can
# see that: the new rows lie in the cache behind the rows that it counts, until the step that computes the tokens is
# done. If any sequence of the batch has ended, the whole forward is discarded and the others run one without it.


@dataclass(eq=False)
class LaunchedAhead:
    """The launched forwards of one more token for each sequence in `work`, the work of `step`, the step before. `clock`
    is that of the step that they belong to."""

    work: list[SequenceWork]
    caches: list[SequenceCache]
    lengths: list[int]  # tokens of each sequence before these forwards
    step: int
    level: str  # capture level
    computed: list[Computed]
    clock: StepClock

    @classmethod
    def of(
        cls, forwards: Forwards, work: list[SequenceWork], chosen: torch.Tensor, step: int, level: str, clock: StepClock
    ) -> LaunchedAhead:
        """Launch the forwards that follow on the `work` of `step`: compute the `chosen` tokens `[B]` on the device,
        which the host has not read. Their rows are written to the caches but not counted yet. A failure leaves the
        caches as they were."""
        caches, lengths = [each.live.cache for each in work], [each.num_tokens for each in work]
        made = cls(work, caches, lengths, step, level, [], clock)
        pairs = list(zip(caches, lengths, strict=True))
        try:
            for cache in caches:
                cache.begin(1)
            for part in forwards.together(work):
                if made.computed:
                    keep_weights(made.computed[-1])
                mine = slice(first := work.index(part[0]), first + len(part))
                made.computed.append(forwards.compute(part, chosen[mine, None], lengths[mine], clock))
            for cache, length in reversed(pairs):  # pages allocated last are freed first
                cache.uncount_row(length)
        except BaseException:
            for cache, length in reversed(pairs):
                cache.clear_row_ahead(length)
            raise
        clock.lap("forward")
        return made

    def belongs_to(self, sequences: LiveSequences, history: History, level: str) -> bool:
        """Whether the next step is the one that this was launched for: no command has changed the session, the
        sequences with work or the capture level since."""
        is_next = history.last_step == self.step and not history.changes and level == self.level
        working = [live for live in sequences if live.sequence.has_work]
        return (
            is_next
            and working == [each.live for each in self.work]
            and all(map(self._is_unchanged, range(len(working))))
        )

    def _is_unchanged(self, number: int) -> bool:
        live, cache, length = self.work[number].live, self.caches[number], self.lengths[number]
        is_same = live.cache is cache and cache.num_tokens == length and cache.can_write_ahead(length, len(self.work))
        return is_same and not live.sequence.sampled_is_forced

    def take(self, forwards: Forwards, step: StepBatch) -> list[Forward]:
        """The forwards of the step that computes the tokens, which runs now: their rows are counted from now on."""
        for cache in self.caches:
            cache.count_row()
        parts = zip(forwards.together(step.work), self.computed, strict=True)
        return [each for work, computed in parts for each in forwards.collected(work, computed, self.clock)]

    def discard(self) -> None:
        """Clear the rows that the forward wrote, because its tokens are not computed. The sequences must not have been
        changed since the launch; a cache that was replaced since is left alone."""
        for work, cache, length in zip(self.work, self.caches, self.lengths, strict=True):
            if work.live.cache is cache:
                cache.clear_row_ahead(length)


def may_launch(sequences: LiveSequences, work: Sequence[SequenceWork]) -> bool:
    """Whether the next forward can be launched before the tokens of this step are known. Not if a forced token comes
    next, a sequence is full or has reached its length limit, or the next step computes other sequences; nor if a cache
    cannot hold a row that it does not count yet: with a window, a codec, rows edited by hand, and at some page
    boundaries (see `PagedCache.can_write_ahead`)."""
    if [live for live in sequences if live.sequence.has_work] != [each.live for each in work]:
        return False
    return all(computes_another(sequences, each.live, each.num_tokens, len(work)) for each in work)


def computes_another(sequences: LiveSequences, live: LiveSequence, num_tokens: int, num_sequences: int) -> bool:
    """Whether a sequence of `num_tokens` tokens, one of `num_sequences` in the batch, will compute the sampled token
    next (unless that ends its text) and its cache has room for the row."""
    sequence, cache = live.sequence, live.cache
    most = sequence.sampling.max_new_tokens
    is_last = most is not None and num_tokens - sequence.num_prompt_tokens + 1 >= most
    if is_last or sequence.forced or sequences.mode.full_at(num_tokens, cache) is not None:
        return False
    return cache.can_write_ahead(num_tokens, num_sequences)


# the bytes in the records of a scratch session: counting them would reset the memory peak that the live session reports
NOTHING_COUNTED = CacheBytes((), 0, 0, None)

LONG_PROMPT, LONG_CHUNK_S = 1024, 1.0  # tokens, seconds: after these, unused memory is returned to the system


@dataclass(frozen=True, eq=False)
class Asked:
    """What is special about one step, decided before it by whoever asks for it: how its batch is chosen and computed,
    whether somebody watches its phases, the `planned` step that it repeats, and whether its record `is_late`, completed
    when its measurements have left the device."""

    clock: StepClock
    schedule: Callable[[], StepBatch]
    compute: Callable[[StepBatch], list[Forward]]
    phases: PhasedStep | None = None
    planned: PlannedStep | None = None
    is_late: bool = False

    def choices(self, sampled: list[Sample | None]) -> list[Sample | None]:
        """The next tokens: those sampled, or those of the planned step."""
        if self.planned is None:
            return sampled
        return [as_planned(choice, part) for choice, part in zip(sampled, self.planned.parts, strict=True)]


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
        self._forwards, self._captured = Forwards(model, live, history.surprisal, captured), captured
        self._ahead: LaunchedAhead | None = None  # the forward of the next step, launched already
        self._clock: StepClock | None = None  # of the previous step, if the next one follows it without a pause
        self.phases: PhasedStep | None = None  # of the running step, if the caller watches its phases

    def step(self, check: Callable[[], None] | None = None, reached: Reached | None = None) -> StepRecord:
        """Do one unit of work and return its complete record: this waits for the measurements to leave the device.

        `check` is called between the layers of a prefill and raises to cancel; `reached` is called at every phase of
        the step and raises to cancel it. Raises and changes nothing if any part fails."""
        if reached is None:
            return self._step(self._next(check))
        self.discard_ahead()
        clock = StepClock(self._model.device, self._clock)
        phases = self.phases = PhasedStep(
            self._history.next_step, self._model.info.geometry.num_blocks, self._text_of, clock, reached
        )
        try:
            record = self._step(self._next(check, clock, phases))
        finally:
            self.phases = None
        phases.written(record, {seq_id: self._live.get(seq_id).cache for seq_id in phases.seq_ids})
        return record

    def repeat(self, planned: PlannedStep, check: Callable[[], None] | None = None) -> StepRecord:
        """Do an earlier step again, by the runner of then, and with the recorded next tokens; the record has those that
        this run sampled."""
        self.discard_ahead()
        clock, sampled = StepClock(self._model.device, self._clock), list[Sample | None]()

        def compute(batch: StepBatch) -> list[Forward]:
            with self._model.runners.chosen_as(planned.runner):
                return self._forwards.run(batch, clock, check, None)

        record = self._step(
            Asked(clock, partial(self._scheduler.planned_batch, planned), compute, planned=planned), sampled
        )
        return with_choices(record, [None if choice is None else choice.token_id for choice in sampled])

    def step_late(self, check: Callable[[], None] | None = None) -> list[StepRecord]:
        """Do one unit of work as `step` does, without waiting for its measurements. Returns the completed records of
        earlier steps whose measurements have left the device by now; they lag a step or two behind this one."""
        asked = replace(self._next(check), is_late=True)
        self._step(asked)
        records = self._observer.complete(num_late=self._observer.ring.late_steps)
        if self._ahead is None:  # with a launched forward the end of this clock was marked before the launch
            asked.clock.end()
        return records

    def _next(
        self, check: Callable[[], None] | None, clock: StepClock | None = None, phases: PhasedStep | None = None
    ) -> Asked:
        """The step that the scheduler chooses, with the forward that was launched for it, if that is so. Raises with
        the reason when there is nothing to step."""
        ahead = self._use_ahead()
        clock = (
            (StepClock(self._model.device, self._clock) if ahead is None else ahead.clock) if clock is None else clock
        )
        self._clock = None
        self._scheduler.check_has_work()
        if ahead is not None:
            return Asked(clock, self._scheduler.next_batch, partial(ahead.take, self._forwards), phases)
        compute = partial(self._forwards.run, clock=clock, check=check, phases=phases)
        return Asked(clock, self._scheduler.next_batch, compute, phases)

    def rest(self) -> None:
        """Note a pause: the time until the next step is not counted as a gap between two steps."""
        self._clock = None

    def discard_ahead(self) -> None:
        """Discard the forward that was launched for the next step, because something else than that step comes."""
        if self._ahead is not None:
            self._ahead.discard()
            self._ahead = None

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
            ids = torch.stack(chosen).to(self._model.device)
            return LaunchedAhead.of(self._forwards, work, ids, step, self._captured.level, following)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None  # this step still reports its token; the next one fails by itself and says how much is missing

    def _trim_heap(self, batch: StepBatch, took_s: float) -> None:
        """Return memory to the system after a long chunk, and at the end of a long prompt: the C heap keeps what the
        products of large matrices leave behind, more than a gigabyte at 4,096 tokens of a large model. After short
        chunks the pages would be needed again at once, and taking them anew costs more."""
        sequences = [work.live.sequence for work in batch.work]
        has_ended = any(len(each.token_ids) >= LONG_PROMPT and not each.is_prefilling for each in sequences)
        if has_ended or took_s > LONG_CHUNK_S:
            trim_heap()

    def _step(self, asked: Asked, sampled: list[Sample | None] | None = None) -> StepRecord:
        """Do one unit of work and return its record, which has no measurements yet if it `is_late`; what this run
        `sampled` is added to that list. Changes nothing if any part fails."""
        sampled, clock, self._clock = [] if sampled is None else sampled, asked.clock, None
        began = time.perf_counter()
        with self._all_or_nothing() as undo:
            batch = asked.schedule()
            clock.lap("prepare")
            if asked.phases is not None:
                asked.phases.scheduled(batch, self._scheduler.preempted)
            forwards = asked.compute(batch)
            clock.lap("forward")
            sampled += map(self._sample, forwards)
            choices = asked.choices(sampled)
            clock.lap("sample")
            if asked.phases is not None:
                asked.phases.chosen(choices)
            measuring = self._observer.begin(forwards, sampled)
            undo.append(partial(self._observer.discard, measuring))
            clock.lap("observe")
            evicted = [each for forward in forwards for each in self._compress(forward)]
            clock.lap("prepare")
            self._observer.send(measuring, evicted)
            clock.lap("observe")
            launched = self._launch_next(forwards, sampled, clock) if asked.is_late else None
            if launched is not None:
                undo.append(launched.discard)
            seen = zip(forwards, choices, measuring.parts, strict=True)
            parts = [self._accept(each, choice, measured.attention, batch.phase) for each, choice, measured in seen]
            record = self._record(batch.phase, parts, runner_of(forwards))
            if not asked.is_late:
                record = self._observer.completed(record, measuring, clock, is_now=True)
            elif launched is None:
                clock.end()
            self._history.add({live.seq_id: live.sequence for live in self._live}, Node.of(record))
        with suppress(MemoryError):  # the step is done: what cannot be released now is released with a later step
            for work in batch.work:
                work.live.cache.release_undo()
            if batch.phase == "prefill" and self._model.device.type == "cpu":
                self._trim_heap(batch, time.perf_counter() - began)
        self._scheduler.preempted.clear()
        self._clock = clock
        if asked.is_late:
            self._observer.complete_later(record, measuring, clock)
        self._ahead = launched
        if launched is not None and not all(each.live.sequence.has_work for each in launched.work):  # one has ended
            self.discard_ahead()
        return record

    @contextmanager
    def _all_or_nothing(self) -> Iterator[list[Callable[[], None]]]:
        """Restore everything if the block raises, after the calls that it has put into the list."""
        before = self._live.copies()
        undo: list[Callable[[], None]] = []
        try:
            yield undo
        except BaseException:
            try:
                for each in undo:
                    each()
            finally:
                self._undo(before)
            raise

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
        """Sample the next token; None while tokens of the prompt remain to be computed."""
        sequence, position = forward.work.live.sequence, forward.work.num_tokens
        if position < len(sequence.token_ids):
            return None
        computed = sequence.token_ids if sequence.is_prefilling else [*sequence.token_ids, *forward.work.token_ids]
        ruled = self._model.apply_generation_rules(
            forward.logits, computed, sequence.num_prompt_tokens, sequence.sampling.max_new_tokens
        )
        logprobs = None if forward.packed is None else forward.packed.logprobs
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
        computed_by = self._history.next_step, live.seq_id
        computed = live.sequence.computed(num_tokens, forward.work.token_ids[-1], computed_by)
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

    def _undo(self, before: dict[int, LiveSequence]) -> None:
        """Restore all sequences after a failed step. Preemptions are undone as well: the rows that were freed are
        computed again before the next step. Pages that the step registered are no longer found by their prefix."""
        store = None if self._is_scratch else self._live.mode.store
        if store is not None:
            store.undo_drain(self._history.next_step)
        self._live.restore(before, self._history)
        self._scheduler.preempted.clear()
        if store is not None:
            store.note_step(self._history.next_step)
            store.evict_outside_path(set(self._history.path.steps))


def as_planned(choice: Sample | None, part: PlannedPart) -> Sample | None:
    """The sample of this run with the token that the planned step recorded put in its place."""
    if choice is None or part.sampled is None or choice.token_id == part.sampled:
        return choice
    return replace(choice, chosen=torch.tensor(part.sampled), is_choice=None)


def with_choices(record: StepRecord, token_ids: list[int | None]) -> StepRecord:
    """The record with the tokens that were sampled in this run in place of the planned ones."""
    parts = zip(record.sequences, token_ids, strict=True)
    return structs.replace(record, sequences=tuple(structs.replace(part, sampled=token) for part, token in parts))
