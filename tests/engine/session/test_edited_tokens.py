"""Tokens of a sequence replaced or prefilled again."""

from __future__ import annotations

import pytest
import torch

from engine.session.editing import make_edit
from engine.session.session import Session
from engine.spec.edit import (
    Mask,
    ReplaceTokens,
    Rows,
    Scale,
)
from engine.spec.sampling import Prompt
from tests.engine.session.edit_sessions import begun, marks, same, state, step
from tests.engine.snapshot.sessions import small
from tests.engine.tiny import model_of, prompt_ids


@pytest.mark.parametrize("mode", ["growing", "none", "h2o", "paged", "kivi-4", "transformers-quantized"])
def test_other_tokens_are_undone_and_repeated(mode: str) -> None:
    session = begun(mode)
    before, stood = state(session), marks(session)
    added, _ = make_edit(session, ReplaceTokens(0, 12, (7, 9, 11), "re-prefill", 1))
    assert session.sequence(0).token_ids[12:15] == [7, 9, 11]
    step(session)
    end, then, last = state(session), marks(session), session.last_step
    session.go_to(1)
    session.kept.clear()
    session.go_to(last)
    assert same(state(session), end)
    assert marks(session) == then
    session.kept.clear()
    session.go_to(added.node.parent)
    assert marks(session) == stood
    assert same(state(session), before)


@pytest.mark.parametrize("mode", ["growing", "paged", "int8"])
def test_a_re_prefill_tells_where_the_newest_token_looks(mode: str) -> None:
    """Over all tokens of the new text, as one that was fed those tokens from the start does."""
    session = begun(mode)
    added, _ = make_edit(session, ReplaceTokens(0, 12, (7, 9, 11), "re-prefill", 1))
    row = session.history.attention_at(0, added.node.step)[1]
    assert row.shape[1] == session.sequence(0).num_tokens
    assert torch.allclose(row.sum(1), torch.ones(row.shape[0]), atol=1e-5)


@pytest.mark.parametrize("mode", ["growing", "paged", "int8", "kivi-4", "fp8", "h2o", "dynamic"])
def test_rows_of_a_prompt_that_is_half_read_are_edited_and_read_by_the_rest(mode: str) -> None:
    session, plain = (Session(model_of("llama"), small(mode), prefill_chunk=8) for _ in range(2))
    for each in (session, plain):
        each.submit(Prompt(token_ids=prompt_ids(30)))
        each.step()
    _, measured = make_edit(session, Scale(0, Rows(2, 6), -2.0))
    assert measured.kl is None  # no token was chosen yet
    make_edit(session, Mask(0, Rows(5, 7)))
    for each in (session, plain):
        while each.is_prefilling:
            each.step()
    one, other = session.logits(0), plain.logits(0)
    assert one is not None
    assert other is not None
    assert one.isfinite().all()
    assert not torch.allclose(one, other, atol=1e-3)


def test_a_prompt_that_was_half_read_is_the_old_one_before_its_end_was_replaced() -> None:
    """The rows of then are still those of the new text; what was to be read behind them is not."""
    session, ids = Session(model_of("llama"), small("growing"), prefill_chunk=5), prompt_ids(12)
    session.submit(Prompt(token_ids=ids))
    for _ in range(4):
        session.step()
    make_edit(session, ReplaceTokens(0, 8, (17, 18), "re-prefill", 2))
    session.kept.set_limit(0)
    session.go_to(0)
    assert (tuple(session.sequence(0).token_ids), session.sequence(0).num_tokens) == (ids, 5)
