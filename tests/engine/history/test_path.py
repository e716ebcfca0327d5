"""What is noted of every step stays small, is cut at the far end, and says what it said."""

from __future__ import annotations

import tracemalloc

import pytest
from msgspec.structs import replace

from engine.errors import InputError
from engine.history import tree
from engine.history.history import History
from engine.history.state import Move, Origin, SequenceState, SharedList, States
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.records import TokensForced
from engine.wire.tree import Node
from tests.engine.session.test_fork import started

SPEC = CacheSpec()


def add(kept: History, step: int, states: States) -> None:
    kept.add(states, Node(step, kept.last_step, (), SPEC))


def story(num_steps: int, num_forced: int) -> History:
    """One sequence decodes what was forced, another one rests."""
    made = History()
    active = resting = SequenceState(SharedList([1, 2, 3]), 3, SamplingParams(), num_tokens=3)
    active = active.apply(TokensForced(0, tuple(range(num_forced))))
    for step in range(num_steps):
        active = active.computed(active.num_tokens + 1, active.sampled, (step, 0)).chosen(7, None)
        add(made, step, {0: active, 1: resting})
    return made


def test_a_step_is_noted_in_the_same_room_however_much_is_forced() -> None:
    def room(num_forced: int) -> int:
        tracemalloc.start()
        kept = story(2_000, num_forced)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(kept.path) == 2_000
        return size

    room(1)  # what is allocated once
    assert room(4_000) - room(1) < 400_000, "one tuple of all that is forced, and where each step stands in it"
    assert room(1) < 2_000 * 900, "its node, its state and its place in the tree"


def test_who_rests_shares_one_mark() -> None:
    kept = story(50, 10).path
    states = [states for step in range(50) if (states := kept.states(step))]
    assert len({id(state[1]) for state in states}) == 1
    assert [state[0].num_tokens for state in states] == list(range(4, 54))
    assert [len(state[0].forced) for state in states[:10]] == [8, 7, 6, 5, 4, 3, 2, 1, 0, 0]


def test_the_oldest_steps_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_STEPS", 16)
    kept = story(40, 1).path
    assert 16 <= len(kept) < 18
    assert kept.states(kept.steps[0] - 1) is None
    first, last = kept.states(kept.steps[0]), kept.states(39)
    assert first is not None
    assert last is not None
    assert (kept.newest, first[0].num_tokens, last[0].num_tokens) == (39, kept.steps[0] + 4, 43)
    assert kept.forward_lengths(0) == list(range(kept.steps[0] + 4, 44))
    assert kept.forward_lengths(0, until=39 - 5) == list(range(kept.steps[0] + 4, 39))


def test_going_back_beyond_what_is_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_STEPS", 4)
    session: Session = started(CacheSpec())
    first, then = session.history.path.steps[0], session.logits(0)
    assert first >= 6
    with pytest.raises(InputError, match=f"steps {first} … 10 are kept"):
        session.go_to(first - 1)
    assert session.logits(0) is then, "what was there before stays"
    session.go_to(first)
    assert session.last_step == first


TOKENS = SharedList([0] * 4096)


def state(num_tokens: int, computed_by: tuple[int, int]) -> SequenceState:
    return SequenceState(TOKENS.first(num_tokens), 3, SamplingParams(), num_tokens, 5, computed_by=computed_by)


def test_a_line_of_thousands_of_forks_is_followed_to_its_root() -> None:
    history, forks = History(), 3000
    for step in range(3):
        add(history, step, {0: state(4 + step, (step, 0))})
    line = [Origin(parent, 2, 2, 6) for parent in reversed(range(forks))]
    states = {each: replace(state(6, (2, 0)), origins=tuple(line[forks - each :])) for each in (0, forks - 1)}
    add(history, 3, {**states, forks: replace(state(7, (3, forks)), origins=tuple(line))})
    kept = history.path
    assert kept.state(forks, 1) == state(5, (1, 0))
    assert kept.computed_by(forks, 1) == (1, 0)
    assert kept.computed_by(forks, 3) == (3, forks)
    assert kept.computed_by(forks - 1, 3) == (2, 0)
    assert kept.forward_lengths(forks) == [4, 5, 6, 7]


def test_a_fork_is_undone_with_the_step_behind_which_it_was_made() -> None:
    history = story(3, 1)
    kept = history.path
    state = kept.state(0, 2)
    assert state is not None
    for step in (3, 4):
        add(history, step, {0: state, 5: replace(state, origins=(Origin(0, 2, 2, 6),))})
    kept.cut_after(3)
    assert kept.owner(5, 2) == (0, 2)
    kept.cut_after(2)
    assert kept.owner(5, 2) == (5, 2), "there is no fork after step 2"


def test_what_was_begun_anew_after_a_step_has_moved_since_that_step_and_no_later_one() -> None:
    begun = state(3, (0, 1)).moved(Move(2, 0, CacheSpec()))
    assert [bool(begun.moves_since(step)) for step in (1, 2, 3)] == [True, True, False]
    assert not state(3, (0, 1)).moves_since(0)
