"""The token list of a sequence: what is fed next, forced tokens, and marks to go back to."""

from __future__ import annotations

import pytest

from engine.session.sequence import Sequence
from engine.spec.sampling import SamplingParams


def sequence(num_tokens: int = 4, sampled: int | None = 50) -> Sequence:
    """Four tokens, three of them its prompt."""
    return Sequence(7, [10, 11, 12, 13], 3, SamplingParams(), num_tokens, sampled)


def fed(one: Sequence) -> None:
    """Feed the chosen token: it is in the cache afterwards."""
    assert one.sampled is not None
    one.token_ids.append(one.sampled)
    one.num_tokens += 1


def test_a_prompt_is_fed_in_chunks_and_then_one_by_one() -> None:
    one = sequence(0, None)
    assert (one.state, one.next_ids(3)) == ("waiting", [10, 11, 12])
    one.num_tokens = 3
    assert (one.state, one.next_ids(3)) == ("prefill", [13])
    one.num_tokens = 4
    one.set_next(50, None)
    assert (one.state, one.next_ids(3)) == ("decode", [50])


def test_forced_tokens_go_first_and_the_last_of_them_before_an_end() -> None:
    one = sequence()
    one.force([60, 61, 62])
    seen = []
    for chosen in (70, 71, 72):
        seen.append((one.sampled, one.sampled_is_forced))
        fed(one)
        one.set_next(chosen, "end of text" if chosen == 72 else None)
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
def test_a_forced_token_resumes_a_stopped_sequence_where_there_is_room(stop: str | None, after: str | None) -> None:
    one = sequence()
    one.stop = stop  # type: ignore[assignment]
    one.force([60])
    assert one.stop == after


def test_a_preempted_sequence_reads_its_tokens_again_and_keeps_what_was_forced() -> None:
    one = sequence()
    one.force([60, 61])
    one.preempt()
    assert (one.num_tokens, one.num_preemptions, one.state) == (0, 1, "waiting")
    one.num_tokens = 4  # read again: the sampler chooses anew
    one.set_next(99, None)
    assert (one.sampled, one.sampled_is_forced) == (60, True)
    fed(one)
    one.set_next(98, None)
    assert (one.sampled, one.sampled_is_forced) == (61, True)


def test_a_fork_has_its_own_tokens_and_a_clean_record() -> None:
    one = sequence()
    one.preempt()
    other = one.fork(8)
    assert (other.seq_id, other.num_preemptions, one.num_preemptions) == (8, 0, 1)
    other.token_ids.append(99)
    assert one.token_ids == [10, 11, 12, 13]


def test_a_mark_leads_back_to_all_that_it_says() -> None:
    one = sequence()
    one.force([60, 61])
    mark = one.mark()
    fed(one)
    one.set_next(70, None)
    fed(one)
    one.set_next(71, "end of text")
    one.sampling = SamplingParams(temperature=0.5)
    one.go_back(mark)
    assert one.mark() == mark
    assert (one.token_ids, one.sampled, one.sampled_is_forced, one.stop) == ([10, 11, 12, 13], 60, True, None)
    assert one.sampling == SamplingParams()


def test_a_forced_token_is_queued_once_however_often_its_sequence_is_preempted() -> None:
    one = sequence()
    one.force([60, 61])
    for _ in range(2):
        one.preempt()
        assert (one.state, one.next_ids(9), one.sampled_is_forced) == ("waiting", [10, 11, 12, 13], False)
    one.num_tokens = 4
    seen = []
    for chosen in (70, 71, 72):
        one.set_next(chosen, None)
        seen.append(one.sampled)
        fed(one)
    assert seen == [60, 61, 72]
