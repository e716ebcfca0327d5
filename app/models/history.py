"""The history tree as the window knows it: every step, every other node, and the branches they form.

A node is made by a step, or added without one (an edit, for example). Parents and branches are in the base,
`TreeShape`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from engine.wire.changes import Change
from engine.wire.events import NodeAdded
from engine.wire.records import StepRecord
from engine.wire.tree import Branch, Node, TreeShape

__all__ = ["Branch", "HistoryTree"]


class HistoryTree(TreeShape, QObject):
    """All nodes, by number. Only the controller writes; the memory of a node is its record or its `NodeAdded`.

    Signals: `changed()`, nodes were added or deleted, another one is live, or a branch was named; `reshaped()`,
    something other than the growth of the live branch happened. `live` is the node whose state the engine has, None
    before the first.
    """

    changed = Signal()
    reshaped = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        QObject.__init__(self, parent)
        TreeShape.__init__(self)
        self._records: dict[int, StepRecord] = {}
        self._added: dict[int, NodeAdded] = {}
        self._changed: dict[int, list[int]] = {}  # first node of a branch -> its nodes that carry changes
        self._names: dict[int, str] = {}
        self._live: int | None = None
        self._left: int | None = None  # the node that was live before the engine last went to another one
        self.version = 0  # increased with every change of the tree
        self.shape = self._announced_shape = 0  # increased with every change that is not growth of the live branch
        self.changed.connect(self._on_changed)

    def _on_changed(self) -> None:
        self.version += 1
        if self.shape != self._announced_shape:
            self._announced_shape = self.shape
            self.reshaped.emit()

    # ---- nodes ---------------------------------------------------------------------------------------------------

    @property
    def live(self) -> int | None:
        return self._live

    @property
    def left(self) -> int | None:
        """The node that was live before the engine last went to another one; None if it was deleted."""
        return self._left if self._left in self else None

    def record(self, step: int) -> StepRecord | None:
        """The record of a step; None for a node that was added without a step."""
        return self._records.get(step)

    def added(self, step: int) -> NodeAdded | None:
        """The event that added a node without a step; None for a step."""
        return self._added.get(step)

    @property
    def added_nodes(self) -> tuple[Node, ...]:
        """The nodes that were added without a step, oldest first."""
        return tuple(self._added[step].node for step in sorted(self._added))

    def node(self, step: int) -> Node:
        """The node of that number. Raises KeyError if there is none."""
        added = self._added.get(step)
        return added.node if added is not None else Node.of(self._records[step])

    def nodes(self) -> tuple[Node, ...]:
        """Every node, by number, which is the order in which they were made."""
        return tuple(map(self.node, self.steps))

    def changes(self, step: int) -> tuple[Change, ...]:
        """What was changed between the node's parent and the node's own step."""
        added = self._added.get(step)
        return added.node.changes if added is not None else self._records[step].changes

    # ---- branches ------------------------------------------------------------------------------------------------

    def changed_of(self, first: int) -> tuple[int, ...]:
        """The nodes of a branch that carry changes."""
        return tuple(self._changed.get(first, ()))

    def newest_below(self, step: int | None) -> int | None:
        """The newest node in the subtree of `step` (None: of the whole tree); if the node that was left last is in it,
        the newest one in that node's subtree."""
        ends = [tip for tip in self.tips if step is None or self.is_on_path(step, tip)]
        if (left := self.left) is not None and (step is None or self.is_on_path(step, left)):
            ends = [tip for tip in ends if self.is_on_path(left, tip)]
        return max(ends, default=None)

    @property
    def names(self) -> dict[int, str]:
        """The names that the user gave to branches, by first node."""
        return dict(self._names)

    def name(self, first: int) -> str:
        """A branch's name; empty if it has none."""
        return self._names.get(first, "")

    # ---- written by the controller -------------------------------------------------------------------------------

    def take(self, records: Iterable[StepRecord]) -> list[StepRecord]:
        """Add the records of new steps; the newest becomes live. Returns them as they are in the tree: a record with an
        unknown parent (of a file with only some of the steps) gets the live node as its parent."""
        taken: list[StepRecord] = []
        for record in records:
            if record.parent not in self and record.parent != self._live:
                record = replace(record, parent=self._live)
            if record.step in self:
                self._forget(set(self.below(record.step)))
            self._enter(record.step, record.parent, record.changes)
            self._records[record.step] = record
            self._live = record.step
            taken.append(record)
        if taken:
            self.changed.emit()
        return taken

    def replace(self, record: StepRecord) -> None:
        """Replace the record of a step by one with more information; its place in the tree stays."""
        if (old := self._records.get(record.step)) is not None:
            self._records[record.step] = replace(record, parent=old.parent)

    def add(self, added: NodeAdded) -> None:
        """Add a node without a step."""
        self._enter(added.node.step, added.node.parent, added.node.changes)
        self._added[added.node.step] = added
        if added.is_live:
            self._live = added.node.step
        self.changed.emit()

    def go_to(self, step: int | None) -> None:
        """Make another node the live one (None: the start)."""
        if step != self._live:
            self.shape += 1
            self._left, self._live = self._live, step
            self.changed.emit()

    def delete(self, steps: Iterable[int]) -> None:
        """Delete nodes with their subtrees."""
        gone = {node for step in steps if step in self for node in self.below(step)}
        if gone:
            self._forget(gone)
            self.changed.emit()

    def rename(self, first: int, name: str) -> None:
        """Name the branch that begins with node `first`; an empty name removes its name."""
        if first in self and self.branch_of(first).first == first and name != self.name(first):
            self._names.pop(first, None)
            if name:
                self._names[first] = name
            self.changed.emit()

    def clear(self) -> None:
        """Delete everything: another history begins."""
        self._records.clear()
        self._added.clear()
        self._changed.clear()
        self._clear()
        self._names.clear()
        self._live = self._left = None
        self.shape += 1
        self.changed.emit()

    def _enter(self, step: int, parent: int | None, changes: tuple[Change, ...]) -> None:
        begins = self.add_node(step, parent)
        first = self.branch_of(step).first
        if begins or changes or self._live is None or self.branch_of(self._live).first != first:
            self.shape += 1
        if changes:
            self._changed.setdefault(first, []).append(step)

    def _forget(self, steps: Collection[int]) -> None:
        """Remove nodes whose descendants are all among them."""
        self.shape += 1
        joined = self.remove_nodes(steps)
        for step in steps:
            self._records.pop(step, None)
            self._added.pop(step, None)
            self._names.pop(step, None)
        for first, other in joined.items():
            if name := self._names.pop(first, ""):
                self._names.setdefault(other, name)
        changed = sorted(step for steps in self._changed.values() for step in steps if step in self)
        self._changed = {}
        for step in changed:
            self._changed.setdefault(self.branch_of(step).first, []).append(step)
        if self._live not in self:
            self._live = None
