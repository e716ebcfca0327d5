from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QCursor, QHelpEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QToolTip, QWidget
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.sequences.view import (
    BUTTON,
    BUTTONS,
    FORK,
    PAGES,
    REMOVE,
    SERVED,
    SHARED,
    STATE,
    STOP,
    TOKENS,
    SequencesView,
)
from engine.spec.cache import CacheSpec
from engine.wire.commands import Fork, RemoveSequence, StopSequence
from engine.wire.message import Command
from engine.wire.page_events import ContinuedFrom, Converted, Forked, PrefixEnd
from tests.app.painted import painted
from tests.app.panels.pages.test_view import Desk


@pytest.fixture
def desk(models: Models) -> Desk:
    desk = Desk(models)
    desk.take(desk.story.admit(0, list(range(13))))
    desk.take(desk.story.admit(1, [*range(10), 90, 91, 92]))
    return desk


@pytest.fixture
def view(qtbot: QtBot, desk: Desk) -> Iterator[SequencesView]:
    view = SequencesView(desk.models)
    view.resize(560, 220)
    view.show()
    QApplication.processEvents()
    yield view
    view.close()
    view.deleteLater()


def text(view: SequencesView, row: int, column: int) -> str:
    return str(view.model.index(row, column).data())


def button(view: SequencesView, row: int, name: str) -> QPoint:
    rect = view.table.visualRect(view.model.index(row, BUTTONS))
    return QPoint(rect.right() - 4 - BUTTON * 3 + BUTTON * (STOP, FORK, REMOVE).index(name) + 10, rect.center().y())


def test_rows_say_what_a_sequence_holds(view: SequencesView) -> None:
    assert view.model.rowCount() == 2
    assert (text(view, 1, 0), text(view, 1, TOKENS), text(view, 1, PAGES)) == ("1", "13", "4")
    assert (text(view, 1, SHARED), text(view, 1, SERVED)) == ("2", "8")
    assert text(view, 0, STATE) == "decode"


