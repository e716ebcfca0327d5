"""The history tree: what it says of random trees is what a plain table of parents says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.models import HistoryTree, Models
from app.models.timeline import branch_text, count_from, first_of_segment, steps_ahead
from engine.history.tree import Branch
from engine.spec.cache import CacheSpec
from engine.spec.edit import Mask, Rows, Zero
from engine.wire.events import NodeAdded
from engine.wire.records import EditMade, SequenceStopped, StepRecord
from engine.wire.tree import Node
from tests.app import samples

STEP = samples.step_record(1)


def record(step: int, parent: int | None, text: str = "x") -> StepRecord:
    part = replace(STEP.sequences[0], texts=(text,))
    return replace(STEP, step=step, parent=parent, sequences=(part,))


def added(step: int, parent: int | None, *, is_live: bool = True) -> NodeAdded:
    return NodeAdded(Node(step, parent, (SequenceStopped(0),), CacheSpec()), is_live)


# each number is the index of the parent among the nodes before (past their end: the root), then whether it is a step
TREES = st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(1, 3)), min_size=1, max_size=40)


def build(tree: list[tuple[int, bool, int]]) -> tuple[HistoryTree, dict[int, int | None]]:
    """A model that was told of a tree, and its table of parents."""
    history, parents, step = HistoryTree(), {}, -1
    for choice, is_step, gap in tree:
        before = list(parents)
        parent = before[choice] if choice < len(before) else None
        step += gap
        parents[step] = parent
        history.go_to(parent)
        if is_step:
            history.take([record(step, parent)])
        else:
            history.add(added(step, parent))
        assert history.live == step
    return history, parents


def path_in(parents: dict[int, int | None], step: int | None) -> tuple[int, ...]:
    found: list[int] = []
    while step is not None:
        found.append(step)
        step = parents[step]
    return tuple(found[::-1])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(TREES)
def test_paths_parents_children_and_ancestors(qapp: object, tree: list[tuple[int, bool, int]]) -> None:
    history, parents = build(tree)
    assert [node.step for node in history.nodes()] == sorted(parents)
    assert {node.step: node.parent for node in history.nodes()} == parents
    for step, parent in parents.items():
        assert history.parent_of(step) == parent
        assert history.path(step) == path_in(parents, step)
        assert history.children_of(step) == tuple(child for child in sorted(parents) if parents[child] == step)
    assert history.tips == tuple(step for step in sorted(parents) if step not in parents.values())
    for one in parents:
        for other in parents:
            both = set(path_in(parents, one)) & set(path_in(parents, other))
            assert history.common_ancestor(one, other) == (max(both) if both else None)
            assert history.is_on_path(one, other) == (one in path_in(parents, other))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(TREES)
def test_branches_part_the_nodes_and_each_is_a_line(qapp: object, tree: list[tuple[int, bool, int]]) -> None:
    history, parents = build(tree)
    seen: list[int] = []
    for branch in history.branches():
        steps = history.steps_of(branch.first)
        seen += steps
        assert (steps[0], steps[-1], len(steps)) == (branch.first, branch.tip, branch.num_nodes)
        assert [parents[step] for step in steps] == [branch.parent, *steps[:-1]]
        assert all(history.branch_of(step) == branch for step in steps)
        older = [child for child in parents if parents[child] == branch.parent and child < branch.first]
        assert older or branch.parent is None, "the first child goes on with the branch of its parent"
    assert sorted(seen) == sorted(parents)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(TREES, st.integers(0, 39))
def test_deleting_forgets_a_node_and_all_that_came_of_it_and_nothing_else(
    qapp: object, tree: list[tuple[int, bool, int]], which: int
) -> None:
    history, parents = build(tree)
    victim = sorted(parents)[which % len(parents)]
    history.delete([victim])
    left = {step: parent for step, parent in parents.items() if victim not in path_in(parents, step)}
    assert {node.step: node.parent for node in history.nodes()} == left
    assert all(history.path(step) == path_in(left, step) for step in left)
    for branch in history.branches():
        steps = history.steps_of(branch.first)
        assert [left[step] for step in steps] == [branch.parent, *steps[:-1]]
    assert history.live in (None, *left)


@pytest.fixture
def told(models: Models) -> Callable[[], list[str]]:
    """How often the model said that it changed."""
    said: list[str] = []
    models.history.changed.connect(lambda: said.append("changed"))
    return lambda: said


def test_all_but_growing_is_another_shape(models: Models) -> None:
    history = models.history
    said: list[int] = []
    history.reshaped.connect(lambda: said.append(history.shape))
    acts: tuple[tuple[Callable[[], object], bool], ...] = (
        (lambda: history.take([record(0, None, "Once")]), True),
        (lambda: history.take([record(1, 0, " upon")]), False),
        (lambda: history.take([record(2, 1, " a"), record(3, 2, " time")]), False),
        (lambda: history.go_to(1), True),
        (lambda: history.take([record(4, 1, " there")]), True),
        (lambda: history.take([record(5, 4, " was")]), False),
        (lambda: history.delete([3]), True),
        (lambda: history.delete([2]), True),
        (lambda: history.delete([2]), False),
        (lambda: history.go_to(5), False),
        (lambda: history.rename(0, "a tale"), True),
        (lambda: history.rename(0, "a tale"), False),
        (history.clear, True),
    )
    for number, (act, is_other) in enumerate(acts):
        before, version = len(said), history.version
        act()
        assert (len(said) > before) is is_other, number
        assert history.version == version + (number not in (8, 9, 11)), number


def test_two_branches_their_texts_and_names(models: Models, told: Callable[[], list[str]]) -> None:
    history = models.history
    history.take([record(0, None, "Once"), record(1, 0, " upon"), record(2, 1, " a")])
    assert told() == ["changed"], "once for what came together"
    history.go_to(0)
    history.take([record(3, 0, " there"), record(4, 3, " was")])
    assert history.branches() == (Branch(0, 2, None, 3), Branch(3, 4, 0, 2))
    assert (branch_text(history, 0), branch_text(history, 3)) == ("Once upon a", " there was")
    assert branch_text(history, 3, limit=4) == " the"
    edits = [EditMade(Zero(0, Rows(0, 2))), EditMade(Mask(0, Rows(1, 2))), EditMade(Zero(0, Rows(1, 2)))]
    for number, edit in enumerate(edits, 5):
        history.add(NodeAdded(Node(number, number - 1 if number > 5 else 1, (edit,), CacheSpec()), False))
    assert branch_text(history, 5) == "zero, mask", "nothing was computed"
    history.delete([5])
    history.rename(3, "the other beginning")
    assert (history.name(0), history.name(3)) == ("", "the other beginning")
    history.delete([3])
    assert history.names == {}
    assert history.live is None, "what was live is gone"
    history.go_to(4)
    assert history.live is None, "nor is it where the engine says that it went there"


def test_a_piece_that_is_left_alone_behind_another_is_one_branch_with_it(models: Models) -> None:
    """0 1 2, after 0 the named branch 3 and an edit; 1 and 2 go."""
    history = models.history
    history.take([record(0, None), record(1, 0), record(2, 1)])
    history.go_to(0)
    history.take([record(3, 0)])
    history.rename(3, "another")
    history.add(NodeAdded(Node(4, 3, (EditMade(Zero(0, Rows(0, 2))),), CacheSpec()), True))
    history.delete([1])
    assert history.branches() == (Branch(0, 4, None, 3),)
    assert (history.names, history.changed_of(0)) == ({0: "another"}, (4,))
    history.take([record(5, 4)])
    assert history.branches() == (Branch(0, 5, None, 4),)


def test_a_node_that_is_not_live_leaves_the_live_one(models: Models) -> None:
    history = models.history
    history.take([record(0, None)])
    history.add(added(1, 0, is_live=False))
    assert (history.live, history.children_of(0), history.record(1)) == (0, (1,), None)
    assert history.changes(1) == (SequenceStopped(0),)


def test_records_of_a_file_that_has_only_some_of_them_are_one_line(models: Models) -> None:
    models.history.take([record(7, 6), record(8, 7), record(12, 11)])
    assert models.history.branches() == (Branch(7, 12, None, 3),)
    assert models.history.node(12).parent == 8


def test_another_record_of_a_step_stays_where_the_step_is(models: Models) -> None:
    models.history.take([record(0, None, "a"), record(1, 0, "b")])
    models.history.replace(record(1, None, "c"))
    assert branch_text(models.history, 0) == "ac"
    assert models.history.parent_of(1) == 0


def test_what_was_left_and_what_a_deletion_forgets(models: Models) -> None:
    """0 1 2 3 and, after 1, the other branch 4 5; 6 goes on after 2."""
    history = models.history
    history.take([record(0, None), record(1, 0), record(2, 1), record(3, 2)])
    history.go_to(1)
    assert steps_ahead(history, 1) == (2, 3), "what was live before"
    history.take([record(4, 1), record(5, 4)])
    assert steps_ahead(history, 5) == ()
    history.go_to(2)
    history.take([record(6, 2)])
    history.go_to(1)
    assert steps_ahead(history, 1) == (2, 6)
    history.go_to(2)
    history.go_to(1)
    assert steps_ahead(history, 1) == (2, 6), "what was left had something behind it: the way leads on to its end"
    assert [first_of_segment(history, step) for step in (5, 4, 6, 3)] == [4, 4, 6, 3]
    assert [count_from(history, step) for step in (4, 2, 0)] == [2, 3, 7]
    assert history.changed_of(0) == ()
    assert history.left == 2
    history.go_to(4)
    history.go_to(6)
    assert history.left == 4
    history.delete((4, 5))
    assert history.left is None, "what was deleted cannot be returned to"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(TREES)
def test_an_arm_has_no_parting_before_its_end(qapp: object, tree: list[tuple[int, bool, int]]) -> None:
    history, parents = build(tree)
    for step in parents:
        arm = first_of_segment(history, step)
        between = history.path(step)[history.path(step).index(arm) : -1]
        assert all(len(history.children_of(node)) == 1 for node in between)
        assert count_from(history, step) == sum(step in path_in(parents, node) for node in parents)
