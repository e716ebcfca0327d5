"""Edited rows after a change of the cache mode: hidden, pinned and written rows stay so."""

from __future__ import annotations

import pytest
import torch

from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.edit import Edit, Mask, ReplaceTokens, Rows, Zero
from engine.spec.sampling import Prompt
from tests.engine.session.histories import MODES, difference, stands
from tests.engine.session.sessions import started
from tests.engine.tiny import model_of, prompt_ids

EXACT = ("growing", "dynamic", "static", "paged")
EDITS = (Mask(0, Rows(2, 5)), Zero(0, Rows(2, 5)), ReplaceTokens(0, 3, (9, 8), "re-prefill"))


def edited(mode: str, edit: Edit, architecture: str = "llama") -> Session:
    session = Session(model_of(architecture), MODES[mode])
    session.force(session.submit(Prompt(token_ids=prompt_ids(9))), prompt_ids(30, seed=3))
    for _ in range(3):
        session.step()
    make_edit(session, edit)
    session.step()
    return session


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: type(edit).__name__)
@pytest.mark.parametrize(("mode", "other"), [(one, other) for one in EXACT for other in EXACT if one != other])
def test_going_back_over_a_change_of_mode_brings_edited_rows_back(mode: str, other: str, edit: Edit) -> None:
    """The rows are copied from the present mode: hidden rows stay hidden, and their pages serve no other prompt."""
    session = edited(mode, edit)
    at, then, was = session.last_step, stands(session), session.cache_of(0).by_hand
    session.step()
    next_step = stands(session)
    session.set_cache(MODES[other])
    session.step()
    session.kept.clear()
    assert "repeated" not in session.go_to(at)
    by_hand = session.cache_of(0).by_hand
    assert difference(stands(session), then) == ""
    assert by_hand.edits == was.edits
    assert [mask.tolist() for mask in by_hand.hidden.layers.values()] == [
        mask.tolist() for mask in was.hidden.layers.values()
    ]
    session.step()
    assert difference(stands(session), next_step) == "", "attention reads the rows that it read at that moment"


def test_a_sequence_with_edited_rows_is_forked_at_an_earlier_step() -> None:
    session = edited("growing", Zero(0, Rows(6, 8)), "mistral")
    at = session.last_step
    session.step()
    make_edit(session, Mask(0, Rows(7, 8)))
    assert session.fork(0, at).child == 1


def rows_of(session: Session) -> torch.Tensor:
    rows = session.cache_of(0).rows(0)
    assert rows is not None
    return rows.keys


def test_keys_of_rotated_sinks_that_were_edited_stay_edited() -> None:
    """The cache rotates them anew from unrotated originals when a row is dropped and when the session goes back."""
    edited, _ = started(cache=MODES["rotated sinks"], length=12)
    twin, _ = started(cache=MODES["rotated sinks"], length=12)
    for session in (edited, twin):
        session.force(0, prompt_ids(9, seed=3))
        for _ in range(3):
            session.step()
    make_edit(edited, Zero(0, Rows(0, 1)))
    at, then = edited.last_step, stands(edited)
    for session in (edited, twin):
        session.step()
    keys, others = (rows_of(session) for session in (edited, twin))
    assert not keys[:, :, 0].any()
    assert torch.equal(keys[:, :, 1], others[:, :, 1])
    edited.kept.clear()
    assert "evicted row" in edited.go_to(at)
    assert difference(stands(edited), then) == ""