def test_the_reason_of_an_end_and_a_preemption_are_said(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    ended = replace(first, state="finished", stop="cache full")
    thrown_out = replace(second, state="waiting", num_tokens=0, num_preemptions=2)
    desk.models.status.set(replace(desk.models.status.now, sequences=(ended, thrown_out)))
    assert (text(view, 0, STATE), text(view, 1, STATE)) == ("cache full", "preempted")


def test_only_what_has_not_ended_can_be_stopped(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    ended = replace(first, state="finished", stop="end of text")
    desk.models.status.set(replace(desk.models.status.now, sequences=(ended, second)))
    assert view.detail.text() == "1 of 2 unfinished"
    for seq_id, can_stop in ((0, False), (1, True), (0, False)):
        desk.models.selection.update(seq_id=seq_id)
        assert [action.isEnabled() for action in view.table.actions()] == [can_stop, True, True]
    assert [action.text() for action in view.table.actions()] == ["Stop", "Fork", "Remove"]


def test_without_pages_their_numbers_are_not_made_up(desk: Desk, view: SequencesView) -> None:
    plain = tuple(replace(info, why_not_reused=None) for info in desk.story.infos())
    desk.models.status.set(replace(desk.models.status.now, cache=CacheSpec(), sequences=plain))
    assert text(view, 1, SHARED) == "–"
    assert all(view.table.isColumnHidden(each) for each in (PAGES, SHARED, SERVED)), "others need the room"
    assert "choose Paged" in view.why.text()


def test_a_click_selects_the_sequence(desk: Desk, view: SequencesView) -> None:
    rect = view.table.visualRect(view.model.index(1, STATE))
    QTest.mouseClick(view.table.viewport(), Qt.MouseButton.LeftButton, pos=rect.center())
    assert desk.models.selection.now.seq_id == 1
    desk.models.selection.update(seq_id=0)
    assert view.table.currentIndex().row() == 0


def test_each_row_has_its_buttons(desk: Desk, view: SequencesView, qtbot: QtBot) -> None:
    for name, command in ((STOP, StopSequence(1)), (FORK, Fork(1)), (REMOVE, RemoveSequence(1))):
        with qtbot.waitSignal(view.wants, timeout=1000) as caught:
            QTest.mouseClick(view.table.viewport(), Qt.MouseButton.LeftButton, pos=button(view, 1, name))
        assert caught.args == [command]


def test_the_button_under_the_mouse_is_marked_and_says_what_it_does(
    view: SequencesView, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface, tips, mouse = view.table.viewport(), list[str](), [QPoint()]
    monkeypatch.setattr(QCursor, "pos", staticmethod(lambda *_: mouse[0]))
    monkeypatch.setattr(QToolTip, "showText", lambda _at, text, *_: tips.append(text))
    monkeypatch.setattr(QWidget, "underMouse", lambda widget: widget is view.table)
    for name, tip in ((STOP, "Stop it"), (FORK, "Fork: a branch"), (REMOVE, "Remove it")):
        place = button(view, 1, name)
        mouse[0] = surface.mapToGlobal(place)
        marked = [line for line in painted(surface) if line.startswith("path hairline")]
        assert len(marked) == 1
        left, top, wide, high = (int(number) for number in marked[0].rpartition("@")[2].split(","))
        assert left <= place.x() <= left + wide
        assert top <= place.y() <= top + high
        QApplication.sendEvent(surface, QHelpEvent(QEvent.Type.ToolTip, place, surface.mapToGlobal(place)))
        assert tips.pop().startswith(tip)
    mouse[0] = surface.mapToGlobal(QPoint(3, 3))
    assert not any(line.startswith("path hairline") for line in painted(surface))


def test_a_finished_sequence_cannot_be_stopped(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    desk.models.status.set(
        replace(desk.models.status.now, sequences=(replace(first, state="finished", stop="stopped"), second))
    )
    told: list[Command] = []
    view.wants.connect(told.append)
    QTest.mouseClick(view.table.viewport(), Qt.MouseButton.LeftButton, pos=button(view, 0, STOP))
    assert told == []


def test_why_not_reused_names_both_tokens_and_the_page_border(desk: Desk, view: SequencesView) -> None:
    desk.models.selection.update(seq_id=1)
    assert view.why.text() == (
        "seq 1 · Differs at token 10: the prompt has “·w90”, the cache “·w10”. "
        "10 equal tokens, 8 reused: only whole pages of 4 are."
    )


REASONS = [
    (PrefixEnd(14, 0, 4), "8 tokens reused: no cached page begins like this prompt."),
    (PrefixEnd(14, 8, 4), "8 tokens reused: no cached page continues this prompt after token 7."),
    (PrefixEnd(9, 8, 4, is_all=True), "the last token fills no page of 4"),
    (PrefixEnd(11, 8, 4, is_all=True), "the last 3 tokens fill no page of 4"),
    (PrefixEnd(12, 8, 4, is_all=True), "the last token of a prompt is always computed, and its page of 4"),
    (PrefixEnd(3, 0, 4, is_all=True), "The prompt has 3 tokens, less than a page of 4."),
    ("recurrent layers keep a state", "No prefix can be shared: recurrent layers keep a state."),
    (Forked(0), "Forked from seq 0: 2 of its 4 pages are shared"),
    (Converted(), "they came with the change of the cache mode"),
]


def test_every_other_reason_in_words(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    desk.models.selection.update(seq_id=1)
    for why, words in REASONS:
        assert words not in view.why.text(), why
        info = replace(second, why_not_reused=why)
        desk.models.status.set(replace(desk.models.status.now, sequences=(first, info)))
        assert words in view.why.text(), why


def test_a_long_line_of_a_chat_template_is_cut_short_where_it_stands_and_whole_in_the_tool_tip(
    desk: Desk, view: SequencesView
) -> None:
    first, second = desk.story.infos()
    desk.models.selection.update(seq_id=1)
    why = ContinuedFrom(0, 9, 5, 5, (5, " a"), (6, " b"), 12, "{% if x %}" + 200 * "y")
    infos = (first, replace(second, why_not_reused=why))
    desk.models.status.set(replace(desk.models.status.now, sequences=infos))
    assert view.why.text().endswith("Line 12 of the chat template wrote it: {% if x %}" + 69 * "y" + "…")
    assert 200 * "y" in view.why.toolTip()


def test_where_no_reason_is_known_nothing_is_said(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    desk.models.selection.update(seq_id=1)
    assert view.why.text()
    info = replace(second, why_not_reused=None)
    desk.models.status.set(replace(desk.models.status.now, sequences=(first, info)))
    assert view.why.text() == ""


def test_the_last_state_of_a_dead_engine_is_not_called_live(view: SequencesView, desk: Desk) -> None:
    assert (view.provenance_label.text, view.provenance_label.kind) == ("engine state", "live cache")
    desk.models.status.lose_engine("gone")
    assert (view.provenance_label.text, view.provenance_label.kind) == ("engine gone · last state", "past")
    desk.models.status.lose_engine("")
    assert view.provenance_label.text == "engine state"


def test_the_selected_sequence_is_marked_again_where_a_person_unmarked_its_row(view: SequencesView, desk: Desk) -> None:
    picked = view.table.selectionModel()
    assert [index.row() for index in picked.selectedRows()] == [0]
    picked.clearSelection()
    view.show_again()
    assert [index.row() for index in picked.selectedRows()] == [0]
