"""A new prompt keeps the session before it: the window says so, lists it by its words, and returns to it exactly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QPushButton

from app.control.recovering import Recovering
from app.models.kept_sessions import session_title
from app.panels.prompt.view import CHAT
from engine.saved.document import read_session
from engine.saved.journal import JournalFolder
from engine.saved.session import SavedSession
from engine.spec.bookmark import Bookmark, OnStep
from engine.spec.edit import Rows, Zero
from engine.spec.sampling import Chat, Turn
from engine.wire.commands import GoTo
from engine.wire.records import SequenceAdded
from engine.wire.tree import Node
from tests.app.driver import Driver


@pytest.fixture
def driver(qapp: QApplication, tmp_path: Path) -> Iterator[Driver]:
    """A window that keeps its journals in a folder."""
    driver = Driver(qapp)
    folder = JournalFolder(tmp_path)
    recovering = Recovering(folder, driver.models, driver.controller, "", driver.shell)
    driver.shell.session_wanted.connect(recovering.return_to)
    recovering.draft_found.connect(driver.window.prompt.take_draft)
    recovering.draft_found_again.connect(driver.shell.take_draft)
    recovering.chat_found.connect(driver.shell.take_chat)
    driver.intents.sessions_folder = tmp_path
    driver.controller.saving.begin_in(folder, "")
    yield driver
    driver.close()


def returns(driver: Driver) -> SavedSession:
    """Press the button of the status line; the session that is there then."""
    former = driver.models.kept_sessions.former
    assert former is not None
    expected = read_session(former.path).session
    button = driver.window.status.findChild(QPushButton, "return")
    assert button.isVisible()
    button.click()
    driver.wait_until_idle(
        lambda: not driver.models.status.has_file and len(driver.models.history) == len(expected.nodes)
    )
    driver.until(lambda: driver.models.kept_sessions.former != former)
    return expected


def test_going_back_and_forth_between_two_prompts_loses_nothing(driver: Driver, tmp_path: Path) -> None:
    kept, saving, menu = driver.models.kept_sessions, driver.controller.saving, driver.window.sessions
    driver.send("Once upon a time")
    driver.steps(3)
    driver.intents.send(GoTo(1))
    driver.wait_until_idle(lambda: driver.models.history.live == 1)
    driver.steps(1)
    driver.intents.on_edited(Zero(0, Rows(1, 3)))
    driver.wait_until_idle(lambda: driver.models.edits.made)
    driver.models.bookmarks.put(Bookmark(OnStep(2), "here"))
    first = saving.session
    assert not menu.isEnabled()
    assert not driver.window.actions_["session.return"].isEnabled()

    driver.send("A cat sat")
    assert driver.models.status.notice
    driver.until(lambda: kept.former is not None)
    assert [action.text().split("\t")[0] for action in menu.actions()] == [
        "“Once upon a time” · Tales 5M · steps 0–5 · 2 branches · 1 edit · 1 bookmark"
    ]
    assert driver.window.actions_["session.return"].isEnabled()
    driver.window.actions_["run.step"].trigger()
    driver.wait_until_idle(lambda: len(driver.models.timeline) == 2)
    second = saving.session

    for there, other in ((first, second), (second, first), (first, second)):
        expected = returns(driver)
        for name in ("nodes", "live", "pending", "names", "bookmarks", "model", "cache"):
            assert getattr(expected, name) == getattr(there, name), name
            assert getattr(saving.session, name) == getattr(there, name), name
        assert driver.window.prompt.edit.text() == ("Once upon a time" if there is first else "A cat sat")
        assert [each.title for each in kept.all] == [session_title(other)], "one file a session"
        assert len([*tmp_path.iterdir()]) == 2


def test_a_conversation_comes_back_as_one(driver: Driver) -> None:
    driver.intents.on_prompt_submitted(Chat((Turn("user", "Who are you?"),)), driver.window.prompt.sampling)
    driver.wait_until_idle(lambda: driver.has_chosen() and not driver.models.status.now.running)
    driver.send("A cat sat")
    assert returns(driver).nodes
    prompt = driver.window.prompt
    assert prompt.choice == CHAT
    assert prompt.chat.turns.turns[0] == Turn("user", "Who are you?")
    assert returns(driver).nodes
    assert prompt.choice != CHAT
    assert prompt.chat.turns.turns == (Turn("user", ""),)


def test_a_session_is_named_by_its_first_words() -> None:
    texts = {7: "Once\n", 8: " upon a time", 9: " there"}
    node = Node(0, None, (SequenceAdded(0, (7, 8, 9) * 3, SavedSession().sampling),), SavedSession().cache)
    assert (
        session_title(SavedSession(nodes=(node,), texts=texts)) == "“Once upon a time thereOnce upon a time…” · step 0"
    )
    of_bytes = SavedSession(nodes=(node,), texts={7: "caf", 8: "<C3>", 9: "<A9>"})
    assert session_title(of_bytes) == "“cafécafécafé” · step 0"
    assert session_title(SavedSession(origin="/a/b.safetensors")) == "from b.safetensors · no step yet"
    assert session_title(SavedSession()) == "without a prompt · no step yet"
