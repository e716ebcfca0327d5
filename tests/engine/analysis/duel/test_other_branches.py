"""The live moment beside the tip of another branch: the same up to where they part, and only from there on another."""

from __future__ import annotations

import pytest

from engine.analysis.duel.duel import Duel
from engine.analysis.duel.start import duel_of
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.presets import PRESETS
from engine.wire.commands import StartDuel
from engine.wire.duel import DuelStep
from engine.wire.opponents import OtherStep
from engine.wire.requests import WallRequest
from engine.wire.slices import WallSlice
from tests.engine.analysis.live import started


def parted(name: str = "dynamic") -> tuple[Session, int, int, int]:
    """A session on its second branch: its sequence, where the two part, and the tip of the first."""
    session, seq_id = started(PRESETS[name].spec)
    left = session.last_step
    assert left is not None
    parting = left - 3
    session.go_to(parting)
    session.force(seq_id, (5,))
    for _ in range(4):
        session.step()
    return session, seq_id, parting, left


def duel(session: Session, seq_id: int, step: int) -> Duel:
    def never(*_asked: object) -> object:
        raise AssertionError("nothing is loaded for a moment of this session")

    return duel_of(session, StartDuel(seq_id, OtherStep(step)), never, never)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dynamic", "growing", "paged", "none"])
def test_two_tips_are_compared_where_they_have_the_same_tokens(name: str) -> None:
    session, seq_id, parting, left = parted(name)
    before = session.last_step, [live.cache.num_tokens for live in session.live]
    one = duel(session, seq_id, left)
    steps = [step for step in one.catch_up() if isinstance(step, DuelStep)]
    mark = session.history.tree.at(parting).checkpoint.marks[seq_id]
    assert steps[-1].num_tokens == mark.num_tokens, "nothing is compared of other tokens"
    assert all(step.kl == 0 and step.top1_agrees for step in steps)
    assert one.b.num_tokens == session.history.tree.at(left).checkpoint.marks[seq_id].num_tokens
    assert one.b.token_ids[: mark.num_tokens] == one.a.token_ids[: mark.num_tokens]
    assert one.b.token_ids[mark.num_tokens] != one.a.token_ids[mark.num_tokens]
    assert one.started().b.name == f"step {left} of another branch"
    if name != "none":
        piece = one.slice(WallRequest(seq_id, mark.num_tokens, mark.num_tokens, "keys", False, 64, 8), "difference")
        assert isinstance(piece, WallSlice)
        assert abs(piece.low).max() == 0
        whole = one.slice(WallRequest(seq_id, one.b.num_tokens, one.b.num_tokens, "keys", False, 64, 8), "b")
        assert isinstance(whole, WallSlice)
        assert whole.num_tokens == one.b.num_tokens
    one.close()
    assert (session.last_step, [live.cache.num_tokens for live in session.live]) == before
    session.step()


def test_what_is_compared_gives_back_all_that_it_took() -> None:
    session, seq_id, _, left = parted("paged")
    assert session.live.mode.store is not None
    group = session.live.mode.store.groups[0]
    before = [table.page_ids for table in group.tables]
    one = duel(session, seq_id, left)
    assert len(group.tables) > len(before)
    one.close()
    assert [table.page_ids for table in group.tables] == before
    group.pool.check(group.tables)


def test_a_sequence_that_the_other_branch_has_not_is_refused() -> None:
    session, seq_id, _, left = parted()
    child = session.fork(seq_id).child
    session.step()
    with pytest.raises(InputError, match=f"Sequence {child} was not there after step {left}"):
        duel(session, child, left)
