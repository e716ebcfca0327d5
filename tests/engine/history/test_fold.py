"""The sequences at every node of a file, told without a model."""

from __future__ import annotations

from engine.history.state import UNKNOWN, SequenceState, SharedList, States, apply, step
from engine.spec.cache import CacheSpec
from engine.spec.edit import BiasLogits, Mask, ReplaceTokens, Rows, Zero
from engine.spec.sampling import SamplingParams
from engine.wire.records import EditMade, SequenceForked, SequenceStopped, TokensForced
from engine.wire.tree import PlannedPart, PlannedStep

GREEDY = SamplingParams()


def standing() -> States:
    """A sequence of six tokens that has chosen a seventh and ended with it."""
    return {0: SequenceState(SharedList([1, 2, 3, 4, 5, 6]), 4, GREEDY, 6, 7, stop="length")}


def nowhere(step: int) -> States | None:
    return None


def test_a_fork_of_fewer_tokens_has_chosen_nothing_and_not_ended() -> None:
    now = standing()
    apply(now, SequenceForked(1, 0, None, 5), 1, nowhere)
    apply(now, SequenceForked(2, 0, None), 1, nowhere)
    assert now[1] == SequenceState(SharedList([1, 2, 3, 4, 5]), 4, GREEDY, 5)
    assert now[2] == now[0] == standing()[0]


def test_who_has_ended_keeps_the_reason_when_it_is_stopped() -> None:
    now = standing()
    apply(now, SequenceForked(1, 0, None, 5), 1, nowhere)
    for seq_id in (0, 1):
        apply(now, SequenceStopped(seq_id), 1, nowhere)
    assert [now[seq_id].stop for seq_id in (0, 1)] == ["length", "stopped"]


def test_a_sequence_of_which_nothing_was_said_goes_on_from_what_it_was_computed() -> None:
    now: States = {}
    step(now, PlannedStep(0, CacheSpec(), (PlannedPart(3, 0, 2, 9, False, None),), ()), 0)
    assert now[3].token_ids == [UNKNOWN, UNKNOWN]
    step(now, PlannedStep(1, CacheSpec(), (PlannedPart(3, 2, 3, None, False, None),), ()), 1)
    assert now[3].token_ids == [UNKNOWN, UNKNOWN, 9]


def test_what_gave_a_sequence_its_newest_logits_goes_with_it() -> None:
    def computed(*parts: PlannedPart) -> PlannedStep:
        return PlannedStep(0, CacheSpec(), parts, ())

    now: States = {}
    step(now, computed(PlannedPart(0, 0, 4, 9, False, None), PlannedPart(1, 0, 3, 8, False, None)), 2)
    step(now, computed(PlannedPart(0, 4, 5, None, False, None)), 3)
    assert [now[seq_id].computed_by for seq_id in (0, 1)] == [(3, 0), (2, 1)]
    then = dict(now)
    apply(now, EditMade(BiasLogits(0, ((7, 1.0),))), 4, nowhere)  # what it gives stays; another token is chosen from it
    apply(now, TokensForced(0, (7,)), 4, nowhere)
    assert now[0].computed_by == (3, 0)
    for node, edit in enumerate((Zero(0, Rows(0, 1)), ReplaceTokens(0, 3, (7,)), Mask(0, Rows(0, 1))), 5):
        apply(now, EditMade(edit), node, nowhere)
        assert now[0].computed_by == (node, 0)
    apply(now, SequenceForked(4, 0, None), 8, nowhere)
    apply(now, SequenceForked(5, 0, 3), 8, lambda step: then)
    apply(now, SequenceForked(6, 0, None, 2), 8, nowhere)  # no forward has given it logits yet
    assert [now[seq_id].computed_by for seq_id in (0, 1, 4, 5, 6)] == [(7, 0), (2, 1), (7, 0), (3, 0), None]
    assert now[0].preempted().computed_by == (7, 0)
