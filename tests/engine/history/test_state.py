"""One sequence through its changes and steps: what is computed next, forced tokens, forks; states that stay as they
are."""

from __future__ import annotations

import pytest

from engine.history.state import SequenceState, SharedList, num_shared
from engine.spec.sampling import SamplingParams
from engine.wire.records import StopReason, TokensForced

COMPUTED = 0, 0


def sequence(num_tokens: int = 4, sampled: int | None = 50, stop: StopReason | None = None) -> SequenceState:
    """Four tokens, three of them its prompt."""
    return SequenceState(SharedList([10, 11, 12, 13]), 3, SamplingParams(), num_tokens, sampled, stop=stop)


def force(one: SequenceState, *token_ids: int) -> SequenceState:
    return one.apply(TokensForced(7, token_ids))


def computed(one: SequenceState) -> SequenceState:
    """With the chosen token in the cache."""
    return one.computed(one.num_tokens + 1, one.sampled, COMPUTED)


def test_a_prompt_is_computed_in_chunks_and_then_one_by_one() -> None:
    one = sequence(0, None)
    assert (one.phase, one.next_ids(3)) == ("waiting", [10, 11, 12])
    one = one.computed(3, None, COMPUTED)
    assert (one.phase, one.next_ids(3)) == ("prefill", [13])
    one = one.computed(4, None, COMPUTED).chosen(50, None)
    assert (one.phase, one.next_ids(3)) == ("decode", [50])


def test_forced_tokens_go_first_and_the_last_of_them_before_an_end() -> None:
    one = force(sequence(), 60, 61, 62)
    seen = []
    for chosen in (70, 71, 72):
        seen.append((one.sampled, one.sampled_is_forced))
        one = computed(one).chosen(chosen, "end of text" if chosen == 72 else None)
    assert seen == [(60, True), (61, True), (62, True)]
    assert (one.sampled, one.sampled_is_forced, one.stop) == (72, False, "end of text")


@pytest.mark.parametrize(
    ("stop", "after"),
    [
        ("end of text", None),
        ("stop string", None),
        ("length", None),
        ("stopped", None),
        ("non-finite logits", None),
        ("cache full", "cache full"),
        ("context full", "context full"),
        (None, None),
    ],
)
def test_a_forced_token_resumes_a_stopped_sequence_where_there_is_room(
    stop: StopReason | None, after: StopReason | None
) -> None:
    assert force(sequence(stop=stop), 60).stop == after


def test_a_preempted_sequence_reads_its_tokens_again_and_keeps_what_was_forced() -> None:
    one = force(sequence(), 60, 61).preempted()
    assert (one.num_tokens, one.num_preemptions, one.phase) == (0, 1, "waiting")
    one = one.computed(4, None, COMPUTED).chosen(99, None)  # read again: the sampler chooses anew
    assert (one.sampled, one.sampled_is_forced) == (60, True)
    one = computed(one).chosen(98, None)
    assert (one.sampled, one.sampled_is_forced) == (61, True)


def test_a_fork_has_its_own_tokens_and_a_clean_record() -> None:
    one = sequence().preempted()
    other = one.forked()
    assert (other.num_preemptions, one.num_preemptions) == (0, 1)
    assert other.computed(5, 99, COMPUTED).token_ids == [10, 11, 12, 13, 99]
    assert one.computed(5, 98, COMPUTED).token_ids == [10, 11, 12, 13, 98]
    assert one.token_ids == [10, 11, 12, 13]


def test_a_state_stays_whatever_comes_after_it() -> None:
    one = force(sequence(), 60, 61)
    later = computed(computed(one).chosen(70, None)).chosen(71, "end of text")
    assert later.token_ids == [10, 11, 12, 13, 60, 61]
    assert (one.token_ids, one.sampled, one.sampled_is_forced, one.stop) == ([10, 11, 12, 13], 60, True, None)
    assert one == force(sequence(), 60, 61)


def test_a_forced_token_is_queued_once_however_often_its_sequence_is_preempted() -> None:
    one = force(sequence(), 60, 61)
    for _ in range(2):
        one = one.preempted()
        assert (one.phase, one.next_ids(9), one.sampled_is_forced) == ("waiting", [10, 11, 12, 13], False)
    one, seen = one.computed(4, None, COMPUTED), []
    for chosen in (70, 71, 72):
        one = one.chosen(chosen, None)
        seen.append(one.sampled)
        one = computed(one)
    assert seen == [60, 61, 72]


def test_runs_share_their_list_until_they_part() -> None:
    begun = SharedList([1, 2])
    longer = begun.extended([3])
    same, other = begun.extended([3]), begun.extended([4])
    assert (begun, longer, same, other) == ([1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 4])
    ones = [SharedList([object(), object()])]
    ones += [ones[0].extended([object()]), ones[0].extended([object()])]
    assert [num_shared(ones[1], each) for each in ones] == [2, 3, 2]
