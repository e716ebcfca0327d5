"""The sequences at every node of a file, told without a model."""

from __future__ import annotations

from engine.history.state import UNKNOWN, Run, SequenceState, States, apply, step
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.changes import SequenceForked, SequenceStopped
from engine.wire.tree import PlannedPart, PlannedStep

GREEDY = SamplingParams()


def standing() -> States:
    """A sequence of six tokens that has chosen a seventh and ended with it."""
    return {0: SequenceState(Run([1, 2, 3, 4, 5, 6]), 4, GREEDY, 6, 7, stop="length")}


def nowhere(step: int) -> States | None:
    return None


def test_a_fork_of_fewer_tokens_has_chosen_nothing_and_not_ended() -> None:
    now = standing()
    apply(now, SequenceForked(1, 0, None, 5), nowhere)
    apply(now, SequenceForked(2, 0, None), nowhere)
    assert now[1] == SequenceState(Run([1, 2, 3, 4, 5]), 4, GREEDY, 5)
    assert now[2] == now[0] == standing()[0]


def test_who_has_ended_keeps_the_reason_when_it_is_stopped() -> None:
    now = standing()
    apply(now, SequenceForked(1, 0, None, 5), nowhere)
    for seq_id in (0, 1):
        apply(now, SequenceStopped(seq_id), nowhere)
    assert [now[seq_id].stop for seq_id in (0, 1)] == ["length", "stopped"]


def test_a_sequence_of_which_nothing_was_said_goes_on_from_what_it_was_fed() -> None:
    now: States = {}
    step(now, PlannedStep(0, CacheSpec(), (PlannedPart(3, 0, 2, 9, False, None),), ()))
    assert now[3].token_ids == [UNKNOWN, UNKNOWN]
    step(now, PlannedStep(1, CacheSpec(), (PlannedPart(3, 2, 3, None, False, None),), ()))
    assert now[3].token_ids == [UNKNOWN, UNKNOWN, 9]
