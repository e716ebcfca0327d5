from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.kit.theme import current_theme, owner_color
from app.models import Models
from app.panels.sequences import COLOR, HEADS, PAGES, SEQ, SERVED, SHARED, STATE, TOKENS, SequencesView
from engine.spec.cache import CacheSpec
from engine.wire.commands import Fork, RemoveSequence, StopSequence
from engine.wire.message import Command
from engine.wire.pages import ContinuedFrom, Converted, Forked, PrefixEnd
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


def shown(view: SequencesView) -> tuple[int, ...]:
    assert view.state is not None
    return view.state.columns


def text(view: SequencesView, row: int, column: int) -> str:
    return view.table.cells.rows[row][shown(view).index(column)].text


def marked(view: SequencesView) -> list[int]:
    """The rows in bold."""
    return [n for n, row in enumerate(view.table.cells.rows) if row[shown(view).index(SEQ)].is_bold]


def test_rows_say_what_a_sequence_holds(view: SequencesView) -> None:
    assert len(view.table.cells.rows) == 2
    assert (text(view, 1, SEQ), text(view, 1, TOKENS), text(view, 1, PAGES)) == ("1", "13", "4")
    assert (text(view, 1, SHARED), text(view, 1, SERVED)) == ("2", "8")
    assert text(view, 0, STATE) == "decode"


def test_the_reason_of_an_end_and_a_preemption_are_said(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    ended = replace(first, phase="finished", stop="cache full")
    thrown_out = replace(second, phase="waiting", num_tokens=0, num_preemptions=2)
    desk.models.status.set(replace(desk.models.status.now, sequences=(ended, thrown_out)))
    assert (text(view, 0, STATE), text(view, 1, STATE)) == ("cache full", "preempted")


def test_only_what_has_not_ended_can_be_stopped(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    ended = replace(first, phase="finished", stop="end of text")
    desk.models.status.set(replace(desk.models.status.now, sequences=(ended, second)))
    assert view.detail.text() == "1 of 2 unfinished"
    for seq_id, can_stop in ((0, False), (1, True), (0, False)):
        desk.models.selection.update(seq_id=seq_id)
        assert [button.isEnabled() for button in (view.stop, view.fork, view.remove)] == [can_stop, True, True]
    desk.models.selection.update(seq_id=7)
    assert not any(button.isEnabled() for button in (view.stop, view.fork, view.remove)), "it is not there"


def test_without_pages_their_numbers_are_not_made_up(desk: Desk, view: SequencesView) -> None:
    plain = tuple(replace(info, why_not_reused=None) for info in desk.story.infos())
    desk.models.status.set(replace(desk.models.status.now, cache=CacheSpec(), sequences=plain))
    assert not {PAGES, SHARED, SERVED} & {*shown(view)}, "others need the room"
    assert "choose Paged" in view.why.text()


def test_narrow_panels_leave_out_what_matters_least(view: SequencesView) -> None:
    for width, columns in ((560, len(HEADS) - 1), (540, len(HEADS) - 2), (300, 4)):
        view.resize(width, 220)
        QApplication.processEvents()
        assert len(shown(view)) == view.table.cells.columnCount() == columns, width


def test_a_click_selects_the_sequence(desk: Desk, view: SequencesView) -> None:
    assert marked(view) == [0]
    rect = view.table.visualRect(view.table.cells.index(1, STATE))
    QTest.mouseClick(view.table.viewport(), Qt.MouseButton.LeftButton, pos=rect.center())
    assert desk.models.selection.now.seq_id == 1
    assert marked(view) == [1]
    desk.models.selection.update(seq_id=0)
    assert marked(view) == [0]


def test_each_sequence_has_the_colour_of_its_pages(view: SequencesView) -> None:
    colors = [row[COLOR].color for row in view.table.cells.rows]
    assert colors == [owner_color(current_theme(), seq_id) for seq_id in (0, 1)]
    squares = [line for line in painted(view.table.viewport()) if line.endswith(",9,9")]
    assert len(squares) == 2, squares


def test_the_selected_sequence_is_stopped_forked_and_removed(desk: Desk, view: SequencesView, qtbot: QtBot) -> None:
    told: list[Command] = []
    view.wants.connect(told.append)
    desk.models.selection.update(seq_id=1)
    for button in (view.stop, view.fork, view.remove):
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    assert told == [StopSequence(1), Fork(1), RemoveSequence(1)]
    view.table.setFocus()
    QTest.keyClick(view.table, Qt.Key.Key_Delete)
    assert told[3:] == [RemoveSequence(1)]


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
