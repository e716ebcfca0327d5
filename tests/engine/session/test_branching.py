"""Undo and redo of edits while branches are begun and deleted."""

from __future__ import annotations

import pytest

from engine.errors import InputError
from engine.session.commands import delete_branch, redo_edit, undo_edit
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.edit import Rows, Zero
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids


def test_an_edit_whose_branch_was_deleted_is_not_returned_to() -> None:
    session = Session(model_of("llama"), CacheSpec("growing"))
    session.submit(Prompt(token_ids=prompt_ids(6)))
    session.step()
    before = session.last_step
    edits = []
    for start in (1, 3):
        edits.append(make_edit(session, Zero(0, Rows(start, start + 1)))[0].node.step)
        undo_edit(session)
        assert session.last_step == before
    delete_branch(session, edits[1])
    redo_edit(session)
    assert session.last_step == edits[0], "the newest of those that are there"
    undo_edit(session)
    delete_branch(session, edits[0])
    with pytest.raises(InputError, match="no undone edit"):
        redo_edit(session)
    assert session.last_step == before
