"""What a person does in panels that show a run: steps of a story, each with its name and what is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMenu

from app.models import Models
from app.panels import edits as edits_view
from app.panels.branches.view import BranchesView
from app.panels.breakpoints import BreakpointsView
from app.panels.edits import EditsView
from app.panels.next_token import NextTokenView
from app.panels.tokens import TokenCanvas, TokensPanel
from engine.spec.edit import BiasLogits, Rows, Scale
from engine.spec.sampling import SamplingParams
from engine.wire.events import NodeAdded
from engine.wire.records import EditMade
from engine.wire.tree import Node
from tests.app.mouse import move_mouse
from tests.app.rich import SPEC, record

Key, CONTROL, SHIFT = Qt.Key, Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier
Steps = Iterator[tuple[str, Callable[[], object]]]


def branches(view: BranchesView, models: Models, folder: Path) -> Steps:
    tree, surface = view.tree, view.tree.viewport()

    def at(step: int) -> QPoint:
        return tree.point_of(step).toPoint()

    def click(step: int, keys: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
        QTest.mouseClick(surface, Qt.MouseButton.LeftButton, keys, at(step))

    def fold() -> None:
        place = QPoint(round(tree.text_cell(0).left()) - 10, 10)
        QTest.mouseClick(surface, Qt.MouseButton.LeftButton, pos=place)

    def name(text: str, key: Key) -> None:
        view.actions_["name"].trigger()
        QTest.keyClicks(tree.name_line, text)
        QTest.keyClick(tree.name_line, key)

    yield "looked for", lambda: view.seek.setText("  OTHER way ")
    yield "nothing is like it", lambda: view.seek.setText("xyz")
    yield "all again", lambda: view.seek.setText("")
    yield "the other branch is viewed", lambda: click(4)
    yield "deleted, asked first", view.actions_["delete"].trigger
    yield "kept", lambda: QTest.keyClick(tree, Key.Key_Escape)
    yield "deleted, asked again", view.actions_["delete"].trigger
    yield "deleted", view.actions_["delete"].trigger
    yield "gone to", view.actions_["go"].trigger
    yield "opened", lambda: QTest.keyClick(tree, Key.Key_Return)
    yield "compared with the live one", view.actions_["compare"].trigger
    yield "a second one is picked", lambda: click(8, CONTROL)
    yield "two are compared", view.actions_["compare"].trigger
    yield "a third one is picked", lambda: click(2, CONTROL)
    yield "one of them not any more", lambda: click(8, CONTROL)
    yield "one is picked with the keys", lambda: QTest.keyClick(tree, Key.Key_Space, CONTROL)
    yield "nothing is picked", lambda: QTest.keyClick(tree, Key.Key_Escape)
    yield "two are picked again", lambda: (click(8, CONTROL), click(6, CONTROL))
    yield "run together", view.actions_["join"].trigger
    yield "named", lambda: name("  a   name ", Key.Key_Return)
    yield "named, but left", lambda: name("not this", Key.Key_Escape)
    yield "folded", fold
    yield "unfolded with a key", lambda: QTest.keyClick(tree, Key.Key_Plus)
    yield "a key that changes nothing", lambda: QTest.keyClick(tree, Key.Key_Plus)
    yield "folded with a key", lambda: QTest.keyClick(tree, Key.Key_Minus)
    yield "looked for while folded", lambda: view.seek.setText("other")
    yield "unfolded", lambda: (view.seek.setText(""), QTest.keyClick(tree, Key.Key_Plus))
    for key in (Key.Key_Up, Key.Key_Left, Key.Key_Right, Key.Key_Home, Key.Key_End, Key.Key_Down):
        yield f"{key.name}", lambda key=key: QTest.keyClick(tree, key)  # type: ignore[misc]
    yield "many branches", lambda: _more_branches(models)
    yield "the live one is scrolled away", lambda: tree.verticalScrollBar().setValue(tree.verticalScrollBar().maximum())
    yield "a click on its row", lambda: QTest.mouseClick(surface, Qt.MouseButton.LeftButton, pos=QPoint(450, 5))
    yield "looked for among many", lambda: view.seek.setText("other")
    yield "named where it is scrolled", lambda: (view.seek.setText(""), view.actions_["name"].trigger())


def _more_branches(models: Models) -> None:
    """Twelve from the fourth step; the first of all goes on living."""
    live = models.history.live
    for number in range(12):
        models.history.add(
            NodeAdded(Node(100 + number, 3, (EditMade(Scale(0, Rows(0, 2), 1.0 + number)),), SPEC), False)
        )
    assert models.history.live == live


def tokens(view: TokensPanel, models: Models, folder: Path) -> Steps:
    strip: TokenCanvas = view.canvas
    find = view.find_line

    def at(index: int) -> QPoint:
        return strip.token_rect(index).center()

    def press(index: int, keys: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
        QTest.mouseClick(strip.viewport(), Qt.MouseButton.LeftButton, keys, at(index))

    def drag(first: int, *others: int) -> None:
        surface = strip.viewport()
        QTest.mousePress(surface, Qt.MouseButton.LeftButton, pos=at(first))
        for each in others:
            move_mouse(surface, at(each), Qt.MouseButton.LeftButton)
        QTest.mouseRelease(surface, Qt.MouseButton.LeftButton, pos=at(others[-1]))

    def seek(text: str) -> None:
        find.setText(text)
        QTest.keyClick(find, Key.Key_Return)

    yield "the line to find", view.open_find
    yield "nothing is looked for", lambda: QTest.keyClick(find, Key.Key_Return)
    yield "found", lambda: seek("E")
    yield "the next", lambda: seek("E")
    yield "not there", lambda: seek("zebra & <b>")
    yield "from the start", lambda: (models.selection.update(position=None), seek(" "))
    yield "closed", lambda: QTest.keyClick(find, Key.Key_Escape)
    yield "pressed", lambda: press(2)
    yield "pressed once more", lambda: press(2)
    yield "to another with shift, and nothing before", lambda: press(4, SHIFT)
    yield "to another with shift", lambda: press(1, SHIFT)
    yield "dragged over several, and back", lambda: drag(3, 4, 5, 3, 2)
    yield "a click ends it", lambda: press(3)
    for key in (Key.Key_Right, Key.Key_Down, Key.Key_End, Key.Key_Left, Key.Key_Home):
        yield f"longer with {key.name}", lambda key=key: QTest.keyClick(strip, key, SHIFT)  # type: ignore[misc]
    for key in (Key.Key_Down, Key.Key_Up, Key.Key_End, Key.Key_Right, Key.Key_Home, Key.Key_Left):
        yield f"{key.name}", lambda key=key: QTest.keyClick(strip, key)  # type: ignore[misc]
    yield "asked for a menu", lambda: strip.menu_wanted.emit(4, QPoint(1, 2))
    yield "asked for a menu of what is dragged over", lambda: (drag(2, 5), strip.menu_wanted.emit(3, QPoint(1, 2)))
    yield "asked for a menu of nothing", lambda: strip.menu_wanted.emit(None, QPoint(1, 2))
    yield "low and narrow", lambda: view.resize(180, 110)
    yield "the first", lambda: QTest.keyClick(strip, Key.Key_Home)
    yield "the last", lambda: QTest.keyClick(strip, Key.Key_End)
    yield "wide again while the start is read", lambda: (strip.verticalScrollBar().setValue(0), view.resize(300, 110))
    yield "all is seen", lambda: view.resize(420, 300)
    yield "the end is followed again", lambda: view.resize(180, 110)


def stops(view: BreakpointsView, models: Models, folder: Path) -> Steps:
    line = view.line

    def typed(text: str) -> None:
        line.setFocus()
        line.selectAll()
        QTest.keyClicks(line, text)
        view.typing.timeout.emit()

    def row(number: int, column: int = 1) -> Callable[[], object]:
        return lambda: view.table.clicked.emit(view.table.model().index(number, column))

    yield "begun", view.begin_finding
    yield "typed", lambda: typed("entropy > 1")
    yield "the next", lambda: QTest.keyClick(line, Key.Key_Return)
    yield "the one before", lambda: QTest.keyClick(line, Key.Key_Return, SHIFT)
    yield "emptied", lambda: QTest.keyClick(line, Key.Key_Escape)
    yield "not to be read", lambda: typed("entropy >")
    yield "not to be kept", view.halt_there
    yield "never here", lambda: typed("differs > 1")
    yield "known already", lambda: (typed("entropy > 2"), view.halt_there())
    yield "kept", lambda: (typed("entropy > 0.5"), view.halt_there())
    yield "a stop is marked", row(1)
    yield "another text for it", lambda: typed("step = 91")
    yield "changed", view.change.click
    yield "switched", row(0, 0)
    yield "switched by Enter", lambda: view.table.confirmed.emit(models.breakpoints.listed[2])
    yield "no row", lambda: view.table.clicked.emit(view.table.model().index(77, 1))
    yield "narrow", lambda: view.resize(420, 200)
    yield "deleted", view.delete.click
    yield "an earlier step", lambda: (typed("step > 2"), models.selection.update(step=4))


def edits(view: EditsView, models: Models, folder: Path) -> Steps:
    def row(number: int) -> Callable[[], object]:
        return lambda: view.table.clicked.emit(view.table.model().index(number, 0))

    def written(text: str) -> None:
        (folder / "edits.json").write_text(text, "utf-8")
        view.import_edits()

    ours = '{"format": "kvloupe edits", "version": 1, '
    yield "another is marked", row(0)
    yield "looked at", view.look.click
    yield "the other one while it is viewed", row(1)
    yield "gone to", view.go_to.click
    yield "opened", lambda: (row(0)(), view.table.activated.emit(view.table.model().index(0, 0)))
    yield "repeated", view.again.click
    yield "all repeated on the other sequence", lambda: (models.selection.update(seq_id=1), view.repeat_all())
    yield "copied", view.copy_text
    yield "pasted", lambda: view.message.emit(QGuiApplication.clipboard().text())
    yield "exported", view.export_edits
    yield "read", lambda: view.message.emit((folder / "edits.json").read_text("utf-8"))
    yield "imported", view.import_edits
    for text in ("{", "[]", '{"format": "x"}', ours.replace("1,", '"2222222222222222222222222",') + '"edits": []}',
                 ours + '"edits": "zero pos=1"}', ours + '"edits": [3]}', ours + '"edits": ["zero pos=1:90"]}',
                 ours + '"edits": ["zero pos=1:3 layer=2", "scale pos=4 by=2"]}'):  # fmt: skip
        yield f"imported {text}", lambda text=text: (written(text), view.message.emit(models.status.failure))  # type: ignore[misc]
    whole = ours + '"edits": ["zero pos=1:3"]}'
    for what, text in (
        ("as large as may be", whole.ljust(edits_view.MOST_BYTES)), ("larger", whole.ljust(edits_view.MOST_BYTES + 1)),
        ("as many as may be", _many(edits_view.MOST_EDITS)), ("one more", _many(edits_view.MOST_EDITS + 1)),
    ):  # fmt: skip
        yield f"imported, {what}", lambda text=text: (written(text), view.message.emit(models.status.failure))  # type: ignore[misc]
    yield "imported from nowhere", lambda: (
        (folder / "edits.json").unlink(), view.import_edits(), view.message.emit(models.status.failure),
    )  # fmt: skip
    yield "wide enough for both", lambda: view.resize(1200, 260)
    yield "the other one", row(1)


def _many(count: int) -> str:
    return json.dumps({"format": edits_view.FORMAT, "version": edits_view.VERSION, "edits": ["zero pos=1:3"] * count})


def next_token(view: NextTokenView, models: Models, folder: Path) -> Steps:
    edit = view.continuation.edit

    def typed(text: str) -> None:
        edit.setText(text)
        QTest.keyClick(edit, Key.Key_Return)

    def status(**changes: Any) -> None:
        now = models.status.now
        assert now is not None
        first, *others = now.sequences
        models.status.set(replace(now, sequences=(replace(first, **changes), *others)))

    yield "typed", lambda: typed("another way")
    yield "an id", lambda: typed("#1234")
    yield "no id", lambda: typed("#12a")
    yield "nothing", lambda: typed("")
    yield "left", lambda: (edit.setText("half"), QTest.keyClick(edit, Key.Key_Escape))
    yield "another seed", view.continuation.seed.click
    yield "low", lambda: view.resize(420, 150)
    yield "to be typed in a low panel", view.begin_continuation
    yield "left in a low panel", lambda: QTest.keyClick(edit, Key.Key_Escape)
    yield (
        "the greatest seed",
        lambda: (status(sampling=SamplingParams(0.7, seed=2**63 - 1)), view.continuation.seed.click()),
    )
    yield "greedy", lambda: status(sampling=SamplingParams())
    yield "full", lambda: status(phase="finished", stop="length")
    yield "full, an earlier step", lambda: models.selection.update(step=8)
    yield "typed while looking back", lambda: typed("a branch")
    yield (
        "of now",
        lambda: (models.selection.update(step=None), status(phase="decode", stop=None), view.resize(420, 360)),
    )
    bias = BiasLogits(0, ((107, 2.5),), banned=(108,))
    biased = NodeAdded(Node(12, 10, (EditMade(bias),), SPEC), True, "written")
    yield "logits are biased", lambda: (models.history.add(biased), models.timeline.go_to(12))
    for row, what in ((0, "Leave"), (0, "Never"), (1, "Leave"), (1, "Choose nothing"), (2, "End every"), (2, "Take")):
        yield f"{what}, of row {row}", lambda row=row, what=what: _choose(view, row, what)  # type: ignore[misc]
    for number, (what, changes) in enumerate(WITHOUT_CANDIDATES.items(), 13):
        yield what, lambda number=number, changes=changes: _step_of(models, number, **changes)  # type: ignore[misc]


WITHOUT_CANDIDATES: dict[str, dict[str, Any]] = {
    "it has ended": {"candidates": (), "stop": "end of text"},
    "nothing was measured": {"candidates": ()},
    "a prompt is still read": {"candidates": (), "sampled": None},
    "all again": {},
}


def _step_of(models: Models, number: int, **changes: Any) -> None:
    """One more step, the first sequence of which is otherwise."""
    found = record(number, number, models.history.live)
    first, *others = found.sequences
    found = replace(found, sequences=(replace(first, **changes), *others))
    models.timeline.append([found])
    models.timeline.announce()


def _choose(view: NextTokenView, row: int, what: str) -> None:
    """An entry of the menu of a candidate."""
    view.candidates.customContextMenuRequested.emit(QPointF(9, (row + 0.5) * view.candidates.row_height).toPoint())
    menu = view.findChildren(QMenu, "candidate")[-1]
    names = (f"{each.text()}{'' if each.isEnabled() else ' (disabled)'}" for each in menu.actions())
    view.message.emit(" | ".join(names))
    next(each for each in menu.actions() if each.text().startswith(what)).trigger()
    menu.close()
