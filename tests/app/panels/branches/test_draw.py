"""Rows of branches: no two lines cross, and marks do not overlap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.draw.edited import MarkKind, kind_of
from app.panels.branches.tree import (
    LEAST_GAP,
    BranchLine,
    BranchRow,
    DepthAxis,
    RowMark,
    branch_rows,
    thinned,
    with_rows,
)
from engine.spec.cache import CacheSpec
from engine.spec.edit import Rows, Zero
from engine.spec.sampling import SamplingParams
from engine.wire.records import EditMade, ModeChanged, SamplingChanged, SequenceAdded, SequenceStopped

# of each branch: its parent branch, the parent's moment after which it parts, and its number of moments
TREES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 9)), max_size=30)


def lines_of(tree: list[tuple[int, int, int]]) -> list[BranchLine]:
    lines = [BranchLine(0, 9, 10)]
    for number, (parent, index, count) in enumerate(tree, 1):
        of = lines[parent % len(lines)]
        place = index % of.num_nodes
        lines.append(BranchLine(100 * number, 100 * number + count - 1, count, of.first + place, of.first, place))
    return lines


@given(TREES)
def test_no_line_crosses_another(tree: list[tuple[int, int, int]]) -> None:
    lines = lines_of(tree)
    rows = branch_rows(lines)
    assert sorted(row.branch.first for row in rows) == sorted(line.first for line in lines)
    assert [row.row for row in rows] == list(range(len(rows)))
    for row in rows:
        if row.parent_row is None:
            continue
        parent = rows[row.parent_row]
        assert parent.row < row.row
        assert row.start == parent.start + row.branch.index + 1
        between = rows[parent.row + 1 : row.row]
        assert all(other.start >= row.start for other in between), "a line on its way down meets none"


def test_the_branch_that_parts_last_stands_nearest() -> None:
    lines = [
        BranchLine(0, 9, 10),
        BranchLine(20, 22, 3, 2, 0, 2),
        BranchLine(30, 31, 2, 7, 0, 7),
        BranchLine(40, 40, 1, 7, 0, 7),
    ]
    assert [(row.branch.first, row.start, row.end) for row in branch_rows(lines)] == [
        (0, 0, 10), (30, 8, 10), (40, 8, 9), (20, 3, 6),
    ]  # fmt: skip


def test_descendants_of_a_folded_branch_have_no_row_unless_they_are_live() -> None:
    """20 and 30 part from 0, 40 from 30, 50 from 40."""
    lines = [
        BranchLine(0, 9, 10), BranchLine(20, 22, 3, 2, 0, 2), BranchLine(30, 33, 4, 7, 0, 7),
        BranchLine(40, 41, 2, 31, 30, 1), BranchLine(50, 51, 2, 40, 40, 0),
    ]  # fmt: skip
    rows = branch_rows(lines)
    assert [row.branch.first for row in rows] == [0, 30, 40, 50, 20]
    folded = with_rows(rows, {30}, (), None)
    assert [(row.branch.first, row.row, row.num_hidden) for row in folded] == [(0, 0, 0), (30, 1, 2), (20, 2, 0)]
    (deep,) = [row for row in with_rows(rows, {0}, {0, 50}, None) if row.branch.first == 50]
    assert (deep.row, deep.parent_row, deep.start, deep.joint) == (1, 0, 11, 8), "it is drawn where 30 parts from 0"
    assert with_rows(rows, {0}, {0, 50}, None)[0].num_hidden == 3
    found = with_rows(rows, (), {0}, {40})
    assert [(row.branch.first, row.parent_row, row.joint) for row in found] == [(0, None, 0), (40, 0, 8)]


def test_a_place_along_the_axis_is_that_of_a_depth_and_back() -> None:
    axis = DepthAxis(10, 110, 11)
    assert [axis.x_of(depth) for depth in (1, 6, 11)] == [10, 60, 110]
    assert [axis.depth_at(x) for x in (10, 58, 62, 111)] == [1, 6, 6, 11]
    assert DepthAxis(10, 110, 1).x_of(1) == 10


@given(st.lists(st.tuples(st.floats(0, 200), st.sampled_from(("edit", "mode", "branch", "other"))), max_size=40))
def test_marks_have_room_beside_each_other_and_edits_come_first(found: list[tuple[float, MarkKind]]) -> None:
    marks = [RowMark(x, kind) for x, kind in found]
    shown = thinned(marks)
    places = [mark.x for mark in shown]
    assert places == sorted(places)
    assert all(b - a >= LEAST_GAP for a, b in pairwise(places))
    for mark in marks:
        if mark.kind == "edit":
            assert any(abs(mark.x - other.x) < LEAST_GAP for other in shown if other.kind == "edit")


def test_what_a_moment_is_marked_for() -> None:
    edit, mode = EditMade(Zero(0, Rows(0, 1))), ModeChanged(CacheSpec())
    sampled, prompt = SamplingChanged(0, SamplingParams()), SequenceAdded(0, (1,), SamplingParams())
    assert [kind_of(changes) for changes in ((mode, edit), (sampled, mode), (sampled,), (prompt,), ())] == [
        "edit", "mode", "branch", None, None,
    ]  # fmt: skip
    assert kind_of((prompt, SequenceStopped(0))) == "other"


def test_a_row_says_where_it_is() -> None:
    (row,) = branch_rows([BranchLine(5, 7, 3)])
    assert row == BranchRow(BranchLine(5, 7, 3), 0, None, 0, 3, 0)
