"""Paths and what is forgotten of a tree, against a plain table of parents."""

import random

from engine.history.tree import TreeShape

PARENTS: dict[int, int | None] = {0: None, 1: 0, 2: 1, 5: 2, 6: 1, 7: 6, 9: 5, 12: 0}


def tree(parents: dict[int, int | None]) -> TreeShape:
    made = TreeShape()
    for step, parent in parents.items():
        made.add_node(step, parent)
    return made


def test_a_path_above_one_of_its_nodes() -> None:
    shape = tree(PARENTS)
    assert shape.path(9) == (0, 1, 2, 5, 9)
    assert shape.path(9, above=1) == (2, 5, 9)
    assert shape.path(7, above=0) == (1, 6, 7)
    assert shape.path(7, above=7) == ()
    assert shape.path(None) == ()


def test_what_came_of_forgotten_nodes_begins_at_the_root() -> None:
    shape = tree(PARENTS)
    assert shape.remove_oldest_nodes(5) == [0, 1, 2]
    assert shape.steps == [5, 6, 7, 9, 12]
    assert (shape.path(9), shape.path(7), shape.path(12)) == ((5, 9), (6, 7), (12,))
    assert shape.children_of(None) == (5, 6, 12)
    assert shape.common_ancestor(9, 7) is None
    assert shape.add_node(13, 9) is False


def test_a_parent_that_is_not_here_is_the_root() -> None:
    shape = tree({4: 2, 5: 4})
    assert (shape.parent_of(4), shape.path(5)) == (None, (4, 5))


def test_a_place_of_a_branch_is_kept_within_it() -> None:
    shape = tree(PARENTS)
    assert shape.steps_of(6) == (6, 7)
    assert [shape.node_at(6, index) for index in (-1, 0, 1, 2, 99)] == [6, 6, 7, 7, 7]
    assert [shape.node_at(0, shape.index_of(step)) for step in (0, 1, 2, 5, 9)] == [0, 1, 2, 5, 9]


def test_random_trees_forget_and_grow_as_a_table_does() -> None:
    rng = random.Random(7)
    parents: dict[int, int | None] = {}
    shape = TreeShape()
    for step in range(300):
        parent = rng.choice([*parents, None])
        parents[step] = parent
        shape.add_node(step, parent)
        if rng.random() < 0.05:
            doomed = set(shape.below(rng.choice(list(parents))))
            shape.remove_nodes(doomed)
            parents = {step: parent for step, parent in parents.items() if step not in doomed}
            assert shape.branches() == tree(parents).branches(), "as if they had never been there"
    for step in parents:
        path, at = [step], parents[step]
        while at is not None:
            path.insert(0, at)
            at = parents[at]
        assert shape.path(step) == tuple(path)
        above = rng.choice(path)
        assert shape.path(step, above) == tuple(path[path.index(above) + 1 :])
