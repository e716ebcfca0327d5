"""Edits as moments of a session's history: made, undone, made again, replayed, in all modes, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.errors import InputError
from engine.session.commands import redo_edit, undo_edit
from engine.session.edits import make_edit
from engine.session.replay import Replay
from engine.session.session import Session
from engine.session.states import LiveSequence
from engine.spec.cache import PRESETS
from engine.spec.edit import (
    AddNoise,
    BiasLogits,
    Drop,
    Edit,
    Mask,
    Overwrite,
    Pin,
    ReplaceTokens,
    Rows,
    Scale,
    Zero,
)
from engine.spec.sampling import Prompt
from engine.wire.records import EditMade, SequenceAdded
from engine.wire.status import LayerDone, PhaseReached
from tests.engine.session.edit_sessions import begun, marks, same, state, step
from tests.engine.session.sessions import facts
from tests.engine.snapshot.sessions import small
from tests.engine.tiny import model_of, prompt_ids

MODES = list(PRESETS)


def held(session: Session, seq_id: int = 0, layer: int = 1, head: int = 0) -> list[int]:
    return session.cache_of(seq_id).held_positions(layer).expand(2, -1)[head].tolist()  # type: ignore[no-any-return]


def row_edit(session: Session) -> Edit:
    """An edit that every mode accepts."""
    if session.cache.recomputes:
        return BiasLogits(0, ((5, 3.0),), (6,))
    position = held(session)[1]
    return Zero(0, Rows(position, position + 1, (1,), (0,)))


@pytest.mark.parametrize("mode", MODES)
def test_an_edit_and_its_undo_leave_every_bit_as_it_was(mode: str) -> None:
    session = begun(mode)
    before, stood, at = state(session), marks(session), session.last_step
    added, measured = make_edit(session, row_edit(session))
    assert (added.node.step, added.node.parent, added.is_live) == (4, 3, True)
    assert added.node.changes[-1] == EditMade(row_edit(session)) or isinstance(added.node.changes[-1], EditMade)
    assert measured.kl is not None
    assert measured.kl > 0
    edited, then = state(session), marks(session)
    if not session.cache.recomputes:
        assert not same(before, edited)
    undo_edit(session)
    assert session.last_step == at
    assert same(state(session), before)
    assert marks(session) == stood
    redo_edit(session)
    assert session.last_step == 4
    assert same(state(session), edited)
    assert marks(session) == then
    with pytest.raises(InputError, match="no undone edit"):
        redo_edit(session)


@pytest.mark.parametrize("edit", [Zero(0, Rows(1, 3)), BiasLogits(0, ((5, 2.0),))], ids=["rows", "logits"])
def test_an_edit_reports_the_next_token_as_a_step_does(edit: Edit) -> None:
    """With as many candidates, and with the entropy of the distribution after the edit."""
    session = begun("growing")
    (part,) = session.step().sequences
    measured = make_edit(session, edit)[1]
    logits = session.logits(0)
    assert logits is not None
    logprobs = logits.double().log_softmax(-1)
    assert [one.token_id for one in measured.before] == [one.token_id for one in part.candidates]
    assert len(measured.after) == len(part.candidates) > 5
    assert [one.token_id for one in measured.after] == logits.topk(len(measured.after)).indices.tolist()
    assert measured.entropy == pytest.approx(-float((logprobs.exp() * logprobs).sum()), abs=1e-5)


def test_after_a_restart_undo_and_redo_find_the_edit_in_the_tree() -> None:
    session = begun("growing")
    make_edit(session, row_edit(session))
    again = Session(model_of("llama"), session.cache)
    replay = Replay(again, tuple(entry.node for entry in session.history.tree))
    for _ in replay.steps():
        pass
    replay.finish(4, ())
    undo_edit(again)
    assert again.last_step == 3
    again.history.undone.clear()
    redo_edit(again)
    assert again.last_step == 4
    with pytest.raises(InputError, match="no undone edit"):
        redo_edit(again)


@pytest.mark.parametrize("mode", MODES)
def test_a_path_with_an_edit_is_repeated_to_the_bit(mode: str) -> None:
    session = begun(mode)
    make_edit(session, row_edit(session))
    for _ in range(3):
        step(session)
    end, stood, last = state(session), marks(session), session.last_step
    session.go_to(1)
    step(session)
    session.kept.clear()  # moments that are not kept are replayed
    session.go_to(last)
    assert same(state(session), end)
    assert marks(session) == stood
    session.kept.clear()
    session.go_to(3)  # the moment before the edit has as many tokens as the one after it
    other = begun(mode)
    assert same(state(session), state(other))


@pytest.mark.parametrize("mode", MODES)
def test_an_edit_that_fails_changes_nothing(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = begun(mode)
    session.force(0, (7, 8))
    before, stood, known = state(session), marks(session), facts(session)
    pending = list(session.history.changes)
    for bad in (Zero(0, Rows(2, 99)), Zero(3, Rows(0, 1)), BiasLogits(0, banned=tuple(range(128)))):
        with pytest.raises(InputError):
            make_edit(session, bad)
    good = row_edit(session)

    def broken(*args: Any, **kwargs: Any) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(LiveSequence, "choose_again", broken)
    with pytest.raises(MemoryError):
        make_edit(session, good)
    assert same(state(session), before)
    assert marks(session) == stood
    assert facts(session) == known
    assert session.history.changes == pending
    if session.live.mode.store is not None:
        for group in session.live.mode.store.groups:
            group.pool.check()
            assert len(group.tables) == 1
    monkeypatch.undo()
    added, _ = make_edit(session, good)
    assert added.node.parent == 4  # the token forced before the edit is a moment of its own
    assert session.sequence(0).sampled == 7


def test_what_was_done_before_an_edit_is_a_moment_of_its_own() -> None:
    session = begun("growing")
    session.force(0, (9,))
    make_edit(session, Scale(0, Rows(2, 4), 3.0))
    nodes = session.history.take_added()
    assert [node.step for node in nodes] == [4]
    undo_edit(session)
    assert session.last_step == 4
    assert session.sequence(0).sampled == 9


def test_a_bias_before_the_first_step() -> None:
    session = Session(model_of("llama"), small("growing"))
    session.submit(Prompt(token_ids=prompt_ids(5)))
    added, measured = make_edit(session, BiasLogits(0, only=(11,)))
    assert isinstance(session.history.take_added()[0].changes[0], SequenceAdded)
    assert measured.kl is None
    assert added.node.parent == 0
    session.step()
    assert session.sequence(0).sampled == 11
    undo_edit(session)
    session.step()
    assert session.sequence(0).sampled != 11


@pytest.mark.parametrize("mode", ["growing", "paged", "int8", "static"])
def test_rows_of_another_branch_are_written_over_those_of_now(mode: str) -> None:
    session = begun(mode)
    session.go_to(2)
    session.force(0, (7, 9, 11))
    for _ in range(3):
        step(session)
    other = session.cache_of(0).rows(1)
    assert other is not None
    keys, tip = other.keys[0, :, 31:33].clone(), session.last_step
    session.go_to(3)
    before = session.cache_of(0).rows(1)
    assert before is not None
    assert not torch.equal(before.keys[0, :, 31:33], keys)
    _, measured = make_edit(session, Overwrite(0, Rows(31, 33, (1,), None, None, "keys"), from_step=tip))
    after = session.cache_of(0).rows(1)
    assert after is not None
    assert torch.equal(after.keys[0, :, 31:33], keys)
    assert measured.kl is not None
    assert measured.kl > 0
    end, last = state(session), session.last_step
    session.go_to(0)
    session.kept.clear()
    session.go_to(last)
    assert same(state(session), end)


def test_rows_of_another_sequence() -> None:
    session = begun("paged")
    second = session.submit(Prompt(token_ids=prompt_ids(12, seed=7)))
    step(session)
    make_edit(session, Overwrite(second, Rows(3, 6), from_seq_id=0, shift=4))
    mine, theirs = session.cache_of(second).rows(0), session.cache_of(0).rows(0)
    assert mine is not None
    assert theirs is not None
    assert torch.equal(mine.keys[0, :, 3:6], theirs.keys[0, :, 7:10])


def test_edited_attention_and_logits_are_those_of_the_node() -> None:
    session = begun("growing")
    added, _ = make_edit(session, Mask(0, Rows(4, 9, (1,), (0,))))
    row = session.history.attention_at(0, added.node.step)[1]
    assert not row[:2, 4:9].any()
    assert bool((row[2:, 4:9] > 0).all())
    assert bool((session.history.attention_at(0, 3)[1][:2, 4:9] > 0).all())
    assert torch.equal(session.history.logits_at(0, added.node.step), session.logits(0))  # type: ignore[arg-type]


def test_rows_of_a_moment_before_an_edit_are_labelled_as_stored_now() -> None:
    session = begun("growing")
    make_edit(session, Zero(0, Rows(10, 12)))
    assert session.rows_at(0, 33).provenance == "live cache"
    assert session.rows_at(0, 32).provenance == "as stored now"
    assert session.rows_at(0, 10).provenance == "live cache"


def test_a_mode_in_which_an_edit_cannot_be_made_again_is_refused() -> None:
    session = begun("growing")
    make_edit(session, Zero(0, Rows(10, 12)))
    before = state(session)
    with pytest.raises(InputError, match=r"edited by hand.* are not in the cache"):
        session.set_cache(small("h2o"))
    assert same(state(session), before)
    session.set_cache(small("int8"))
    rows = session.cache_of(0).rows(1)
    assert rows is not None
    assert not rows.keys[0, :, 10:12].any()


def test_drops_and_pins_are_undone() -> None:
    session = begun("h2o", num_steps=6)
    before = state(session)
    # a position that both heads of layer 1 hold
    position = next(p for p in held(session)[1:-2] if p in held(session, head=1))
    make_edit(session, Pin(0, Rows(position, position + 1, (1,))))
    make_edit(session, AddNoise(0, Rows(position, position + 1, (1,)), 1.0))
    make_edit(session, Drop(0, Rows(position, position + 1, (1,))))
    step(session)
    assert position not in held(session)
    for _ in range(3):
        undo_edit(session)
    assert same(state(session), before)
    assert not session.cache_of(0).by_hand
    for _ in range(3):
        redo_edit(session)
    assert position not in held(session)


def test_a_sequence_with_edited_rows_does_not_give_its_pages_up() -> None:
    from msgspec.structs import replace

    spec = replace(small("paged"), num_pages=14)
    session = Session(model_of("llama"), spec)
    for seed in (0, 1):
        seq_id = session.submit(Prompt(token_ids=prompt_ids(16, seed)))
        session.force(seq_id, prompt_ids(60, seed + 5))
        session.step()
    make_edit(session, Zero(1, Rows(2, 4)))
    session.kept.clear()
    preempted: list[int] = []
    while not preempted:
        preempted += session.step().preempted
    assert preempted == [0]  # else the youngest sequence would be preempted
    rows = session.cache_of(1).rows(0)
    assert rows is not None
    assert not rows.keys[0, :, 2:4].any()


def test_rows_that_a_failed_step_has_emptied_are_there_again_before_they_are_edited() -> None:
    """A failed step leaves a sequence without rows where they cannot be cropped."""
    held = []
    for is_emptied in (False, True):
        session = begun("growing")
        live = session.live.get(0)
        if is_emptied:
            live.cache.clear()
            live.is_stale = True
        make_edit(session, Zero(0, Rows(2, 4)))
        rows = session.cache_of(0).rows(1)
        assert rows is not None
        assert not rows.keys[:, :, 2:4].any()
        held.append(rows.keys)
    torch.testing.assert_close(*held)


def test_where_an_edit_is_refused_after_a_failed_step_the_way_back_is_open() -> None:
    """A step that fails empties recurrent states; those that were stepped together come out of a kept state."""
    session = Session(model_of("lfm2"), small("paged"))
    for seed in (0, 1):
        session.submit(Prompt(token_ids=prompt_ids(9, seed)))
    for _ in range(3):
        session.step()
    before = state(session)

    def fails(event: PhaseReached) -> None:
        if isinstance(event.phase, LayerDone):
            raise KeyError

    with pytest.raises(KeyError):
        session.step(reached=fails)
    with pytest.raises(InputError, match="recurrent state"):
        make_edit(session, ReplaceTokens(0, 3, (5,)))
    session.go_to(1)
    session.go_to(2)
    assert same(state(session), before)
