"""Bookmarks in the window: set by key or menu, drawn as marks, listed, found, visited, edited, deleted and saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QContextMenuEvent, QGuiApplication, QHelpEvent, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QToolTip

from app.dialogs.questions import BookmarkDialog
from app.kit.theme import current_theme
from engine.saved.document import read_session
from engine.spec.bookmark import MAX_CHARACTERS, Bookmark, OnHead, OnPage, OnStep, OnToken
from engine.spec.cache import cache_named
from engine.wire.commands import GoTo
from tests.app.driver import Driver


@pytest.fixture
def desk(qapp: QApplication) -> Iterator[Driver]:
    driver = Driver(qapp, cache_named("paged"))
    driver.send("Once upon a time")
    driver.steps(8)
    yield driver
    driver.close()


def asked(desk: Driver) -> BookmarkDialog:
    """The dialog that the key opens."""
    desk.window.actions_["note.add"].trigger()
    return desk.window.findChildren(BookmarkDialog)[-1]


def put(desk: Driver, *bookmarks: Bookmark) -> None:
    for one in bookmarks:
        desk.intents.on_bookmark_put(one)
    desk.window.docks.docks["notes"].raise_()
    desk.wait_until_idle()


def tip_at(point: QPoint) -> QHelpEvent:
    return QHelpEvent(QEvent.Type.ToolTip, point, point)


def ink(image: QImage) -> int:
    """How many pixels have the colour of a mark."""
    color = current_theme().color("text").rgb()
    return sum(image.pixel(x, y) == color for x in range(image.width()) for y in range(image.height()))


def test_return_begins_a_line_of_a_note_and_with_ctrl_saves_it(desk: Driver) -> None:
    dialog = asked(desk)
    QTest.keyClicks(dialog.note, "one")
    QTest.keyClick(dialog.note, Qt.Key.Key_Return)
    QTest.keyClicks(dialog.note, "two")
    QTest.keyClick(dialog.note, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert not dialog.isVisible()
    assert [found.text for found in desk.models.bookmarks.all] == ["one\ntwo"]


def test_the_key_asks_for_what_is_selected_and_the_note_is_listed(desk: Driver) -> None:
    dialog = asked(desk)
    assert dialog.kind.choice == "step"
    assert dialog.target == OnStep(8)
    dialog.note.setPlainText("here it turns\n<b>bold?</b>")
    dialog.accept()
    assert desk.models.bookmarks.all == (Bookmark(OnStep(8), "here it turns\n<b>bold?</b>"),)
    desk.models.selection.update(position=3)
    dialog = asked(desk)
    token = desk.models.timeline.tokens(0)[3]
    assert (dialog.kind.choice, dialog.target) == ("token", OnToken(token.step, 0, 3))
    assert dialog.note.toPlainText() == ""
    dialog.kind.chosen.emit("step")
    assert dialog.note.toPlainText() == "here it turns\n<b>bold?</b>", "what was written there is there to go on with"
    dialog.reject()
    put(desk)
    state = desk.window.notes.state
    assert state is not None
    cells = desk.window.notes.table.cells.rows
    assert [cell.text for cell in cells[0]] == ["8", "the step itself", "here it turns <b>bold?</b>"]
    assert "&lt;b&gt;" in desk.window.notes.table.cells.data(desk.window.notes.table.cells.index(0, 2), 3)


def test_a_note_that_is_too_long_is_refused_and_stays_to_be_shortened(desk: Driver) -> None:
    dialog = asked(desk)
    dialog.note.setPlainText("x" * (MAX_CHARACTERS + 1))
    dialog.accept()
    assert dialog.isVisible()
    assert "2,000 are kept" in dialog.problem.text()
    assert len(desk.models.bookmarks) == 0
    dialog.reject()


def test_marks_stand_in_timeline_tokens_pages_and_wall(desk: Driver) -> None:
    window, models = desk.window, desk.models
    window.docks.docks["pages"].raise_()
    desk.wait_until_idle()
    token = models.timeline.tokens(0)[4]
    pictures = (window.timeline, window.tokens.canvas, window.pages.canvas, window.wall.canvas)
    before = [ink(picture.grab().toImage()) for picture in pictures]
    for target in (OnStep(3), OnToken(token.step, 0, 4), OnPage(8, 0, 1), OnHead(8, 0, 2, 1)):
        desk.intents.on_bookmark_put(Bookmark(target, "why"))
    desk.wait_until_idle()
    after = [ink(picture.grab().toImage()) for picture in pictures]
    assert all(now > was for was, now in zip(before, after, strict=True)), (before, after)
    tips = [window.timeline.tip_at(QPoint(x, 20)) for x in range(window.timeline.width())]
    assert {"step 3"} == {tip.partition(" ·")[0] for tip in tips if "bookmark of step 3: why" in tip}
    QApplication.sendEvent(window.tokens.canvas.viewport(), tip_at(window.tokens.canvas.token_rect(4).center()))
    assert "bookmark of step" in QToolTip.text()
    window.pages.choose_page(0, 1)
    assert window.pages.state is not None
    assert "bookmark of step 8: why" in window.pages.state.readout
    models.bookmarks.set_all(())
    models.selection.update(page=None, position=None)
    desk.wait_until_idle()
    assert [ink(picture.grab().toImage()) for picture in pictures] == before


def test_a_token_of_another_branch_has_no_mark_and_is_looked_at(desk: Driver) -> None:
    """Same sequence, same position, another token: its step is another one."""
    models = desk.models
    token = models.timeline.tokens(0)[-1]
    put(desk, Bookmark(OnToken(token.step, 0, token.position), "the road that was taken"))
    assert desk.window.tokens.canvas.chips.noted
    assert "the road that was taken" in desk.window.tokens.canvas.chips.words(token)
    desk.intents.send(GoTo(5))
    desk.wait_until_idle(lambda: models.history.live == 5)
    desk.steps(4)
    other = models.timeline.token(0, token.position)
    assert other is not None
    assert other.step != token.step
    assert "the road that was taken" not in desk.window.tokens.canvas.chips.words(other)
    row = desk.window.notes.table.cells.rows[0]
    assert row[1].text.endswith("another branch")
    live = models.history.live
    desk.window.notes.go.click()
    desk.wait_until_idle(lambda: models.selection.now.step == token.step)
    assert models.history.live == live
    assert models.selection.now.position == token.position
    assert models.timeline.token(0, token.position) == token


def test_go_there_looks_at_the_step_and_the_place(desk: Driver) -> None:
    put(desk, Bookmark(OnHead(3, 0, 4, 2)), Bookmark(OnPage(5, 0, 1)), Bookmark(OnStep(8)))
    notes, now = desk.window.notes, desk.models.selection
    table = notes.table
    for row, step in ((0, 3), (1, 5), (2, None)):
        table.clicked.emit(table.cells.index(row, 0))
        notes.go.click()
        assert now.now.step == step
    assert (now.now.layer, now.now.kv_head) == (4, 2)


def test_the_filter_edit_delete_and_copy(desk: Driver) -> None:
    put(desk, Bookmark(OnStep(2), "a cat"), Bookmark(OnStep(4), "a dog\nand a cat"), Bookmark(OnHead(6, 0, 1, 1)))
    notes = desk.window.notes
    notes.filter.setText("CAT step")
    assert [row[0].text for row in notes.table.cells.rows] == ["2", "4"]
    notes.copy.click()
    copied = QGuiApplication.clipboard().text()
    assert copied == "step 2\tthe step itself\ta cat\nstep 4\tthe step itself\ta dog and a cat"
    notes.table.clicked.emit(notes.table.cells.index(1, 0))
    notes.edit.click()
    dialog = desk.window.findChildren(BookmarkDialog)[-1]
    assert dialog.note.toPlainText() == "a dog\nand a cat"
    dialog.note.setPlainText("a bird")
    dialog.accept()
    assert desk.models.bookmarks.at(OnStep(4)) == Bookmark(OnStep(4), "a bird")
    notes.filter.setText("")
    notes.table.clicked.emit(notes.table.cells.index(0, 0))
    notes.table.setFocus()
    QTest.keyClick(notes.table, Qt.Key.Key_Delete)
    assert [one.target for one in desk.models.bookmarks.all] == [OnStep(4), OnHead(6, 0, 1, 1)]


def test_the_context_menu_offers_it(desk: Driver) -> None:
    window = desk.window
    window.docks.docks["pages"].raise_()
    desk.wait_until_idle()
    pool, timeline, wall = window.pages.canvas, window.timeline, window.wall.canvas
    places = {pool: QPoint(14, 5)} | {w: QPoint(w.width() // 2, w.height() // 2) for w in (timeline, wall)}
    for widget, place in places.items():
        assert not [menu for menu in window.findChildren(QMenu) if menu.isVisible()]
        event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, place, widget.mapToGlobal(place))
        QApplication.sendEvent(widget, event)
        menus = [menu for menu in window.findChildren(QMenu) if menu.isVisible()]
        assert "Bookmark…" in [action.text() for menu in menus for action in menu.actions()], widget
        for menu in menus:
            menu.close()


def test_they_are_kept_in_the_session_and_end_with_its_history(desk: Driver, tmp_path: Path) -> None:
    marks = (Bookmark(OnStep(2), "a cat"), Bookmark(OnHead(6, 0, 1, 1), "<i>"))
    put(desk, *marks)
    assert desk.controller.saving.session.bookmarks == marks
    assert desk.controller.saving.save(tmp_path / "s.session.json")
    assert read_session(tmp_path / "s.session.json").session.bookmarks == marks
    desk.send("Another story")
    assert desk.models.bookmarks.all == ()
    assert desk.controller.saving.session.bookmarks == ()
