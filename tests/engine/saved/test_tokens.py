"""The tokens of sequences after each change, told without a model."""

from __future__ import annotations

from engine.saved.tokens import UNKNOWN, SequenceTokens, SessionTokens
from engine.spec.sampling import SamplingParams
from engine.wire.changes import SequenceForked, SequenceStopped
from engine.wire.tree import PlannedPart

GREEDY = SamplingParams()


def standing() -> SessionTokens:
    """A sequence of six tokens that has chosen a seventh and ended with it."""
    return SessionTokens({0: SequenceTokens([1, 2, 3, 4, 5, 6], 4, GREEDY, 6, 7, "length")})


def test_a_fork_of_fewer_tokens_has_chosen_nothing_and_not_ended() -> None:
    now = standing()
    now.apply(SequenceForked(1, 0, None, 5), {})
    now.apply(SequenceForked(2, 0, None), {})
    assert now.sequences[1] == SequenceTokens([1, 2, 3, 4, 5], 4, GREEDY, 5)
    assert now.sequences[2] == now.sequences[0] == standing().sequences[0]
    assert now.sequences[2].token_ids is not now.sequences[0].token_ids


def test_who_has_ended_keeps_the_reason_when_it_is_stopped() -> None:
    now = standing()
    now.apply(SequenceForked(1, 0, None, 5), {})
    for seq_id in (0, 1):
        now.apply(SequenceStopped(seq_id), {})
    assert [now.sequences[seq_id].stop for seq_id in (0, 1)] == ["length", "stopped"]


def test_a_sequence_of_which_nothing_was_said_goes_on_from_what_it_was_fed() -> None:
    now = SessionTokens()
    assert now.feed(PlannedPart(3, 0, 2, 9, False, None)) == (UNKNOWN, UNKNOWN)
    assert now.feed(PlannedPart(3, 2, 3, None, False, None)) == (9,)
    assert now.sequences[3].token_ids == [UNKNOWN, UNKNOWN, 9]
