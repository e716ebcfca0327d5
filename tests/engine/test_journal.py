"""What is noted of every step stays small, is cut at the far end, and says what it said."""

from __future__ import annotations

import tracemalloc

import pytest

from engine import journal
from engine.config import CacheSpec, SamplingParams
from engine.errors import InputError
from engine.journal import Checkpoint, Journal, Pending
from engine.sequence import Sequence
from engine.session import Session
from tests.engine.test_forks import started


def story(num_steps: int, num_forced: int) -> Journal:
    """One sequence decodes what was forced, another one rests."""
    made, spec = Journal(), CacheSpec()
    active, resting = (Sequence(seq_id, [1, 2, 3], 3, SamplingParams(), num_tokens=3) for seq_id in (0, 1))
    active.force(list(range(num_forced)))
    for step in range(num_steps):
        active.token_ids.append(active.sampled or 0)
        active.num_tokens += 1
        active.take(7, None, None)
        made.add(Checkpoint(step, {0: active.mark(), 1: resting.mark()}, spec))
    return made


def test_a_step_is_noted_in_the_same_room_however_much_is_forced() -> None:
    def room(num_forced: int) -> int:
        tracemalloc.start()
        kept = story(2_000, num_forced)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(kept) == 2_000
        return size

    assert room(4_000) - room(1) < 400_000, "one tuple of all that is forced, and where each step stands in it"
    assert room(1) < 2_000 * 600


def test_who_rests_shares_one_mark() -> None:
    kept = story(50, 10)
    marks = [checkpoint.marks for step in range(50) if (checkpoint := kept.at(step))]
    assert len({id(mark[1]) for mark in marks}) == 1
    assert [mark[0].num_tokens for mark in marks] == list(range(4, 54))
    assert [len(mark[0].forced) for mark in marks[:10]] == [8, 7, 6, 5, 4, 3, 2, 1, 0, 0]


def test_the_oldest_steps_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_STEPS", 16)
    kept = story(40, 1)
    assert 16 <= len(kept) < 18
    assert kept.at(kept.first_step - 1) is None
    first, last = kept.at(kept.first_step), kept.at(39)
    assert first is not None
    assert last is not None
    assert (first.step, last.step, last.marks[0].num_tokens) == (kept.first_step, 39, 43)
    assert kept.fed_lengths(0) == list(range(kept.first_step + 4, 44))
    assert kept.fed_lengths(0, until=39 - 5) == list(range(kept.first_step + 4, 39))


def test_going_back_beyond_what_is_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_STEPS", 4)
    session: Session = started(CacheSpec())
    first, then = session._journal.first_step, session.logits(0)
    assert first >= 6
    with pytest.raises(InputError, match=f"steps {first} … 10 are kept"):
        session.rewind(first - 1)
    assert session.logits(0) is then, "what was there before stays"
    session.rewind(first)
    assert session.last_step == first


def test_what_is_pending_is_compared_by_what_is_left() -> None:
    one = Pending((1, 2, 3)).rest
    assert one == Pending((2, 3)) != Pending((2,))
    assert (one.first, len(one), one.rest.rest == Pending(), one.behind(9)) == (2, 2, True, Pending((9, 2, 3)))
    assert not Pending()
