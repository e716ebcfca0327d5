"""The sequences and steps of a session that is gone come back in another one, which has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine.errors import InputError
from engine.session.session import Session
from engine.spec.sampling import Prompt
from engine.wire.commands import Redo
from engine.wire.planned import PlannedSequence, PlannedStep
from engine.wire.records import StepRecord


class Redoing:
    """Does the steps one after the other; where it ends before the last, the tokens of those left come next.

    `num_computed_anew` counts the tokens of prompts whose pages were found, before, where this session has none: they
    are fed with those behind them, in other pieces, which is exact but for rounding.
    """

    def __init__(self, session: Session, command: Redo) -> None:
        if session.sequences or session.last_step is not None:
            raise InputError("Steps can be done once more in a session that has none: load the model anew.")
        self._session, self._command = session, command
        self.num_computed_anew = 0
        self._missing = {planned.seq_id: planned for planned in command.sequences}

    def steps(self, check: Callable[[], None]) -> Iterator[StepRecord]:
        """The record of each step when it is done. `check` is called between the layers of a prefill."""
        session = self._session
        if self._command.steps:
            session.history.next_step = self._command.steps[0].step
        for planned in self._command.steps:
            self._begin_sequences(planned)
            if planned.cache != session.cache:
                session.set_cache(planned.cache)
            for part in planned.parts:
                self._choose_next(part.seq_id)
            record = session.redo_step(planned, check)
            parts = zip(planned.parts, record.sequences, strict=True)
            self.num_computed_anew += sum(max(0, then.first_position - now.first_position) for then, now in parts)
            yield record

    def finish(self) -> None:
        """Every sequence stands as it stood at the end, as far as the steps went."""
        session = self._session
        for planned in [*self._missing.values()]:
            self._begin(planned)
        if self._command.cache != session.cache:
            session.set_cache(self._command.cache)
        for planned in self._command.sequences:
            if planned.is_gone:
                session.remove(planned.seq_id)
            else:
                self._leave(planned)

    def _begin_sequences(self, planned: PlannedStep) -> None:
        """Those that the step feeds, and those that were forked before it."""
        fed = {part.seq_id for part in planned.parts} | set(planned.preempted)
        for sequence in [*self._missing.values()]:
            fork = sequence.fork
            if sequence.seq_id in fed if fork is None else fork.until < planned.step:
                self._begin(sequence)

    def _begin(self, planned: PlannedSequence) -> None:
        """Under the id that it had. A fork of a step that was not done once more begins with its tokens."""
        session, fork, last = self._session, planned.fork, self._session.last_step
        session.live.next_id = planned.seq_id
        if fork is not None and last is not None and fork.step <= last:
            session.fork(fork.parent, fork.step)
            session.set_sampling(planned.sampling, planned.seq_id)
        else:
            ids = planned.token_ids[: planned.num_prompt_tokens]
            session.submit(Prompt(token_ids=ids, sampling=planned.sampling))
        session.live.next_id = max(*session.live.ids, *self._missing) + 1
        del self._missing[planned.seq_id]

    def _choose_next(self, seq_id: int) -> None:
        """The token that is fed next is the one that was fed then."""
        sequence = self._session.sequence(seq_id)
        if not sequence.is_prefilling:
            sequence.sampled = self._ids(seq_id)[sequence.num_tokens]

    def _ids(self, seq_id: int) -> tuple[int, ...]:
        return next(planned.token_ids for planned in self._command.sequences if planned.seq_id == seq_id)

    def _leave(self, planned: PlannedSequence) -> None:
        """As it stood: what it was to be fed comes next, and it is stopped where it was."""
        session, sequence = self._session, self._session.sequence(planned.seq_id)
        rest = planned.token_ids[len(sequence.token_ids) :]
        coming = rest if planned.sampled is None else (*rest, planned.sampled)
        if coming and (rest or (sequence.sampled is not None and coming != (sequence.sampled,))):
            session.force(planned.seq_id, coming)
        if planned.stop == "stopped":
            session.halt(planned.seq_id)
        session.history.journal.put(planned.seq_id, sequence.mark())
