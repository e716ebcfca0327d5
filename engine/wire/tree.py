"""The nodes of a session's history tree: every step and every edit is a node, and going back deletes nothing.

Nodes are numbered in the order in which they were made, steps and edits together, so that a number always means the
same step: a branch that begins after step 5 of 20 continues with step 21. On a path from the root the numbers ascend,
with gaps where other branches were extended meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from engine.spec.cache import CacheSpec
from engine.wire.message import Count, Part
from engine.wire.records import Change, SequenceStep, StepRecord, StopReason


class PlannedPart(Part, frozen=True):
    """What a step did to a sequence: it computed the tokens `first_position … num_tokens` and chose `sampled`.
    `forced`: the computed token was forced. `token_id` is the token that a decode step computed; None for prompts."""

    seq_id: Count
    first_position: Count
    num_tokens: Count
    sampled: Count | None
    forced: bool
    stop: StopReason | None
    token_id: Count | None = None

    @classmethod
    def of(cls, step: SequenceStep) -> PlannedPart:
        """The plan that repeats a recorded step of a sequence."""
        is_prompt = step.phase == "prefill" or len(step.token_ids) != 1
        computed = None if is_prompt else step.token_ids[0]
        return cls(step.seq_id, step.first_position, step.num_tokens, step.sampled, step.forced, step.stop, computed)


class PlannedStep(Part, frozen=True):
    """A step to be repeated: its cache mode, what it does to which sequences, the sequences preempted before it, and
    the runner of its forward passes (empty: whichever is chosen)."""

    step: int
    cache: CacheSpec
    parts: tuple[PlannedPart, ...]
    preempted: tuple[Count, ...]
    runner: str = ""

    @classmethod
    def of(cls, record: StepRecord) -> PlannedStep:
        """The plan that repeats a recorded step."""
        parts = tuple(map(PlannedPart.of, record.sequences))
        return cls(record.step, record.cache, parts, record.preempted, record.runner)


class Node(Part, frozen=True):
    """A step or edit that can be returned to: the result of `changes` to the `parent` (None: to an empty session),
    followed by the step `work` unless that is None. `checksums` are those of the K and V rows that the step wrote, one
    for each layer with rows."""

    step: int
    parent: int | None
    changes: tuple[Change, ...]
    cache: CacheSpec
    work: PlannedStep | None = None
    checksums: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: StepRecord) -> Node:
        """The node of a recorded step."""
        return cls(record.step, record.parent, record.changes, record.cache, PlannedStep.of(record), record.checksums)


class BranchBytes(Part, frozen=True):
    """A kept checkpoint that is not the live one: bytes of K and V that it shares with others, and those of its own.
    Going to any other step computes it again, or copies from one of these."""

    step: int
    shared: int
    private: int


# A branch is a list of nodes, each of which except the first is the child of the one before; it is identified by its
# first node. The first child of a node continues the node's branch, every later child begins a new branch. Node numbers
# ascend along every path, so that a node is found in its branch by bisection, and a walk to the root takes time in the
# number of branches, not of nodes.


@dataclass(frozen=True)
class Branch:
    """A branch: its first and last node, the node `parent` after which it begins (None: the root), and its length."""

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
    """A tree of nodes, identified by their numbers; the root is None."""

    def __init__(self) -> None:
        self._branch_of: dict[int, int] = {}  # for every node, the first node of its branch
        self._lines: dict[int, _NodeLine] = {}  # branches by their first node
        self._branches_after: dict[int | None, list[int]] = {}  # for every node, the branches that begin after it

    def __len__(self) -> int:
        return len(self._branch_of)

    def __contains__(self, step: object) -> bool:
        return step in self._branch_of

    @property
    def steps(self) -> list[int]:
        """Every node in ascending order, which is the order in which they were made."""
        return sorted(self._branch_of)

    # ---- paths ---------------------------------------------------------------------------------------------------

    def parent_of(self, step: int) -> int | None:
        """The parent of a node, None for the first node of a history; raises KeyError if there is no such node."""
        line = self._lines[self._branch_of[step]]
        index = bisect_right(line.steps, step) - 1
        return line.steps[index - 1] if index else line.parent

    def children_of(self, step: int | None) -> tuple[int, ...]:
        """The children of a node (None: of the root), oldest first."""
        begun = self._branches_after.get(step, ())
        if step is None:
            return tuple(begun)
        steps = self._lines[self._branch_of[step]].steps
        after = bisect_right(steps, step)
        return tuple(sorted((*steps[after : after + 1], *begun)))

    def path(self, step: int | None, above: int | None = None) -> tuple[int, ...]:
        """The nodes on the path to `step`, inclusive, from the root or from below `above`, a node on that path. Empty
        for None."""
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
        """The newest node on the paths to both; None if only the root is common to them."""
        while one != other:
            if one is None or other is None:
                return None
            mine, theirs = self._branch_of[one], self._branch_of[other]
            if mine == theirs:
                return min(one, other)
            if mine > theirs:  # a branch is younger than the one that it begins at
                one = self._lines[mine].parent
            else:
                other = self._lines[theirs].parent
        return one

    def is_on_path(self, step: int, tip: int | None) -> bool:
        """Whether a node is on the path to `tip`."""
        return tip is not None and self.common_ancestor(step, tip) == step

    def below(self, step: int) -> Iterator[int]:
        """A node and all its descendants."""
        waiting = [step]
        while waiting:
            begin = waiting.pop()
            steps = self._lines[self._branch_of[begin]].steps
            for node in steps[bisect_right(steps, begin) - 1 :]:
                yield node
                waiting += self._branches_after.get(node, ())

    # ---- branches ------------------------------------------------------------------------------------------------

    def branches(self) -> tuple[Branch, ...]:
        """Every branch, oldest first."""
        return tuple(map(self.branch, sorted(self._lines)))

    def branch(self, first: int) -> Branch:
        """The branch that begins with the node `first`; raises KeyError if none does."""
        line = self._lines[first]
        return Branch(first, line.steps[-1], line.parent, len(line.steps))

    def branch_of(self, step: int) -> Branch:
        """The branch that contains a node; raises KeyError if there is no such node."""
        return self.branch(self._branch_of[step])

    def index_of(self, step: int) -> int:
        """The index of a node in its branch."""
        return bisect_right(self._lines[self._branch_of[step]].steps, step) - 1

    def node_at(self, first: int, index: int) -> int:
        """The node at an index of a branch; the index is clamped to the branch."""
        steps = self._lines[first].steps
        return steps[min(max(index, 0), len(steps) - 1)]

    def steps_of(self, first: int) -> tuple[int, ...]:
        """The nodes of a branch."""
        return tuple(self._lines[first].steps)

    @property
    def tips(self) -> tuple[int, ...]:
        """The nodes without children, oldest first."""
        return tuple(sorted(line.steps[-1] for line in self._lines.values() if not self.children_of(line.steps[-1])))

    # ---- changing ------------------------------------------------------------------------------------------------

    def add_node(self, step: int, parent: int | None) -> bool:
        """Add a node as the child of `parent`, or of the root if `parent` is not in the tree. Returns whether it begins
        a branch."""
        first = self._branch_of.get(parent) if parent is not None else None
        parent = parent if first is not None else None
        begins = first is None or self._lines[first].steps[-1] != parent
        if begins:
            first = step
            self._lines[step] = _NodeLine(parent)
            self._branches_after.setdefault(parent, []).append(step)
        assert first is not None
        self._lines[first].steps.append(step)
        self._branch_of[step] = first
        return begins

    def remove_nodes(self, steps: Collection[int]) -> dict[int, int]:
        """Remove nodes, which must include all descendants of each. A branch that now ends where others begin is
        continued by the oldest of these. Returns the joined branches: first node of the old branch → first node of the
        one it is now part of."""
        shortened: set[int] = set()
        for step in sorted(steps, reverse=True):
            first = self._branch_of.pop(step)
            shortened.add(first)
            line = self._lines[first]
            line.steps.pop()  # nodes are removed newest first
            if not line.steps:
                del self._lines[first]
                self._branches_after[line.parent].remove(first)
            self._branches_after.pop(step, None)
        joined: dict[int, int] = {}
        # In descending order, so that a branch which is joined to another one has been continued before.
        for first in sorted(shortened & self._lines.keys(), reverse=True):
            line = self._lines[first]
            if begun := self._branches_after.get(line.steps[-1]):
                oldest = min(begun)
                begun.remove(oldest)
                steps = self._lines.pop(oldest).steps
                self._branch_of.update(dict.fromkeys(steps, first))
                line.steps += steps
                joined[oldest] = first
        return joined

    def remove_oldest_nodes(self, num_kept: int) -> list[int]:
        """Keep only the newest `num_kept` nodes; children of removed nodes become children of the root. Returns the
        removed nodes."""
        nodes = self.steps
        count = max(0, len(nodes) - num_kept)
        kept = [(step, self.parent_of(step)) for step in nodes[count:]]
        self._clear()
        for step, parent in kept:
            self.add_node(step, parent)
        return nodes[:count]

    def _clear(self) -> None:
        """Remove all nodes."""
        self._branch_of.clear()
        self._lines.clear()
        self._branches_after.clear()
