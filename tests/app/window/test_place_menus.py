"""Context menus of places in panels: their title, their entries, and where they open."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QApplication, QMenu

from app.shell import Shell
from app.window.menus import EditMenu, PlaceMenu, TimelineMenu
from engine.spec.bookmark import Bookmark, OnHead, OnStep, OnToken
from engine.spec.edit import Rows
from engine.wire.commands import GoTo
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.one_window


def opened(name: str, do: str = "") -> list[str]:
    """The entries of the open menu, of which one is done if its text is given; closes it."""
    QApplication.processEvents()
    (menu,) = [w for w in QApplication.topLevelWidgets() if isinstance(w, QMenu) and w.isVisible()]
    assert menu.objectName() == name
    found = [("" if action.isEnabled() else "× ") + action.text() for action in menu.actions() if action.text()]
    for action in menu.actions():
        if do and action.text() == do:
            action.trigger()
    menu.close()
    return found


def test_the_menu_of_the_timeline_says_which_moment_it_is_of(running: Shell, engine: FakeEngine) -> None:
    models, window = running.models, running.window
    (menu,) = window.findChildren(TimelineMenu)
    assert menu.words() == ("The live step",)
    models.selection.update(ahead=1)
    assert menu.words() == ("1 step ahead of the live step",)
    models.selection.update(step=7)
    assert menu.words() == ("Step 7",)
    window.timeline.menu_wanted.emit(QPoint(5, 5))
    entries = opened("step")
    names = [name for group in menu.groups() for name in group]
    assert [entry.removeprefix("× ") for entry in entries] == [
        "Step 7", *(running.actions[name].text() for name in names),
    ]  # fmt: skip
    assert [entry for entry in entries[:5] if entry.startswith("× ")] == ["× Step 7", "× Return to the branch you left"]
    running.intents.send(GoTo(7))
    turn(running)
    assert engine.of(GoTo) == [GoTo(7)]
    models.selection.update(step=12)
    assert menu.words() == ("Step 12, 5 steps ahead of the live one",)
    running.intents.on_step()
    models.selection.update(step=None)
    running.intents.on_step()
    turn(running)
    models.selection.update(step=12)
    assert menu.words() == ("Step 12, on another branch",)


def test_before_the_first_step_there_is_none(shell: Shell) -> None:
    (menu,) = shell.window.findChildren(TimelineMenu)
    assert menu.words() == ("No step was taken",)


def groups_of(menu: PlaceMenu) -> list[list[str]]:
    return [list(group) for group in menu.groups()]


def test_what_would_be_refused_of_the_selected_rows_is_not_offered(running: Shell) -> None:
    """Some channels of a row cannot be hidden alone, nor can the newest row: those actions are disabled with the
    reason."""
    actions, selection = running.actions, running.models.selection
    selection.update(position=4)
    assert actions.reason("edit.mask") == ""
    for rows, why in (
        (Rows(4, 8, (3,), (1,), channels=(2, 3)), "a row is {} as a whole"),
        (Rows(4, 8, (3,), (1,), channels=(2,), part="keys"), "a row is {} as a whole"),
        (Rows(4, 999), "the newest"),
    ):
        selection.update(area=rows)
        assert actions.reason("edit.mask").startswith(why.format("hidden"))
        assert actions.reason("edit.drop").startswith(why.format("dropped"))
        assert actions["edit.zero"].isEnabled()
    selection.update(area=Rows(4, 8, (3,), (1,), part="keys"))
    assert actions.reason("edit.mask") == actions.reason("edit.drop") == "", "it hides the whole rows"


def test_the_menu_of_rows_says_how_much_is_selected(running: Shell) -> None:
    models, window = running.models, running.window
    (menu,) = window.findChildren(EditMenu)
    assert menu.words() == ("Nothing is selected: drag over tokens, heads or channels, or click one, first",)
    without = groups_of(menu)
    models.selection.update(position=4, area=Rows(4, 8, (3,), (1,), part="keys"))
    assert menu.words() == ("positions 4 … 7 · layer 3 · kv head 1 · K", "128 numbers, 512 B")
    assert groups_of(menu) == [["run.here_token", "run.at_token", "run.go_on", "run.to"], *without]
    assert [name for group in without for name in group] == [
        "value.copy", "picture.copy", "edit.both", "edit.keys", "edit.values", "edit.zero", "edit.scale", "edit.noise",
        "edit.overwrite", "edit.mask",
        "edit.unmask", "edit.pin", "edit.unpin", "edit.drop", "edit.replace", "edit.bias", "edit.typed", "note.add",
        "edit.undo", "edit.redo",
    ]  # fmt: skip
    assert window.status.note.text() == "Selected: positions 4 … 7 · layer 3 · kv head 1 · K · 128 numbers, 512 B"
    window.head.menu_wanted.emit(QPoint(5, 5))
    assert opened("edits")[:2] == [f"× {words}" for words in menu.words()]
    models.selection.update(position=9)
    assert window.status.note.text() == "", "nothing is said of another place than the one that is selected"


def test_a_bookmark_is_set_on_what_the_panel_in_use_shows(running: Shell) -> None:
    models, window = running.models, running.window
    models.selection.update(step=5, layer=2, kv_head=1)
    kinds = {}
    for name in ("wall", "head", "tokens", "inspector"):
        window.activateWindow()
        (window.tokens.canvas if name == "tokens" else window.panels[name]).setFocus()
        QApplication.processEvents()
        kinds[name] = window.note_menu.kind
    window.timeline.setFocus()
    assert kinds | {"timeline": window.note_menu.kind} == {
        "wall": "head", "head": "head", "tokens": "step", "inspector": "step", "timeline": "step",
    }  # fmt: skip
    models.selection.update(position=3)
    window.panels["inspector"].setFocus()
    assert window.note_menu.kind == "token"
    window.note_menu.open_at(QPoint(5, 5))
    offered = opened("notes")
    assert offered == ["× token 3 ·time · step 0", "Bookmark…"]
    kept, gone = Bookmark(OnHead(5, 0, 2, 1), "a head"), Bookmark(OnToken(models.timeline.token(0, 3).step, 0, 3), "")  # type: ignore[union-attr]
    for one in (kept, gone, Bookmark(OnToken(5, 0, 3)), Bookmark(OnStep(5))):
        models.bookmarks.put(one)
    before = len(models.bookmarks)
    window.note_menu.open_at(QPoint(5, 5))
    assert opened("notes", do="Delete bookmark")[1:] == ["Bookmark…", "Delete bookmark"]
    assert len(models.bookmarks) == before - 1
    assert kept in models.bookmarks.all
    assert models.bookmarks.at(OnStep(5)) is not None
