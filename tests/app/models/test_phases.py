"""A step in phases, as far as it is known: what it computes, and whether it was given up or done."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication

from app.models.status import Phases
from engine.wire.status import PhaseReached, Scheduled, ScheduledSequence, SuspendedStep, Written

COMPUTED = Scheduled((ScheduledSequence(0, "decode", 9, (5, 6), ("a", "b")),))
WAITS = SuspendedStep(4, 2, (0,), (11,))


def test_a_step_is_given_up_where_the_engine_holds_none_and_it_was_not_written(qapp: QApplication) -> None:
    phases = Phases()
    assert phases.follow(None, 3) is False
    phases.take(PhaseReached(4, 2, COMPUTED))
    assert [phases.text_at(0, position) for position in (8, 9, 10, 11)] == [None, "a", "b", None]
    assert phases.follow(WAITS, 3) is False
    assert phases.now is not None
    assert phases.follow(None, 3) is True
    assert phases.now is None


def test_a_step_that_was_written_stays_until_another_is_live_and_was_not_given_up(qapp: QApplication) -> None:
    phases = Phases()
    phases.take(PhaseReached(4, 2, COMPUTED))
    phases.take(PhaseReached(4, 2, Written(())))
    assert phases.follow(None, 4) is False
    assert phases.now is not None
    assert phases.follow(None, 5) is False
    assert phases.now is None
