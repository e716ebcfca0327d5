"""The history tree as the window knows it: every step, every node that no step made, and the branches they form.

A branch is a line of nodes, each but the first the child of the one before, and is known by its first node. The first
child that a node gets goes on with the node's branch; every later one begins a branch of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from engine.wire.changes import Change
from engine.wire.events import NodeAdded
from engine.wire.records import StepRecord
from engine.wire.tree import Node


@dataclass(frozen=True)
class Branch:
    """A line of nodes from `first` to `tip` that parts from the rest after `parent` (None: at the root)."""

    first: int
    tip: int
    parent: int | None
    num_nodes: int


@dataclass
class _Line:
    """The nodes of a branch, ascending, and the node after which it begins."""

    parent: int | None
    steps: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)  # those of them before which something was done

    def up_to(self, step: int) -> list[int]:
        return self.steps[: bisect_right(self.steps, step)]


class History(QObject):
    """All nodes by number. Only the controller writes; a node costs nothing beyond its record or itself.

    `changed`: nodes were added or deleted, another one is live, or a branch was named; `reshaped`: more is
    different than that the live branch has grown. `live` is the node whose state
    the engine has, None before the first.
    """

    changed = Signal()
    reshaped = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._records: dict[int, StepRecord] = {}
        self._added: dict[int, NodeAdded] = {}
        self._branch_of: dict[int, int] = {}  # the first node of the branch of every node
        self._lines: dict[int, _Line] = {}  # by first node
        self._begun_at: dict[int | None, list[int]] = {}  # the branches that part after a node
        self._names: dict[int, str] = {}
        self._live: int | None = None
        self._left: int | None = None  # what was live before, and was left for another moment
        self.version = 0  # another one for each other tree
        self.shape = self._told_shape = 0  # another one where more is different than that the live branch has grown
        self.changed.connect(self._on_changed)

    def _on_changed(self) -> None:
        self.version += 1
        if self.shape != self._told_shape:
            self._told_shape = self.shape
            self.reshaped.emit()

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._branch_of)

    def __contains__(self, step: object) -> bool:
        return step in self._branch_of

    @property
    def live(self) -> int | None:
        return self._live

    @property
    def left(self) -> int | None:
        """What was live before another moment was gone to; None where it is forgotten."""
        return self._left if self._left in self._branch_of else None

    def record(self, step: int) -> StepRecord | None:
        """What the step did; None of a node that no step made."""
        return self._records.get(step)

    def added(self, step: int) -> NodeAdded | None:
        """What was told of a node that no step made, None of a step."""
        return self._added.get(step)

    @property
    def added_nodes(self) -> tuple[Node, ...]:
        """The nodes that no step made, oldest first."""
        return tuple(self._added[step].node for step in sorted(self._added))

    def node(self, step: int) -> Node:
        """The node of that number; KeyError where there is none."""
        added = self._added.get(step)
        return added.node if added is not None else Node.of(self._records[step])

    def nodes(self) -> tuple[Node, ...]:
        """Every node, in the order in which they were made, which is that of their numbers."""
        return tuple(map(self.node, sorted(self._branch_of)))

    def changes(self, step: int) -> tuple[Change, ...]:
        """What was done between the node's parent and the node's own step."""
        added = self._added.get(step)
        return added.node.changes if added is not None else self._records[step].changes

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

    def path(self, step: int | None) -> tuple[int, ...]:
        """The nodes from the root to one, which is the last; none for None."""
        pieces: list[list[int]] = []
        while step is not None:
            line = self._lines[self._branch_of[step]]
            pieces.append(line.up_to(step))
            step = line.parent
        return tuple(node for piece in reversed(pieces) for node in piece)

    def records_to(self, step: int | None) -> list[StepRecord]:
        """The records on the path to a node, oldest first."""
        return [self._records[node] for node in self.path(step) if node in self._records]

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

    def changed_of(self, first: int) -> tuple[int, ...]:
        """The nodes of a branch before which something was done."""
        return tuple(self._lines[first].changed)

    def steps_of(self, first: int) -> tuple[int, ...]:
        """The nodes of a branch."""
        return tuple(self._lines[first].steps)

    @property
    def tips(self) -> tuple[int, ...]:
        """The nodes of which nothing came, oldest first."""
        return tuple(sorted(line.steps[-1] for line in self._lines.values() if not self.children_of(line.steps[-1])))

    @property
    def names(self) -> dict[int, str]:
        """The names that were given to branches, by their first node."""
        return dict(self._names)

    def name(self, first: int) -> str:
        """The name that was given to a branch, empty where none was."""
        return self._names.get(first, "")

    # ---- written by the controller -------------------------------------------------------------------------------

    def take(self, records: Iterable[StepRecord]) -> list[StepRecord]:
        """Steps that were done, as they are in the tree; the newest is live. A record that names no parent that is
        known (one of a file that has only some) goes on from the live node."""
        taken: list[StepRecord] = []
        for record in records:
            if record.parent not in self._branch_of and record.parent != self._live:
                record = replace(record, parent=self._live)
            if record.step in self._branch_of:
                self._forget(self._subtree(record.step))
            self._enter(record.step, record.parent, record.changes)
            self._records[record.step] = record
            self._live = record.step
            taken.append(record)
        if taken:
            self.changed.emit()
        return taken

    def replace(self, record: StepRecord) -> None:
        """Another record of a step that is there: it knows more, and is at the same place."""
        if (old := self._records.get(record.step)) is not None:
            self._records[record.step] = replace(record, parent=old.parent)

    def add(self, added: NodeAdded) -> None:
        """A node that no step made."""
        self._enter(added.node.step, added.node.parent, added.node.changes)
        self._added[added.node.step] = added
        if added.is_live:
            self._live = added.node.step
        self.changed.emit()

    def go_to(self, step: int | None) -> None:
        """Another node is live."""
        if step != self._live:
            self.shape += 1
            self._left, self._live = self._live, step
            self.changed.emit()

    def delete(self, steps: Iterable[int]) -> None:
        """Forget nodes, with all that came of them."""
        gone = {node for step in steps if step in self._branch_of for node in self._subtree(step)}
        if gone:
            self._forget(gone)
            self.changed.emit()

    def rename(self, first: int, name: str) -> None:
        """Give a branch a name, or none."""
        if first in self._lines and name != self.name(first):
            self._names.pop(first, None)
            if name:
                self._names[first] = name
            self.changed.emit()

    def clear(self) -> None:
        """Another history begins."""
        self._records.clear()
        self._added.clear()
        self._branch_of.clear()
        self._lines.clear()
        self._begun_at.clear()
        self._names.clear()
        self._live = self._left = None
        self.shape += 1
        self.changed.emit()

    def _enter(self, step: int, parent: int | None, changes: tuple[Change, ...]) -> None:
        line = self._lines[self._branch_of[parent]] if parent is not None else None
        if line is None or line.steps[-1] != parent:
            self.shape += 1
            line = self._lines[step] = _Line(parent)
            self._begun_at.setdefault(parent, []).append(step)
        line.steps.append(step)
        self._branch_of[step] = line.steps[0]
        if changes or self._live is None or self._branch_of.get(self._live) != line.steps[0]:
            self.shape += 1
        if changes:
            line.changed.append(step)

    def _subtree(self, step: int) -> Iterator[int]:
        """A node and all that came of it."""
        waiting = [step]
        while waiting:
            begin = waiting.pop()
            steps = self._lines[self._branch_of[begin]].steps
            for node in steps[bisect_right(steps, begin) - 1 :]:
                yield node
                waiting += self._begun_at.get(node, ())

    def _forget(self, steps: Iterable[int]) -> None:
        """Nodes of which all that came of them is among them."""
        self.shape += 1
        for step in sorted(steps, reverse=True):
            first = self._branch_of.pop(step)
            line = self._lines[first]
            line.steps.pop()  # the newest come first
            if line.changed and line.changed[-1] == step:
                line.changed.pop()
            if not line.steps:
                del self._lines[first]
                self._begun_at[line.parent].remove(first)
                self._names.pop(first, None)
            self._begun_at.pop(step, None)
            self._records.pop(step, None)
            self._added.pop(step, None)
        if self._live not in self._branch_of:
            self._live = None
