"""How much is in a session that is offered."""

from __future__ import annotations

from app.window.recovery_bar import session_counts
from engine.saved.session import SavedSession
from engine.spec.bookmark import Bookmark, OnStep
from engine.spec.cache import CacheSpec
from engine.spec.edit import Rows, Zero
from engine.wire.changes import EditMade
from engine.wire.tree import Node

EDIT = EditMade(Zero(0, Rows(0, 1)))


def test_steps_branches_edits_and_bookmarks_are_counted() -> None:
    nodes = tuple(Node(step, parent, changes, CacheSpec()) for step, parent, changes in TREE)
    session = SavedSession(nodes=nodes, bookmarks=(Bookmark(OnStep(1), "here"),))
    assert session_counts(session) == ["0 steps", "2 branches", "3 edits", "1 bookmark"]
    assert session_counts(SavedSession(nodes=nodes[:1])) == ["0 steps"]


TREE = ((0, None, ()), (1, 0, (EDIT,)), (2, 0, (EDIT, EDIT)))
