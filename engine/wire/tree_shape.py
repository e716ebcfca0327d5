"""Which node of a history tree came of which, as lines of nodes: paths, common ancestors, branches.

A line (a branch) is nodes of which each but the first is the child of the one before; it is known by its first node.
The first child that a node gets goes on with the node's line, every later one begins a line of its own. Numbers of
nodes ascend along every path, so that a place in a line is a bisection and a walk costs lines, not nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Branch:
    """A line of nodes from `first` to `tip` that parts from the rest after `parent` (None: at the root)."""

    first: int
    tip: int
    parent: int | None
    num_nodes: int


@dataclass(slots=True)
class _NodeLine:
    """The nodes of a branch, ascending, and the node after which it begins."""

    parent: int | None
    steps: list[int] = field(default_factory=list)


class TreeShape:
    """Nodes by number; the root itself is None."""

    def __init__(self) -> None:
        self._branch_of: dict[int, int] = {}  # the first node of the branch of every node
        self._lines: dict[int, _NodeLine] = {}  # by first node
        self._begun_at: dict[int | None, list[int]] = {}  # the branches that part after a node

    def __len__(self) -> int:
        return len(self._branch_of)

    def __contains__(self, step: object) -> bool:
        return step in self._branch_of

    @property
    def steps(self) -> list[int]:
        """Every node, in the order in which they were made, which is that of their numbers."""
        return sorted(self._branch_of)

    # ---- paths ---------------------------------------------------------------------------------------------------

    def parent_of(self, step: int) -> int | None:
        """The node before it, None where it is the first of its history; KeyError where there is no such node."""
        line = self._lines[self._branch_of[step]]
        index = bisect_right(line.steps, step) - 1
        return line.steps[index - 1] if index else line.parent

    def children_of(self, step: int | None) -> tuple[int, ...]:
        """The nodes that came of a node (None: of the root), oldest first."""
        begun = self._begun_at.get(step, ())
        if step is None:
            return tuple(begun)
        steps = self._lines[self._branch_of[step]].steps
        after = bisect_right(steps, step)
        return tuple(sorted((*steps[after : after + 1], *begun)))

    def path(self, step: int | None, above: int | None = None) -> tuple[int, ...]:
        """The nodes from the root (or from below `above`, which is one of them) to one, which is the last; none for
        None."""
        pieces: list[list[int]] = []
        while step is not None:
            first = self._branch_of[step]
            line = self._lines[first]
            is_last = above is not None and self._branch_of[above] == first
            start = bisect_right(line.steps, above) if above is not None and is_last else 0
            pieces.append(line.steps[start : bisect_right(line.steps, step)])
            step = None if is_last else line.parent
        return tuple(node for piece in reversed(pieces) for node in piece)

    def common_ancestor(self, one: int | None, other: int | None) -> int | None:
        """The newest node on the paths to both, None where they have none in common."""
        while one != other:
            if one is None or other is None:
                return None
            mine, theirs = self._branch_of[one], self._branch_of[other]
            if mine == theirs:
                return min(one, other)
            if mine > theirs:  # a branch is younger than the one that it parts from
                one = self._lines[mine].parent
            else:
                other = self._lines[theirs].parent
        return one

    def is_on_path(self, step: int, tip: int | None) -> bool:
        """Whether the path to `tip` goes through a node."""
        return tip is not None and self.common_ancestor(step, tip) == step

    def below(self, step: int) -> Iterator[int]:
        """A node and all that came of it."""
        waiting = [step]
        while waiting:
            begin = waiting.pop()
            steps = self._lines[self._branch_of[begin]].steps
            for node in steps[bisect_right(steps, begin) - 1 :]:
                yield node
                waiting += self._begun_at.get(node, ())

    # ---- branches ------------------------------------------------------------------------------------------------

    def branches(self) -> tuple[Branch, ...]:
        """Every branch, oldest first."""
        return tuple(map(self.branch, sorted(self._lines)))

    def branch(self, first: int) -> Branch:
        """The branch that begins with a node; KeyError where none does."""
        line = self._lines[first]
        return Branch(first, line.steps[-1], line.parent, len(line.steps))

    def branch_of(self, step: int) -> Branch:
        """The branch that a node is of; KeyError where there is no such node."""
        return self.branch(self._branch_of[step])

    def index_of(self, step: int) -> int:
        """Where a node stands in its branch."""
        return bisect_right(self._lines[self._branch_of[step]].steps, step) - 1

    def node_at(self, first: int, index: int) -> int:
        """The node at a place of a branch, kept within it."""
        steps = self._lines[first].steps
        return steps[min(max(index, 0), len(steps) - 1)]

    def steps_of(self, first: int) -> tuple[int, ...]:
        """The nodes of a branch."""
        return tuple(self._lines[first].steps)

    @property
    def tips(self) -> tuple[int, ...]:
        """The nodes of which nothing came, oldest first."""
        return tuple(sorted(line.steps[-1] for line in self._lines.values() if not self.children_of(line.steps[-1])))

    # ---- changing ------------------------------------------------------------------------------------------------

    def enter(self, step: int, parent: int | None) -> bool:
        """A node that came of another (of the root where that is not here); whether it begins a branch."""
        first = self._branch_of.get(parent) if parent is not None else None
        parent = parent if first is not None else None
        begins = first is None or self._lines[first].steps[-1] != parent
        if begins:
            first = step
            self._lines[step] = _NodeLine(parent)
            self._begun_at.setdefault(parent, []).append(step)
        assert first is not None
        self._lines[first].steps.append(step)
        self._branch_of[step] = first
        return begins

    def forget(self, steps: Collection[int]) -> dict[int, int]:
        """Nodes of which all that came of them is among them. A line that ends now where others begin goes on with the
        oldest of these: returns which lines went into which, by their first nodes."""
        shortened: set[int] = set()
        for step in sorted(steps, reverse=True):
            first = self._branch_of.pop(step)
            shortened.add(first)
            line = self._lines[first]
            line.steps.pop()  # the newest come first
            if not line.steps:
                del self._lines[first]
                self._begun_at[line.parent].remove(first)
            self._begun_at.pop(step, None)
        joined: dict[int, int] = {}
        for first in sorted(shortened & self._lines.keys(), reverse=True):  # what may be joined itself comes before
            line = self._lines[first]
            if begun := self._begun_at.get(line.steps[-1]):
                oldest = min(begun)
                begun.remove(oldest)
                steps = self._lines.pop(oldest).steps
                self._branch_of.update(dict.fromkeys(steps, first))
                line.steps += steps
                joined[oldest] = first
        return joined

    def forget_oldest(self, num_kept: int) -> list[int]:
        """Keep so many of the newest; what came of those that are forgotten begins at the root. Returns those."""
        nodes = self.steps
        count = max(0, len(nodes) - num_kept)
        kept = [(step, self.parent_of(step)) for step in nodes[count:]]
        self._clear()
        for step, parent in kept:
            self.enter(step, parent)
        return nodes[:count]

    def _clear(self) -> None:
        """Forget all."""
        self._branch_of.clear()
        self._lines.clear()
        self._begun_at.clear()
