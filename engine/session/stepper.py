"""One step of a session: schedule, forward, sample, measure, compress, record. A step that fails changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from msgspec import structs

from engine.cache.contract import Evicted
from engine.cache.sequence_cache import SequenceCache
from engine.device import trim_heap
from engine.errors import Check, is_out_of_memory
from engine.history.history import History
from engine.look.candidates import Sample
from engine.session.forward import Computed, Forwards, PhasedStep, Reached, StepClock, keep_weights
from engine.session.ledger import Ledger
from engine.session.observe import Observer, sequence_step
from engine.session.sampler import sample
from engine.session.scheduler import Scheduler, SequenceWork
from engine.session.states import LiveSequence, LiveSequences
from engine.wire.records import NO_TIMES, CacheBytes, SequenceStep, StepRecord, StopReason
from engine.wire.tree import Node, PlannedStep

# the bytes in the records of a scratch session: counting them would reset the memory peak that the live session reports
NOTHING_COUNTED = CacheBytes((), 0, 0, None)

LONG_PROMPT, LONG_CHUNK_S = 1024, 1.0  # tokens, seconds: after these, unused memory is returned to the system


@dataclass(frozen=True, eq=False)
class Asked:
    """What is special about one step, decided before it by whoever asks for it: its clock, what cancels it, whether
    somebody watches its phases, the `planned` step that it repeats, its forwards if they were launched `ahead`, and
    whether its record `is_late`, completed when its measurements have left the device."""

    clock: StepClock
    check: Check | None = None
    phases: PhasedStep | None = None
    planned: PlannedStep | None = None
    ahead: LaunchedAhead | None = None
    is_late: bool = False


class Stepper:
    """Runs the batch that the scheduler chooses: forward, sample, observe, compress, record. The `ledger` counts the
    bytes that the caches hold; the `observer` measures each step. Page events of a scratch session stay in the page
    store, to be reported with the next step of the live session."""

    def __init__(self, live: LiveSequences, scheduler: Scheduler, observer: Observer, ledger: Ledger) -> None:
        self._model, self._live, self._scheduler, self._ledger = live.mode.model, live, scheduler, ledger
        self._observer, self._history, self._captured = observer, observer.history, observer.captured
        self._forwards = Forwards(self._model, live, self._history.surprisal, self._captured)
        self._ahead: LaunchedAhead | None = None  # the forward of the next step, launched already
        self._clock: StepClock | None = None  # of the previous step, if the next one follows it without a pause
        self.phases: PhasedStep | None = None  # of the running step, if the caller watches its phases

    def step(self, check: Check | None = None, reached: Reached | None = None) -> StepRecord:
        """Do one unit of work and return its complete record: this waits for the measurements to leave the device.

        `check` is called between the layers of a prefill and raises to cancel; `reached` is called at every phase of
        the step and raises to cancel it. Raises and changes nothing if any part fails."""
        if reached is None:
            return self._next(check, is_late=False)
        self.discard_ahead()
        clock = self._new_clock()
        phases = self.phases = PhasedStep(
            self._history.next_step, self._model.info.geometry.num_blocks, self._observer.text_of, clock, reached
        )
        try:
            self._scheduler.check_has_work()
            record = self._step(Asked(clock, check, phases))
        finally:
            self.phases = None
        phases.written(record, {seq_id: self._live.get(seq_id).cache for seq_id in phases.seq_ids})
        return record

    def repeat(self, planned: PlannedStep, check: Check | None = None) -> StepRecord:
        """Do an earlier step again, by the runner of then, and with the recorded next tokens; the record has those that
        this run sampled."""
        self.discard_ahead()
        return self._step(Asked(self._new_clock(), check, planned=planned))

    def step_late(self, check: Check | None = None) -> list[StepRecord]:
        """Do one unit of work as `step` does, without waiting for its measurements. Returns the completed records of
        earlier steps whose measurements have left the device by now; they lag a step or two behind this one."""
        self._next(check, is_late=True)
        records = self._observer.complete(num_late=self._observer.ring.late_steps)
        if self._ahead is None and self._clock is not None:
            self._clock.end()  # with a launched forward the end was marked before the launch
        return records

    def _next(self, check: Check | None, *, is_late: bool) -> StepRecord:
        """Do the step that the scheduler chooses, with the forward that was launched for it, if that is so. Raises with
        the reason when there is nothing to step."""
        ahead = self._use_ahead()
        clock, self._clock = self._new_clock() if ahead is None else ahead.clock, None
        self._scheduler.check_has_work()
        return self._step(Asked(clock, check, ahead=ahead, is_late=is_late))

    def _new_clock(self) -> StepClock:
        return StepClock(self._model.device, self._clock)

    def rest(self) -> None:
        """Note a pause: the time until the next step is not counted as a gap between two steps."""
        self._clock = None

    # ---- one step ----------------------------------------------------------------------------------------------------

    def _step(self, asked: Asked) -> StepRecord:
        """Do one unit of work and return its record, which has no measurements yet if it `is_late`. Changes nothing if
        any part fails."""
        began, before, undo = time.perf_counter(), self._live.copies(), list[Callable[[], None]]()
        clock, self._clock = asked.clock, None
        try:
            work = self._scheduler.next_batch(asked.planned)
            clock.lap("prepare")
            if asked.phases is not None:
                asked.phases.scheduled(work, self._scheduler.preempted)
            self._compute(work, asked)
            for each in work:
                each.sample = self._sample(each)
            choices = [each.sample for each in work] if asked.planned is None else as_planned(work, asked.planned)
            clock.lap("sample")
            if asked.phases is not None:
                asked.phases.chosen()
            measuring = self._observer.begin(work, clock)
            undo.append(partial(self._observer.discard, measuring))
            clock.lap("observe")
            evicted = list[Evicted]()
            for each in work:
                prompt = each.live.sequence.num_prompt_tokens
                evicted += each.live.cache.compress(each.num_tokens, prompt, each.probe)
            clock.lap("prepare")
            self._observer.send(measuring, evicted)
            clock.lap("observe")
            launched = self._launch_next(work, clock) if asked.is_late else None
            if launched is not None:
                undo.append(launched.discard)
            seen = zip(work, choices, measuring.parts, strict=True)
            record = self._record([self._accept(each, choice, found.attention) for each, choice, found in seen], work)
            if not asked.is_late:
                record = self._observer.completed(record, measuring, is_now=True)
            elif launched is None:
                clock.end()
            self._history.add({live.seq_id: live.sequence for live in self._live}, Node.of(record))
        except BaseException:
            self._undo(before, undo)
            raise
        with suppress(MemoryError):  # the step is done: what cannot be released now is released with a later step
            for each in work:
                each.live.cache.release_undo()
            if record.phase == "prefill" and self._model.device.type == "cpu":
                self._trim_heap(work, time.perf_counter() - began)
        self._scheduler.preempted.clear()
        self._clock = clock
        if asked.is_late:
            self._observer.complete_later(record, measuring)
        self._ahead = launched
        if launched is not None and not all(each.live.sequence.has_work for each in launched.work):  # one has ended
            self.discard_ahead()
        return record if asked.planned is None else with_choices(record, measuring.samples)

    def _compute(self, work: list[SequenceWork], asked: Asked) -> None:
        """Run the forwards of a step, or take those that were launched for it."""
        if asked.ahead is not None:
            asked.ahead.take(self._forwards, work)
        elif asked.planned is None:
            self._forwards.run(work, asked.clock, asked.check, asked.phases)
        else:
            with self._model.runners.chosen_as(asked.planned.runner):
                self._forwards.run(work, asked.clock, asked.check, None)

    def _sample(self, work: SequenceWork) -> Sample | None:
        """Sample the next token; None while tokens of the prompt remain to be computed."""
        sequence, position = work.live.sequence, work.num_tokens
        if position < len(sequence.token_ids):
            return None
        computed = sequence.token_ids if work.phase == "prefill" else [*sequence.token_ids, *work.token_ids]
        ruled = self._model.apply_generation_rules(
            work.logits, computed, sequence.num_prompt_tokens, sequence.sampling.max_new_tokens
        )
        logprobs = None if work.packed is None else work.packed.logprobs
        return sample(work.logits, sequence.sampling, position, ruled, logprobs)

    def _accept(self, work: SequenceWork, choice: Sample | None, attention: dict[int, torch.Tensor]) -> SequenceStep:
        """Commit the step of one sequence: cache, tokens, logits, history, next token. Returns its part of the
        record."""
        live, mode, num_tokens = work.live, self._live.mode, work.num_tokens
        step = self._history.next_step
        computed = live.sequence.computed(num_tokens, work.token_ids[-1], (step, live.seq_id))
        stop: StopReason | None = None
        if choice is not None:  # a forced token comes before the sampled one, which then cannot end the text
            if computed.forced:
                stop = mode.full_at(num_tokens, live.cache)
            else:
                stop = mode.stop_after(computed, choice, live.cache)
        live.cache.commit(num_tokens)  # before the record: its bytes are without pages that leave a window here
        part = sequence_step(work, choice, stop, self._observer.text_of)
        live.sequence = computed if choice is None else computed.chosen(choice.token_id, stop)
        live.cache.register_prefix(computed.token_ids)
        live.set_logits(work.logits, choice.logprobs if choice else None)
        self._history.log(live.seq_id, work.logits, attention)
        if work.surprisal is not None and work.surprisal.is_waiting:
            self._history.surprisal.put(step, live.seq_id, work.first_position + 1, work.surprisal)
        return part

    def _record(self, parts: list[SequenceStep], work: list[SequenceWork]) -> StepRecord:
        """The record of the step without anything measured: rows, attention, candidates and timings are still empty. It
        names what computed the forwards, joined by +, and "pages" if pages were read in place."""
        store, step, is_scratch = self._live.mode.store, self._history.next_step, self._observer.is_scratch
        if store is not None:
            store.note_step(step)
        events, pools = store.drain(step) if store is not None and not is_scratch else ((), ())
        return StepRecord(
            step=step,
            phase=work[0].phase,
            cache=self._live.mode.spec,
            dtype=self._model.info.dtype,
            random_weights=self._model.info.random_weights,
            sequences=tuple(parts),
            num_bytes=NOTHING_COUNTED if is_scratch else self._ledger.now(is_of_step=True),
            timings=NO_TIMES,
            non_finite=(),
            wall_time=time.time(),
            page_events=events,
            pools=pools,
            preempted=tuple(self._scheduler.preempted),
            waiting=self._scheduler.waiting,
            parent=self._history.last_step,
            changes=tuple(self._history.changes),
            runner="+".join(dict.fromkeys(name for each in work for name in each.runners)),
        )

    def _undo(self, before: dict[int, LiveSequence], undo: list[Callable[[], None]]) -> None:
        """Restore all sequences after a failed step, once the calls in `undo` are done. Preemptions are undone as well:
        the rows that were freed are computed again before the next step. Pages that the step registered are no longer
        found by their prefix."""
        store = None if self._observer.is_scratch else self._live.mode.store
        try:
            for each in undo:
                each()
        finally:
            if store is not None:
                store.undo_drain(self._history.next_step)
            self._live.restore(before, self._history)
            self._scheduler.preempted.clear()
            if store is not None:
                store.note_step(self._history.next_step)
                store.evict_outside_path(set(self._history.path.steps))

    def _trim_heap(self, work: list[SequenceWork], took_s: float) -> None:
        """Return memory to the system after a long chunk, and at the end of a long prompt: the C heap keeps what the
        products of large matrices leave behind, more than a gigabyte at 4,096 tokens of a large model. After short
        chunks the pages would be needed again at once, and taking them anew costs more."""
        sequences = [each.live.sequence for each in work]
        has_ended = any(len(each.token_ids) >= LONG_PROMPT and not each.is_prefilling for each in sequences)
        if has_ended or took_s > LONG_CHUNK_S:
            trim_heap()

    # ---- the forward that was launched ahead -------------------------------------------------------------------------

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

    def _launch_next(self, work: list[SequenceWork], clock: StepClock) -> LaunchedAhead | None:
        """Launch the forward of the next step before the host has read the tokens that this step chose. None where that
        is not possible, or where memory runs out: the next step then runs its own forward."""
        chosen = [each.sample.chosen for each in work if each.sample]
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


def as_planned(work: list[SequenceWork], planned: PlannedStep) -> list[Sample | None]:
    """The samples of this run with the tokens that the planned step recorded put in their place."""
    found = []
    for each, part in zip(work, planned.parts, strict=True):
        choice = each.sample
        if choice is not None and part.sampled is not None and choice.token_id != part.sampled:
            choice = replace(choice, chosen=torch.tensor(part.sampled), is_choice=None)
        found.append(choice)
    return found


def with_choices(record: StepRecord, samples: list[Sample | None]) -> StepRecord:
    """The record with the tokens that were sampled in this run in place of the planned ones."""
    pairs = zip(record.sequences, (None if one is None else one.token_id for one in samples), strict=True)
    return structs.replace(record, sequences=tuple(structs.replace(part, sampled=token) for part, token in pairs))


# ---- the next forward, launched ahead -------------------------------------------------------------------------------

# The forward of the next decode step may be launched before the host has read which tokens it computes. Otherwise the
# host of a GPU would wait for the chosen tokens before it launches the next step. Now token texts, records and history
# are made while the device computes. The price: whether a token ended its text is known one forward late. No caller can
# see that: the new rows lie in the cache behind the rows that it counts, until the step that computes the tokens is
# done. If any sequence of the batch has ended, the whole forward is discarded and the others run one without it.


@dataclass(eq=False)
class LaunchedAhead:
    """The launched forwards of one more token for each sequence: their `work` follows `step`, and its tokens are not
    known yet. `clock` is that of the step that they belong to."""

    work: list[SequenceWork]
    caches: list[SequenceCache]
    step: int
    level: str  # capture level
    computed: list[Computed]
    clock: StepClock

    @classmethod
    def of(
        cls,
        forwards: Forwards,
        before: list[SequenceWork],
        chosen: torch.Tensor,
        step: int,
        level: str,
        clock: StepClock,
    ) -> LaunchedAhead:
        """Launch the forwards that follow on the work `before` them, that of `step`: compute the `chosen` tokens `[B]`
        on the device, which the host has not read. Their rows are written to the caches but not counted yet. A failure
        leaves the caches as they were."""
        work = [SequenceWork(each.live, [], each.num_tokens) for each in before]
        made = cls(work, [each.live.cache for each in work], step, level, [], clock)
        try:
            for cache in made.caches:
                cache.begin(1)
            for part in forwards.together(work):
                if made.computed:
                    keep_weights(made.computed[-1])
                mine = slice(first := work.index(part[0]), first + len(part))
                made.computed.append(forwards.compute(part, chosen[mine, None], clock))
            for each in reversed(work):  # pages allocated last are freed first
                each.live.cache.uncount_row(each.first_position)
        except BaseException:
            for each in reversed(work):
                each.live.cache.clear_row_ahead(each.first_position)
            raise
        clock.lap("forward")
        return made

    def belongs_to(self, sequences: LiveSequences, history: History, level: str) -> bool:
        """Whether the next step is the one that this was launched for: no command has changed the session, the
        sequences with work or the capture level since."""
        if history.last_step != self.step or history.changes or level != self.level:
            return False
        if [live for live in sequences if live.sequence.has_work] != [each.live for each in self.work]:
            return False
        for each, cache in zip(self.work, self.caches, strict=True):
            live, length = each.live, each.first_position
            if live.cache is not cache or cache.num_tokens != length or live.sequence.sampled_is_forced:
                return False
            if not cache.can_write_ahead(length, len(self.work)):
                return False
        return True

    def take(self, forwards: Forwards, work: list[SequenceWork]) -> None:
        """Give the `work` of the step that computes the tokens, which runs now, what was computed of it; the rows are
        counted from now on."""
        for cache in self.caches:
            cache.count_row()
        for part, computed in zip(forwards.together(work), self.computed, strict=True):
            forwards.collect(part, computed)
        self.clock.lap("observe")

    def discard(self) -> None:
        """Clear the rows that the forward wrote, because its tokens are not computed. The sequences must not have been
        changed since the launch; a cache that was replaced since is left alone."""
        for work, cache in zip(self.work, self.caches, strict=True):
            if work.live.cache is cache:
                cache.clear_row_ahead(work.first_position)


def may_launch(sequences: LiveSequences, work: Sequence[SequenceWork]) -> bool:
    """Whether the next forward can be launched before the tokens of this step are known: whether each sequence of the
    step, and no other, computes the sampled token next, unless that ends its text. Not if a forced token comes next, or
    a sequence is full or has reached its length limit; nor if a cache cannot hold a row that it does not count yet:
    with a window, a codec, rows edited by hand, and at some page boundaries (see `PagedCache.can_write_ahead`)."""
    if [live for live in sequences if live.sequence.has_work] != [each.live for each in work]:
        return False
    for each in work:
        sequence, cache, num_tokens = each.live.sequence, each.live.cache, each.num_tokens
        most = sequence.sampling.max_new_tokens
        is_last = most is not None and num_tokens - sequence.num_prompt_tokens + 1 >= most
        if is_last or sequence.forced or sequences.mode.full_at(num_tokens, cache) is not None:
            return False
        if not cache.can_write_ahead(num_tokens, len(work)):
            return False
    return True
