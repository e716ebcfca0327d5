"""The bar that offers a recovered session: its words and counts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from app.models import Models, UnclosedSession
from app.window.notice_bar import RecoveryBar, session_counts
from engine.saved.session import SavedSession
from engine.spec.bookmark import Bookmark, OnStep
from engine.spec.cache import CacheSpec
from engine.spec.edit import Rows, Zero
from engine.wire.records import EditMade
from engine.wire.tree import Node
from tests.app import samples
from tests.app.shown import shown
from tests.approve import approve

EDIT = EditMade(Zero(0, Rows(0, 1)))


def test_steps_branches_edits_and_bookmarks_are_counted() -> None:
    nodes = tuple(Node(step, parent, changes, CacheSpec()) for step, parent, changes in TREE)
    session = SavedSession(nodes=nodes, bookmarks=(Bookmark(OnStep(1), "here"),))
    assert session_counts(session) == ["steps 0–2", "2 branches", "3 edits", "1 bookmark"]
    assert session_counts(SavedSession(nodes=nodes[:1])) == ["step 0"]


TREE = ((0, None, ()), (1, 0, (EDIT,)), (2, 0, (EDIT, EDIT)))


WHEN = time.mktime((2026, 3, 4, 5, 6, 0, 0, 0, -1))
RECORDS = samples.story(3)
NODES = tuple(replace(Node.of(record), parent=record.step - 1 if record.step else None) for record in RECORDS)
OFFERED = {
    "a draft": SavedSession(draft="Once upon <b>a time</b>"),
    "a prompt": SavedSession(pending=(EDIT,)),
    "stops": SavedSession(stops=("entropy > 2", "step = 4")),
    "stops and a draft": SavedSession(stops=("entropy > 2",), draft="Once"),
    "steps": SavedSession(
        model=samples.model_info("Tales & <i>more</i>"), nodes=NODES, live=RECORDS[-1].step,
        texts={part.sampled: f"<{part.sampled}>" for record in RECORDS for part in record.sequences if part.sampled},
        bookmarks=(Bookmark(OnStep(1), "here"),), draft="and then",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("dark_theme")
def test_each_offer_says_what_it_is_of_and_what_the_button_does(qtbot: QtBot) -> None:
    models = Models()
    bar = RecoveryBar(models)
    qtbot.addWidget(bar)
    bar.resize(900, 32)
    bar.show()
    lines = []
    for name, session in OFFERED.items():
        for problem in ("", "its last step is cut off"):
            models.recovery.offer(UnclosedSession(Path("/a/b.json"), session, WHEN, problem))
            QApplication.processEvents()
            lines += [f"== {name}{', with a problem' if problem else ''}", *shown(bar)]
    button = bar.findChildren(QPushButton)[0]
    with qtbot.waitSignal(bar.accepted):
        button.click()
    approve(Path(__file__).parent / "approved" / "recovery.txt", lines)
