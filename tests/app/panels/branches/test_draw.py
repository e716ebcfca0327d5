"""Rows of branches: no two lines cross, and marks do not overlap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.draw.edited import MarkKind, kind_of
from app.panels.branches.tree import (
    LEAST_GAP,
    BranchRow,
    DepthAxis,
    branch_rows,
    thinned,
    with_rows,
)
from engine.history.tree import Branch, TreeShape
from engine.spec.cache import CacheSpec
from engine.spec.edit import Rows, Zero
from engine.spec.sampling import SamplingParams
from engine.wire.records import EditMade, ModeChanged, SamplingChanged, SequenceAdded, SequenceStopped

# of each branch: its parent branch, the parent's moment after which it parts, and its number of moments
TREES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 9)), max_size=30)


def tree_of(*branches: tuple[int, int, int | None]) -> TreeShape:
    """A tree of branches: the first moment of each, the number of its moments, and the moment after which it begins."""
    tree = TreeShape()
    for first, count, parent in branches:
        for step in range(first, first + count):
            tree.add_node(step, parent if step == first else step - 1)
    return tree


def grown(tree: list[tuple[int, int, int]]) -> TreeShape:
    branches: list[tuple[int, int, int | None]] = [(0, 10, None)]
    for number, (parent, index, count) in enumerate(tree, 1):
        first, length, _ = branches[parent % len(branches)]
        branches.append((100 * number, count, first + index % length))
    return tree_of(*branches)


@given(TREES)
def test_no_line_crosses_another(tree: list[tuple[int, int, int]]) -> None:
    shape = grown(tree)
    rows = branch_rows(shape)
    assert sorted(row.branch.first for row in rows) == [branch.first for branch in shape.branches()]
    assert [row.row for row in rows] == list(range(len(rows)))
    for row in rows:
        if row.parent_row is None:
            continue
        parent = rows[row.parent_row]
        assert parent.row < row.row
        assert row.start == parent.start + shape.index_of(row.branch.parent) + 1
        between = rows[parent.row + 1 : row.row]
        assert all(other.start >= row.start for other in between), "a line on its way down meets none"


def test_the_branch_that_parts_last_stands_nearest() -> None:
    tree = tree_of((0, 10, None), (20, 3, 2), (30, 2, 7), (40, 1, 7))
    assert [(row.branch.first, row.start, row.end) for row in branch_rows(tree)] == [
        (0, 0, 10), (30, 8, 10), (40, 8, 9), (20, 3, 6),
    ]  # fmt: skip


def test_descendants_of_a_folded_branch_have_no_row_unless_they_are_live() -> None:
    """20 and 30 part from 0, 40 from 30, 50 from 40."""
    rows = branch_rows(tree_of((0, 10, None), (20, 3, 2), (30, 4, 7), (40, 2, 31), (50, 2, 40)))
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
    shown = thinned(found)
    places = [x for x, _ in shown]
    assert places == sorted(places)
    assert all(b - a >= LEAST_GAP for a, b in pairwise(places))
    for x, kind in found:
        if kind == "edit":
            assert any(abs(x - other) < LEAST_GAP for other, shown_kind in shown if shown_kind == "edit")


def test_what_a_moment_is_marked_for() -> None:
    edit, mode = EditMade(Zero(0, Rows(0, 1))), ModeChanged(CacheSpec())
    sampled, prompt = SamplingChanged(0, SamplingParams()), SequenceAdded(0, (1,), SamplingParams())
    assert [kind_of(changes) for changes in ((mode, edit), (sampled, mode), (sampled,), (prompt,), ())] == [
        "edit", "mode", "branch", None, None,
    ]  # fmt: skip
    assert kind_of((prompt, SequenceStopped(0))) == "other"


def test_a_row_says_where_it_is() -> None:
    (row,) = branch_rows(tree_of((5, 3, None)))
    assert row == BranchRow(Branch(5, 7, None, 3), 0, None, 0, 3, 0)
