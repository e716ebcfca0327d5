"""What was edited: its marks in the panels, the list of edits and their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog

from app.panels.edits import edits_from_json
from app.shell import Shell
from app.window.palette import Palette
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.edit import BiasLogits, Mask, ReplaceTokens, Rows, Scale, Zero
from engine.wire.commands import GoTo, UndoEdit
from engine.wire.events import NodeAdded
from engine.wire.measurements import EditMeasured, KeptRows
from engine.wire.records import EditMade
from engine.wire.tree import Node
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.panels.edits.menus import LEFT, made, opened


def test_an_edit_is_marked_where_it_was_made_and_nowhere_else(desk: Shell, engine: FakeEngine) -> None:
    desk.intents.on_edited(Zero(0, Rows(3, 7, (2,), (1,), (5, 6, 9), "keys")))
    turn(desk)
    boxes = desk.window.head.state.edited
    assert [(box.start, box.stop, box.first, box.last) for box in boxes] == [(3, 7, 5, 7), (3, 7, 9, 10)]
    assert [len(desk.window.tokens.canvas.chips.edited)] == [1]
    assert desk.window.head.provenance_label.text.endswith("edited")
    assert "edited by hand since step 21" in desk.window.head.provenance_label.whole
    desk.models.selection.update(kv_head=2)
    turn(desk)
    assert desk.window.head.state.edited == ()
    desk.models.selection.update(kv_head=1, lens="values")
    turn(desk)
    assert desk.window.head.state.edited == ()


def test_before_the_edit_nothing_is_marked_and_undo_takes_the_marks_away(desk: Shell, engine: FakeEngine) -> None:
    desk.intents.on_edited(Mask(0, Rows(3, 7)))
    turn(desk)
    assert desk.window.head.state.edited[0].is_hidden
    desk.models.selection.update(step=7)
    turn(desk)
    assert desk.window.head.state.edited == ()
    desk.models.selection.update(step=None)
    turn(desk)
    assert len(desk.window.head.state.edited) == 1
    desk.window.actions_["edit.undo"].trigger()
    turn(desk)
    assert desk.window.head.state.edited == ()
    assert not desk.window.head.provenance_label.text.endswith("edited")


def test_an_unmasked_row_looks_masked_no_more(desk: Shell, engine: FakeEngine) -> None:
    desk.intents.on_edited(Mask(0, Rows(3, 9)))
    turn(desk)
    desk.intents.on_edited(Mask(0, Rows(5, 6), hidden=False))
    turn(desk)
    boxes = desk.window.head.state.edited
    assert [(box.start, box.stop, box.is_hidden) for box in boxes] == [(3, 5, True), (6, 9, True)]


def listed(shell: Shell) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in shell.window.edits.table.cells.rows]


@pytest.fixture
def shown(desk: Shell) -> Shell:
    """The list of edits in front."""
    desk.window.docks.docks["edits"].raise_()
    desk.window.resize(1600, 1000)
    turn(desk)
    return desk


def test_the_list_says_what_where_when_and_dims_what_was_undone(shown: Shell, engine: FakeEngine) -> None:
    assert "Nothing was edited" in shown.window.edits.empty_text
    shown.intents.on_edited(Zero(0, Rows(3, 7, (2,))))
    shown.intents.on_edited(Scale(0, Rows(1, 2), 0.5))
    turn(shown)
    assert listed(shown) == [
        ("22", "Scale", "0.250", "by 0.5 position 1"),
        ("21", "Zero", "0.250", "positions 3 … 6 · layer 2"),
    ]
    shown.window.edits.undo.click()
    turn(shown)
    assert listed(shown)[0][1] == "Scale · undone"
    assert listed(shown)[1][1] == "Zero"
    assert shown.window.edits.detail.text() == "1 made · 1 undone"


def test_an_edit_of_the_list_is_gone_to_and_repeated(shown: Shell, engine: FakeEngine) -> None:
    shown.intents.on_edited(Zero(0, Rows(3, 7, (2,))))
    shown.intents.on_edited(Scale(0, Rows(1, 2), 0.5))
    turn(shown)
    engine.sent.clear()
    table = shown.window.edits.table
    QTest.mouseClick(table.viewport(), LEFT, pos=table.visualRect(table.cells.index(1, 1)).center())
    shown.window.edits.again.click()
    assert made(engine) == [Zero(0, Rows(3, 7, (2,)))]
    shown.window.edits.go_to.click()
    assert engine.of(GoTo) == [GoTo(21)]


def test_what_an_edit_did_stands_beside_the_list(shown: Shell, engine: FakeEngine) -> None:
    shown.intents.on_edited(ReplaceTokens(0, 3, (9, 9), "overwrite", 2))
    turn(shown)
    before, after = samples.candidates(1, 3), samples.candidates(2, 3)
    keys = samples.np.array([[0.0, 0.0], [0.25, 0.75]], samples.np.float32)
    kept = KeptRows((0, 1), 5, keys, keys * 2)
    engine.emit(EditMeasured(21, 0, 0.5, before, after, 1.0, 2.0, kept))
    turn(shown)
    table = shown.window.edits.kept.table
    assert [(row.name, row.bars[0].number, row.bars[1].number) for row in table.rows] == [
        ("L0", "0", "0"),
        ("L1", "0.500", "1.00"),
    ]
    assert listed(shown)[0][2] == "0.500"
    first = shown.window.edits.next_token.table.rows[0]
    assert first.tip.startswith(first.name)


def test_an_effect_that_no_file_keeps_is_told_from_one_that_was_not_measured(shown: Shell, engine: FakeEngine) -> None:
    engine.emit(NodeAdded(Node(21, 20, (EditMade(Zero(0, Rows(3, 7))),), CacheSpec()), is_live=True))
    turn(shown)
    assert listed(shown)[0][2] == "–"
    assert shown.window.edits.note.text() == "step 21: session files do not keep its effect · Repeat measures it anew"
    engine.emit(EditMeasured(21, 0, None, (), (), 1.0, 2.0))
    turn(shown)
    assert shown.window.edits.note.text() == "step 21: its effect on the next token was not measured"


def test_an_edit_is_typed_where_actions_are_found(desk: Shell, engine: FakeEngine) -> None:
    desk.window.actions_["help.palette"].trigger()
    palette = opened(Palette)
    assert isinstance(palette, Palette)
    QTest.keyClicks(palette.line, "zero")
    assert palette.matches()[0] == "edit.zero"
    QTest.keyClicks(palette.line, " pos=4:80")
    first = palette.rows.item(0)
    assert first.text() == "There are no positions 4 … 79 to edit: this sequence has positions 0 … 23."
    assert not first.isEnabled()
    QTest.keyClick(palette.line, Qt.Key.Key_Backspace)
    assert palette.rows.item(0).text() == "Edit: zero positions 4 … 7"
    QTest.keyClick(palette.line, Qt.Key.Key_Return)
    assert made(engine) == [Zero(0, Rows(4, 8))]


def test_edits_go_to_a_file_and_come_back_as_they_were_all_or_none(
    shown: Shell, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "edits.json"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(path), ""))
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(path), ""))
    edits = [Zero(0, Rows(3, 7, (2,))), Scale(0, Rows(1, 2), 0.5), BiasLogits(0, ((5, 1.5),), (6,))]
    for edit in edits:
        shown.intents.on_edited(edit)
    turn(shown)
    shown.window.edits.export_edits()
    engine.sent.clear()
    shown.window.edits.import_edits()
    assert made(engine) == edits
    shown.window.edits.copy_text()
    assert QApplication.clipboard().text().splitlines()[0] == "zero pos=3:7 layer=2"
    path.write_text(path.read_text().replace("pos=1:2", "pos=1:99"))
    engine.sent.clear()
    shown.window.edits.import_edits()
    assert not made(engine)
    assert shown.models.status.failure == ("There are no positions 1 … 98 to edit: this sequence has positions 0 … 23.")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "no JSON"),
        ("[]", "holds no edits"),
        ('{"format": "kvloupe edits", "version": 9, "edits": []}', "of version 9"),
        ('{"format": "kvloupe edits", "version": 1, "edits": [3]}', "no list of lines"),
        ('{"format": "kvloupe edits", "version": 1, "edits": ["zeroo pos=1"]}', "is no edit"),
    ],
)
def test_a_file_that_holds_no_edits_says_so(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        edits_from_json(text, 0, 24)


def strip_texts(shell: Shell) -> list[str]:
    return [token.text for token in shell.window.tokens.canvas.chips.tokens]


@pytest.mark.parametrize(
    ("how", "ids", "count"), [("overwrite", (7, 8), 24), ("re-prefill", (7, 8, 9), 25), ("re-prefill", (7,), 23)]
)
def test_tokens_that_were_put_in_stand_in_the_text_and_undo_brings_the_old_ones_back(
    desk: Shell, engine: FakeEngine, how: str, ids: tuple[int, ...], count: int
) -> None:
    before = strip_texts(desk)
    desk.intents.on_edited(ReplaceTokens(0, 4, ids, how, 2))  # type: ignore[arg-type]
    turn(desk)
    assert strip_texts(desk) == [*before[:4], *(f"<{token_id}>" for token_id in ids), *before[6:]]
    tokens = desk.window.tokens.canvas.chips.tokens
    assert [token.position for token in tokens] == list(range(count))
    is_anew = how == "re-prefill"  # written by the edit, and what they were surprised by is not known of the new text
    made_at = desk.models.history.live
    assert [token.step == made_at for token in tokens] == [*[False] * 4, *[True] * len(ids), *[is_anew] * 18]
    assert [token.surprisal is None for token in tokens[4 + len(ids) :]] == [is_anew] * (18)
    desk.models.selection.update(step=20)
    turn(desk)
    assert strip_texts(desk) == before
    desk.models.selection.update(step=None)
    desk.intents.send(UndoEdit())
    turn(desk)
    assert strip_texts(desk) == before


def test_whole_heads_outline_no_token_and_the_inspector_names_edits(desk: Shell) -> None:
    desk.models.selection.update(position=0, area=Rows(0, 24, (1,), (2,)))
    turn(desk)
    assert desk.window.tokens.canvas.chips.area is None
    desk.intents.on_edited(Zero(0, Rows(3, 7, (2,))))
    desk.models.selection.update(position=5)
    turn(desk)
    facts = {fact.label: fact.text for fact in desk.window.inspector.state.facts}
    assert facts["edited by hand"] == "zero at step 21"


def test_longer_tokens_that_were_put_in_move_those_behind_them(desk: Shell) -> None:
    strip = desk.window.tokens.canvas
    before = strip.token_rect(5)
    desk.intents.on_edited(ReplaceTokens(0, 4, (123456,), "overwrite", 1))
    turn(desk)
    put, behind = strip.token_rect(4), strip.token_rect(5)
    assert behind != before
    assert not put.intersects(behind)
