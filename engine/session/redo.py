"""A step is done as another engine did it, for a session that takes the place of one that is gone."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import InputError
from engine.history.history import History
from engine.session.live import LiveSequences
from engine.session.scheduler import Scheduler
from engine.session.stepper import Stepper
from engine.wire.planned import PlannedStep
from engine.wire.records import StepRecord


def redo_step(
    live: LiveSequences,
    history: History,
    scheduler: Scheduler,
    stepper: Stepper,
    planned: PlannedStep,
    check: Callable[[], None] | None,
) -> StepRecord:
    """Feed the tokens that the step fed, and choose those that it chose; see `Session.redo_step`."""
    for seq_id in planned.preempted:
        if live.get(seq_id).sequence.num_tokens:
            scheduler.preempt(live.get(seq_id))
    for part in planned.parts:
        sequence = live.get(part.seq_id).sequence
        sequence.stop = None  # whoever forced a token on it let it go on
        if not sequence.is_prefilling:
            sequence.sampled_is_forced = part.forced
        if sequence.num_tokens >= part.num_tokens:
            raise InputError(f"Sequence {part.seq_id} has {sequence.num_tokens} tokens before step {planned.step}.")
    record = stepper.step(check, {part.seq_id: part.num_tokens for part in planned.parts})
    for part in planned.parts:
        sequence = live.get(part.seq_id).sequence
        sequence.sampled, sequence.sampled_is_forced, sequence.stop = part.sampled, False, part.stop
        history.journal.put(part.seq_id, sequence.mark())
    return record
