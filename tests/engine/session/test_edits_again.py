"""Edits in modes that keep no rows, and edits made again where a change of mode computes all rows anew."""

from __future__ import annotations

import pytest
import torch

from engine.errors import InputError
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.edit import AddNoise, Edit, Mask, Overwrite, ReplaceTokens, Rows, Scale, Zero
from engine.spec.sampling import Prompt
from tests.engine.session.histories import MODES, difference, stands
from tests.engine.tiny import model_of, prompt_ids

NONE = CacheSpec(layout="none")


def begun(spec: CacheSpec, architecture: str = "llama") -> Session:
    session = Session(model_of(architecture), spec)
    session.force(session.submit(Prompt(token_ids=prompt_ids(9))), prompt_ids(30, seed=3))
    for _ in range(3):
        session.step()
    return session


def logits_of(session: Session) -> torch.Tensor:
    found = session.live.get(0).logits
    assert found is not None
    return found


@pytest.mark.parametrize("edit", [Zero(0, Rows(2, 5)), Mask(0, Rows(2, 5)), ReplaceTokens(0, 3, (9, 8), "overwrite")])
def test_rows_are_edited_where_none_are_kept_by_keeping_them_from_now_on(edit: Edit) -> None:
    session, other = begun(NONE), begun(CacheSpec())
    added, _ = make_edit(session, edit)
    make_edit(other, edit)
    assert session.cache == CacheSpec()
    assert added.how.startswith("None keeps no rows to edit: moved to Growing, re-prefilled 11 tokens")
    assert torch.allclose(logits_of(session), logits_of(other), atol=1e-4)
    for each in (session, other):
        each.step()
    assert torch.allclose(logits_of(session), logits_of(other), atol=1e-4)


def test_an_edit_that_cannot_be_made_leaves_the_mode_that_keeps_no_rows() -> None:
    session = begun(NONE)
    before = stands(session)
    with pytest.raises(InputError):
        make_edit(session, Zero(0, Rows(200, 300)))
    with pytest.raises(InputError):
        make_edit(session, Overwrite(0, Rows(0, 2), from_step=99))
    assert session.cache == NONE
    assert difference(stands(session), before) == ""


@pytest.mark.parametrize("edit", [Zero(0, Rows(6, 8)), Mask(0, Rows(6, 8)), AddNoise(0, Rows(6, 8), 0.5)])
def test_edits_are_made_again_where_a_mode_computes_all_rows_anew(edit: Edit) -> None:
    session = begun(MODES["growing"], "mistral")
    make_edit(session, edit)
    for _ in range(3):
        session.step()
    make_edit(session, Scale(0, Rows(12, 13), 0.5))
    session.step()
    then, at = logits_of(session), session.last_step
    how = session.set_cache(MODES["dynamic"])
    assert how == "re-prefilled 15 tokens, and made its edits again"
    session.step()
    twin = begun(MODES["dynamic"], "mistral")
    make_edit(twin, edit)
    for _ in range(3):
        twin.step()
    make_edit(twin, Scale(0, Rows(12, 13), 0.5))
    for _ in range(2):
        twin.step()
    assert torch.allclose(logits_of(session), logits_of(twin), atol=1e-4)
    newest = logits_of(session)
    session.go_to(at)
    assert torch.equal(logits_of(session), then)
    session.kept.clear()
    session.go_to(session.history.next_step - 1)
    assert torch.allclose(logits_of(session), newest, atol=1e-5), "going on again makes the edits again"


def test_edits_live_through_a_mode_that_keeps_no_rows() -> None:
    session, twin = begun(CacheSpec()), begun(CacheSpec())
    for each in (session, twin):
        make_edit(each, Zero(0, Rows(2, 5)))
        each.step()
    assert session.set_cache(NONE).endswith(", without the edits of its rows")
    assert session.set_cache(CacheSpec()) == "re-prefilled 12 tokens, and made its edits again"
    for each in (session, twin):
        each.step()
    assert torch.allclose(logits_of(session), logits_of(twin), atol=1e-4)


def test_tokens_put_in_by_a_prefill_stay_behind_edited_rows() -> None:
    session, twin = begun(CacheSpec()), begun(CacheSpec())
    for each in (session, twin):
        make_edit(each, Zero(0, Rows(2, 5)))
        make_edit(each, ReplaceTokens(0, 8, (9, 8, 7), "re-prefill", 2))
        each.step()
    session.set_cache(NONE)
    assert session.set_cache(CacheSpec()) == "re-prefilled 13 tokens, and made its edits again"
    for each in (session, twin):
        each.step()
    assert torch.allclose(logits_of(session), logits_of(twin), atol=1e-4)


def test_a_fork_has_the_edits_of_the_sequence_that_it_was_forked_from() -> None:
    session = begun(CacheSpec())
    make_edit(session, Zero(0, Rows(2, 5)))
    session.step()
    child = session.fork(0, session.last_step).child
    session.set_cache(NONE)
    session.set_cache(CacheSpec())
    rows = session.cache_of(child).rows(0)
    assert rows is not None
    assert not rows.keys[:, :, 2:5].any()
    assert rows.keys[:, :, 5:].any()
