"""An edit that fails at any line changes nothing; a step that fails after an edit keeps the edit."""

from __future__ import annotations

import pytest
import torch

from engine.session.commands import undo_edit
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.codec import uniform
from engine.spec.edit import AddNoise, BiasLogits, Edit, Mask, Overwrite, ReplaceTokens, Rows, Zero
from engine.spec.retention import RetentionSpec
from tests.effort import effort
from tests.engine.faults import Injected, failing_at
from tests.engine.session.sessions import facts, prepared, same, set_state, tensors
from tests.engine.snapshot.sessions import small

H2O = CacheSpec(retention=RetentionSpec("h2o", budget=9, window=4))
CASES: list[tuple[str, CacheSpec, Edit]] = [
    ("llama", small("growing"), Zero(0, Rows(2, 4))),
    ("llama", small("paged"), Zero(0, Rows(2, 6))),
    ("llama", small("dynamic"), Mask(0, Rows(2, 4))),
    ("llama", small("paged"), ReplaceTokens(0, 3, (7,), "re-prefill")),
    ("llama", small("none"), BiasLogits(0, banned=(7,))),
    ("llama", small("static"), ReplaceTokens(0, 3, (7,))),
    ("llama", CacheSpec(codec=uniform("kivi-4", 8, 8)), AddNoise(0, Rows(1, 4), 0.5)),
    ("llama", H2O, Mask(0, Rows(6, 7, (1,)))),
    ("llama", small("paged"), Overwrite(0, Rows(2, 4), from_step=2, shift=1)),
    ("lfm2", small("paged"), Zero(0, Rows(2, 4))),
    ("lfm2", small("dynamic"), Zero(0, Rows(2, 4))),
    ("mistral", small("static"), Zero(0, Rows(5, 6))),
    ("llama", small("transformers-quantized"), Zero(0, Rows(2, 4))),
]


def sound(session: Session) -> bool:
    store = session.live.mode.store
    if store is not None:
        for group in store.groups:
            group.pool.check()
    return True


@pytest.mark.parametrize(("architecture", "spec", "edit"), CASES)
def test_an_edit_that_fails_anywhere_changes_nothing(architecture: str, spec: CacheSpec, edit: Edit) -> None:
    session = prepared(architecture, spec, "decode")
    before, rows = facts(session), tensors(session)
    number, failures = 1, 0
    while isinstance(outcome := failing_at(number, lambda: make_edit(session, edit)), Injected):
        assert facts(session) == before, f"call {number}, {outcome}"
        assert same(tensors(session), rows), f"call {number}, {outcome}"
        assert sound(session), f"call {number}, {outcome}"
        assert len(session.live.caches) == 1
        failures += 1
        number += effort(13, 1)
    assert failures >= 3
    assert outcome[0].node.step == 3
    undo_edit(session)
    assert same(tensors(session), rows)
    assert sound(session)


@pytest.mark.parametrize(("architecture", "spec", "edit"), CASES)
def test_a_step_that_fails_after_an_edit_keeps_the_edit(architecture: str, spec: CacheSpec, edit: Edit) -> None:
    session, twin = (prepared(architecture, spec, "decode") for _ in range(2))
    for each in (session, twin):
        make_edit(each, edit)
        set_state(each, 0, stop=None)
    twin.step()
    rows, number = tensors(session), 1
    while isinstance(outcome := failing_at(number, session.step), Injected):
        held = tensors(session)
        assert held.keys() == rows.keys(), f"call {number}, {outcome}: nothing is to be computed again"
        assert same(held, rows), f"call {number}, {outcome}"
        number += effort(19, 1)
    assert same(tensors(session), tensors(twin))
    assert torch.equal(session.logits(0), twin.logits(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [name for name in PRESETS if not PRESETS[name].spec.recomputes])
def test_edited_rows_are_counted_and_drawn_anew(mode: str) -> None:
    from engine.spec.edit import Scale
    from engine.wire.pictures import WallPicture, WallRequest

    session = prepared("llama", small(mode), "decode")
    request = WallRequest(0, session.cache_of(0).num_tokens, 0, "keys", False, 64, 64)
    first = session.take_picture(request)
    position = session.cache_of(0).held_positions(1)[0].tolist()[1]
    make_edit(session, Scale(0, Rows(position, position + 1, (1,), (0,)), 40.0))
    after = session.take_picture(request)
    session.live.memos.forget(0)
    anew = session.take_picture(request)
    assert isinstance(first, WallPicture)
    assert isinstance(after, WallPicture)
    assert isinstance(anew, WallPicture)
    assert first.magnitudes is not None
    assert after.magnitudes is not None
    assert anew.magnitudes is not None
    assert (after.magnitudes.largest == anew.magnitudes.largest).all()
    assert (after.magnitudes.limit == anew.magnitudes.limit).all()
    assert after.magnitudes.largest[1] >= first.magnitudes.largest[1]
    if PRESETS[mode].lossless:
        assert after.magnitudes.largest[1] > 5 * first.magnitudes.largest[0]


def test_pending_changes_stay_pending_if_the_moment_before_an_edit_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = prepared("llama", small("growing"), "decode")
    session.force(0, (5, 6))
    before, pending = facts(session), list(session.history.changes)

    def no_room(_state: object) -> None:
        raise MemoryError

    monkeypatch.setattr(session.kept, "keep", no_room)
    with pytest.raises(MemoryError):
        make_edit(session, Zero(0, Rows(2, 4)))
    assert facts(session) == before
    assert session.history.changes == pending
    assert session.history.added == []
