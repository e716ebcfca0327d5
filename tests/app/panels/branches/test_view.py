"""The panel of branches: clicks, keys, buttons, and the words about a moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QPushButton

from app.kit import words as kit_words
from app.kit.theme import current_theme
from app.models import Models
from app.panels.branches.tree import ROW
from app.panels.branches.view import BranchesView
from engine.spec.bookmark import Bookmark, OnStep
from engine.spec.cache import CacheSpec
from engine.spec.edit import Rows, Zero
from engine.wire.commands import DeleteBranch, GoTo
from engine.wire.comparison import OtherStep
from engine.wire.events import NodeAdded
from engine.wire.message import Command
from engine.wire.records import EditMade, StepRecord, TokensForced
from engine.wire.status import OpenedFile
from engine.wire.tree import Node
from tests.app import samples
from tests.app.shown import plain


def record(step: int, parent: int | None, text: str, *changes: TokensForced) -> StepRecord:
    part = replace(samples.step_record(1).sequences[0], texts=(text,), sampled_text=" next")
    return replace(samples.step_record(1), step=step, parent=parent, sequences=(part,), changes=changes)


@pytest.fixture
def grown(models: Models) -> Models:
    """0 1 2 3 with an edit as 4, and after 1 the branch 5 6, which is live."""
    models.timeline.append([record(n, n - 1 if n else None, f" w{n}") for n in range(4)])
    models.history.add(NodeAdded(Node(4, 3, (EditMade(Zero(0, Rows(0, 2))),), CacheSpec()), True, "written", 0.25))
    models.history.go_to(1)
    models.timeline.go_to(1)
    forced = TokensForced(0, (7,))
    models.timeline.append([record(5, 1, " dragon", forced), record(6, 5, " came")])
    return models


@pytest.fixture
def view(qtbot: object, grown: Models) -> Iterator[BranchesView]:
    view = BranchesView(grown)
    view.resize(640, 220)
    view.show()
    view.refresh()
    yield view
    view.close()
    view.deleteLater()


def click(view: BranchesView, step: int) -> None:
    place = view.tree.point_of(step).toPoint()
    QTest.mouseClick(view.tree.viewport(), Qt.MouseButton.LeftButton, pos=place)


def test_two_branches_have_a_row_each_with_their_moments(view: BranchesView) -> None:
    rows = view.tree.rows
    assert [(row.branch.first, row.branch.tip, row.start, row.parent_row) for row in rows] == [
        (0, 4, 0, None), (5, 6, 2, 0),
    ]  # fmt: skip
    assert view.detail.text() == "2 branches · steps 0–6"


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 5, 6])
def test_a_moment_is_found_where_it_is_painted(view: BranchesView, step: int) -> None:
    assert view.tree.step_at(view.tree.point_of(step)) == step


def test_the_words_of_a_branch_are_its_newest_moment(view: BranchesView) -> None:
    assert view.tree.step_at(QPointF(600, 10)) == 4
    assert view.tree.step_at(QPointF(600, 40)) == 6
    assert view.tree.step_at(QPointF(600, 90)) is None


def test_a_click_on_the_live_path_looks_at_the_step_everywhere(view: BranchesView, grown: Models) -> None:
    click(view, 1)
    assert grown.selection.now.step == 1
    click(view, 6)
    assert grown.selection.now.step is None, "the newest moment of the path is the live one"


def test_a_click_on_another_branch_looks_at_it_everywhere(view: BranchesView, grown: Models) -> None:
    click(view, 3)
    assert grown.selection.now.step == view.tree.step == 3
    assert list(grown.timeline.nodes) == [0, 1, 2, 3, 4]
    assert plain(view.line.toolTip()).startswith("step 3 · decode · computed “·w3”, chose “·next”")
    click(view, 4)
    assert plain(view.line.toolTip()).startswith("step 4, edit after step 3: zero")
    assert "0.250 nats" in plain(view.line.toolTip())


def test_going_there_asks_for_the_chosen_moment(view: BranchesView) -> None:
    asked: list[Command] = []
    view.wants.connect(asked.append)
    assert not view.actions_["go"].isEnabled(), "the live step is here already"
    click(view, 3)
    view.actions_["go"].trigger()
    place = view.tree.point_of(4).toPoint()
    QTest.mouseDClick(view.tree.viewport(), Qt.MouseButton.LeftButton, pos=place)
    click(view, 2)
    QTest.keyClick(view.tree, Qt.Key.Key_Return)
    assert asked == [GoTo(3), GoTo(4), GoTo(2)]


KEYS = [
    (Qt.Key.Key_Left, 5), (Qt.Key.Key_Home, 5), (Qt.Key.Key_Up, 3), (Qt.Key.Key_Down, 6), (Qt.Key.Key_Right, 6),
]  # fmt: skip


@pytest.mark.parametrize(("key", "there"), KEYS)
def test_keys_walk_from_the_live_step(view: BranchesView, key: Qt.Key, there: int) -> None:
    """6 is the fourth of its path: above it is 3."""
    QTest.keyClick(view.tree, key)
    step = view.tree.step
    assert step == there


def test_left_at_the_first_of_a_branch_leads_to_where_it_parts(view: BranchesView) -> None:
    QTest.keyClick(view.tree, Qt.Key.Key_Home)
    QTest.keyClick(view.tree, Qt.Key.Key_Left)
    assert view.tree.step == 1


def test_comparing_shows_the_newest_step_of_side_a(view: BranchesView, grown: Models) -> None:
    """In the narrowest column too, and although a step that A does not have was looked at to choose it."""
    view.resize(380, 160)
    told: list[OtherStep] = []
    view.compared.connect(told.append)
    click(view, 4)
    assert grown.selection.now.step == 4
    next(found for found in view.findChildren(QPushButton) if found.isVisible() and found.text() == "Compare").click()
    assert (told, grown.selection.now.step) == ([OtherStep(4)], None)


def test_deleting_is_asked_about_in_words_and_done_the_second_time(view: BranchesView) -> None:
    gone: list[Command] = []
    view.wants.connect(gone.append)
    assert not view.actions_["delete"].isEnabled()
    assert "go elsewhere first" in view.actions_["delete"].toolTip()
    click(view, 3)
    view.actions_["delete"].trigger()
    assert gone == []
    assert view.tree.accessibleDescription() == (
        "Forget 3 steps after step 1, for good? Delete once more; Esc keeps them"
    )
    QTest.keyClick(view.tree, Qt.Key.Key_Escape)
    click(view, 4)
    view.actions_["delete"].trigger()
    assert gone == [], "Esc took the first one back"
    view.actions_["delete"].trigger()
    assert gone == [DeleteBranch(2)], "from where the branch parts"


def test_a_name_is_typed_where_it_stands(view: BranchesView) -> None:
    named: list[tuple[int, str]] = []
    view.named.connect(lambda first, name: named.append((first, name)))
    click(view, 4)
    QTest.keyClick(view.tree, Qt.Key.Key_F2)
    QTest.keyClicks(view.tree.name_line, "the first  try")
    QTest.keyClick(view.tree.name_line, Qt.Key.Key_Return)
    assert named == [(0, "the first try")]
    assert view.tree.hasFocus(), "the arrows walk on in the tree"


def test_a_bookmark_stands_above_its_moment(view: BranchesView, grown: Models) -> None:
    place = view.tree.point_of(3).toPoint() - QPoint(0, 9)
    before = view.tree.viewport().grab().toImage().pixelColor(place)
    grown.bookmarks.put(Bookmark(OnStep(3), "look here"))
    after = view.tree.viewport().grab().toImage().pixelColor(place)
    assert before != after
    assert after == current_theme().color("text"), "as in every picture"


def test_without_a_moment_it_says_how_to_get_one(qtbot: object, models: Models) -> None:
    view = BranchesView(models)
    view.show()
    view.refresh()
    assert "a branch begins there" in view.empty.text()
    models.timeline.append(samples.story(2))
    assert view.tree.accessibleDescription().startswith("Look back and choose another token")
    view.close()
    view.deleteLater()


def test_of_ten_thousand_moments_on_two_hundred_branches_only_what_is_on_the_screen_is_painted(
    qtbot: object, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, step = models.history, 0
    for branch in range(200):
        parent = None if not branch else branch * 7 % step // 50 * 50 + 20
        history.go_to(parent)
        for _ in range(50):
            history.take([record(step, parent, "x")])
            parent, step = step, step + 1
    models.timeline.go_to(history.live)
    view = BranchesView(models)
    view.resize(640, 220)
    view.show()
    view.refresh()
    assert (len(history), len(view.tree.rows)) == (10_000, 200)
    painted: list[int] = []
    whole = kit_words.text_line
    monkeypatch.setattr(kit_words, "text_line", lambda *asked: painted.append(asked[1]) or whole(*asked))
    view.tree.viewport().grab()
    shown = view.tree.viewport().height() // ROW + 2
    live = history.branch_of(history.live or 0).first
    assert 0 < len(set(painted)) <= shown
    assert live in painted, "the live branch is brought into view"

    bar, picture = view.tree.verticalScrollBar(), view.tree
    assert picture.pinned is None
    bar.setValue(0 if bar.value() > bar.maximum() / 2 else bar.maximum())
    painted.clear()
    view.tree.viewport().grab()
    assert picture.pinned is not None
    assert picture.pinned.branch.first == live
    assert live in painted, "it is pinned to the edge where it is scrolled away"
    edge = QPointF(600, 5 if bar.value() else view.tree.viewport().height() - 5)
    assert picture.step_at(edge) == history.live

    history.rename(750, "the third try")
    view.seek.setText("THIRD try")
    shown_branches = {row.branch.first for row in picture.rows}
    assert {history.branch_of(step).first for step in (750, *history.path(history.live))} <= shown_branches
    assert len(picture.rows) < 50
    assert view.detail.text().startswith(f"{len(picture.rows)} of 200 branches")
    view.seek.clear()
    first = next(row for row in picture.rows if picture.has_fold(row) and row.branch.first not in picture.drawn.path)
    place = QPointF(picture.text_cell(first.row).left() - 11, 0)
    bar.setValue(first.row * ROW)
    place.setY(picture.text_cell(first.row).center().y())
    QTest.mouseClick(view.tree.viewport(), Qt.MouseButton.LeftButton, pos=place.toPoint())
    assert first.branch.first in picture.folded
    assert len(picture.rows) + picture.rows[first.row].num_hidden == 200
    view.close()
    view.deleteLater()


@pytest.fixture
def many(qtbot: object, models: Models) -> Iterator[BranchesView]:
    """Twelve branches of two moments from the first one on, in a panel that has room for five."""
    for branch in range(12):
        models.history.go_to(0 if branch else None)
        models.history.take([record(2 * branch, 0 if branch else None, "x"), record(2 * branch + 1, 2 * branch, "y")])
    models.timeline.go_to(models.history.live)
    view = BranchesView(models)
    view.resize(640, 5 * ROW + 70)
    view.show()
    view.refresh()
    yield view
    view.close()
    view.deleteLater()


def in_view(view: BranchesView, step: int) -> bool:
    top = view.tree.place_of(step)[0].row * ROW - view.tree.verticalScrollBar().value()
    return 0 <= top <= view.tree.viewport().height() - ROW


def test_what_is_looked_at_is_brought_into_view_and_what_is_there_stays(many: BranchesView, models: Models) -> None:
    bar, rows = many.tree.verticalScrollBar(), many.tree.rows
    assert len(rows) == 12
    assert bar.maximum() > 5 * ROW
    for row in (rows[-1], rows[0], rows[6]):
        models.selection.update(step=row.branch.tip)
        assert in_view(many, row.branch.tip)
    stays = bar.value()
    models.selection.update(step=rows[7].branch.tip)
    assert bar.value() == stays
    bar.setValue(0)
    many.seek.setText("y")
    assert in_view(many, rows[7].branch.tip), "a filter leaves it in view"


def test_the_live_branch_is_pinned_once_less_than_half_of_its_row_is_in_view(
    many: BranchesView, models: Models
) -> None:
    picture, bar = many.tree, many.tree.verticalScrollBar()
    live = picture.place_of(models.history.live or 0)[0]
    room = picture.viewport().height()
    bar.setRange(-room, len(picture.rows) * ROW)  # far enough to either side
    ends = live.row * ROW + ROW // 2, live.row * ROW - room + ROW // 2
    for scrolled, is_pinned in ((ends[0], False), (ends[0] + 1, True), (ends[1], False), (ends[1] - 1, True)):
        bar.setValue(scrolled)
        assert (picture.pinned is not None) == is_pinned


def test_plus_and_minus_fold_and_unfold_what_came_of_a_branch(many: BranchesView, models: Models) -> None:
    models.selection.update(step=0)
    for key, folded in ((Qt.Key.Key_Plus, 0), (Qt.Key.Key_Minus, 1), (Qt.Key.Key_Minus, 1), (Qt.Key.Key_Plus, 0)):
        QTest.keyClick(many.tree, key)
        assert len(many.tree.folded) == folded


def test_in_an_opened_file_only_a_name_can_be_given(view: BranchesView, grown: Models) -> None:
    file = OpenedFile(Path("/a/b.safetensors"), 9, "Far", 3, "", "", "", "")
    grown.status.set(replace(samples.status(6, num_tokens=5), opened=file))
    click(view, 3)
    tips = {name: action.toolTip().partition("Not now: ")[2] for name, action in view.actions_.items()}
    no_moment = "an opened file has no live step"
    assert tips == {"go": no_moment, "join": no_moment, "compare": no_moment, "name": "", "delete": no_moment}
