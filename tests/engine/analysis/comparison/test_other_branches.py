"""The live step beside the tip of another branch: judged up to where they part, and told by position behind it."""

from __future__ import annotations

import pytest

from engine.analysis.comparison import Comparison, comparison_of, run_at
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.wire.commands import StartComparison
from engine.wire.comparison import ComparedStep, OtherStep, TokenDivergence
from engine.wire.pictures import WallPicture, WallRequest
from tests.engine.analysis.live import started


def parted(name: str = "dynamic") -> tuple[Session, int, int, int]:
    """A session on its second branch: its sequence, where the two part, and the tip of the first."""
    session, seq_id = started(PRESETS[name].spec)
    left = session.last_step
    assert left is not None
    divergence = left - 3
    session.go_to(divergence)
    session.force(seq_id, (5,))
    for _ in range(4):
        session.step()
    return session, seq_id, divergence, left


def comparison(session: Session, seq_id: int, step: int) -> Comparison:
    def never(*_asked: object) -> object:
        raise AssertionError("nothing is loaded for a moment of this session")

    return comparison_of(session, StartComparison(seq_id, OtherStep(step)), never, never)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dynamic", "growing", "paged", "none"])
def test_two_tips_are_judged_where_they_have_the_same_tokens_and_told_apart_behind_that(name: str) -> None:
    session, seq_id, divergence, left = parted(name)
    before = session.last_step, [live.cache.num_tokens for live in session.live]
    one = comparison(session, seq_id, left)
    steps = [step for step in one.catch_up() if isinstance(step, ComparedStep)]
    state = session.history.tree.at(divergence).states[seq_id]
    same, others = (
        [step for step in steps if (step.num_tokens > state.num_tokens) is parted] for parted in (False, True)
    )
    assert all((step.kl, step.is_beyond_rounding, step.divergence) == (0, False, None) for step in same)
    computed = tuple(session.text_of(run.token_ids[state.num_tokens]) for run in (one.a, one.b))
    assert [step.num_tokens for step in others] == [state.num_tokens + count for count in (1, 2, 3)], (
        "to the shorter tip"
    )
    assert {step.divergence for step in others} == {TokenDivergence(state.num_tokens, computed)}
    assert all(step.is_beyond_rounding is None for step in others), "rounding is no measure of other tokens"
    assert others[0].kl
    if name != "none":
        assert (others[0].keys > 0.01).all(), "rows of other tokens"
    assert one.b.num_tokens == session.history.tree.at(left).states[seq_id].num_tokens
    assert one.b.token_ids[: state.num_tokens] == one.a.token_ids[: state.num_tokens]
    assert one.b.token_ids[state.num_tokens] != one.a.token_ids[state.num_tokens]
    assert one.started(OtherStep(left)).b.name == f"step {left} of another branch"
    now = run_at(session, seq_id, session.last_step or 0)
    assert now.side().name == f"step {session.last_step}"
    now.close()
    if name != "none":
        piece = one.picture(WallRequest(seq_id, state.num_tokens, state.num_tokens, "keys", False, 64, 8), "difference")
        assert isinstance(piece, WallPicture)
        assert abs(piece.low).max() == 0
        behind = one.picture(
            WallRequest(seq_id, state.num_tokens + 1, state.num_tokens + 1, "keys", False, 64, 8), "difference"
        )
        assert isinstance(behind, WallPicture)
        assert abs(behind.low[:, :, :-1]).max() == 0
        assert (abs(behind.low[:, :, -1]).max((1, 2)) > 0).all()
        whole = one.picture(WallRequest(seq_id, one.b.num_tokens, one.b.num_tokens, "keys", False, 64, 8), "b")
        assert isinstance(whole, WallPicture)
        assert whole.num_tokens == one.b.num_tokens
    one.close()
    assert (session.last_step, [live.cache.num_tokens for live in session.live]) == before
    session.step()


def test_another_branch_takes_the_steps_behind_the_parting_back() -> None:
    session, seq_id, divergence, left = parted()
    one = comparison(session, seq_id, left)
    list(one.catch_up())
    session.go_to(divergence)
    session.force(seq_id, (6,))
    session.step()
    again = [step for step in one.catch_up() if isinstance(step, ComparedStep)]
    assert [step.num_tokens for step in one.steps][-2:] == [42, 43]
    assert [step.divergence.texts[0] for step in again if step.divergence] == [session.text_of(6)]
    one.close()


def test_what_is_compared_gives_back_all_that_it_took() -> None:
    session, seq_id, _, left = parted("paged")
    assert session.live.mode.store is not None
    group = session.live.mode.store.groups[0]
    before = [table.page_ids for table in group.tables]
    one = comparison(session, seq_id, left)
    assert len(group.tables) > len(before)
    one.close()
    assert [table.page_ids for table in group.tables] == before
    group.pool.check(group.tables)


def test_a_sequence_that_the_other_branch_has_not_is_refused() -> None:
    session, seq_id, _, left = parted()
    child = session.fork(seq_id).child
    session.step()
    with pytest.raises(InputError, match=f"Sequence {child} was not there after step {left}"):
        comparison(session, child, left)
