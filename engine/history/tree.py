"""The history of a session as a tree, in which every step and every edit is a node that can be returned to; and one
path of it: what a sequence was after each of its steps. No torch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from engine.errors import InputError
from engine.history.state import ALL_TOKENS, SequenceState, States
from engine.spec.edit import ReplaceTokens
from engine.wire.records import Change, EditMade, SequenceForked
from engine.wire.tree import Node

MAX_STEPS = 1 << 17  # steps that can be gone back to; each takes some 300 bytes here


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


# ---- its entries -----------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class TreeEntry:
    """A node of the history tree, and the states of all sequences after it."""

    node: Node
    states: States


class Tree(TreeShape):
    """The history tree: entries by step. Along a path from the root the numbers ascend; the root itself, an empty
    session, is None."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[int, TreeEntry] = {}
        self._num_replacements = 0  # edits that replaced tokens, ever: while 0, no search for one is needed

    def __iter__(self) -> Iterator[TreeEntry]:
        """In the order in which they were made."""
        return iter(self._entries.values())

    @property
    def nodes(self) -> dict[int, Node]:
        """The nodes by their step."""
        return {step: entry.node for step, entry in self._entries.items()}

    def states(self, step: int) -> States:
        """The states after a step; empty where it is none, or is not known any more."""
        return self._entries[step].states if step in self._entries else {}

    def add(self, entry: TreeEntry) -> None:
        """Add an entry; beyond `MAX_STEPS` the oldest are removed. A sequence that has not changed shares its state
        at the parent, to save memory."""
        if len(self._entries) + 1 >= MAX_STEPS + MAX_STEPS // 8:  # in blocks: each deletion lays all lines anew
            for step in self.remove_oldest_nodes(MAX_STEPS - 1):
                del self._entries[step]
        node, states = entry.node, entry.states
        before = {} if node.parent is None else self.states(node.parent)
        for seq_id, state in states.items():
            if (known := before.get(seq_id)) == state and known is not None:
                states[seq_id] = known
        edits = (change.edit for change in node.changes if isinstance(change, EditMade))
        num_replacements = sum(isinstance(edit, ReplaceTokens) for edit in edits)
        self.add_node(node.step, node.parent)
        self._entries[node.step] = entry
        self._num_replacements += num_replacements

    def set_checksums(self, step: int, checksums: tuple[int, ...]) -> None:
        """Set the checksums of the rows that a step wrote, which are known only after it was added; nothing where the
        step was dropped meanwhile."""
        if checksums and (entry := self._entries.get(step)) is not None:
            entry.node = replace(entry.node, checksums=checksums)

    def at(self, step: int) -> TreeEntry:
        """The entry of a step, or an `InputError` that says which steps are known."""
        if (entry := self._entries.get(step)) is None:
            known = f"steps {min(self._entries)} … {max(self._entries)} are kept" if self._entries else ""
            raise InputError(f"There is no step {step} to go to: {known or 'nothing was stepped yet'}.")
        return entry

    def parent(self, step: int) -> int | None:
        """The parent of a step; None where that is the root, or is not known any more."""
        parent = self._entries[step].node.parent
        return parent if parent in self._entries else None

    def has_other_text(self, step: int, later: int | None) -> bool:
        """Whether an edit replaced tokens on the path from `step` to `later`."""
        for between in self.path(later, above=step) if self._num_replacements else ():
            edits = (c.edit for c in self._entries[between].node.changes if isinstance(c, EditMade))
            if any(isinstance(edit, ReplaceTokens) for edit in edits):
                return True
        return False

    def is_batched_with_others(self, seq_id: int, step: int) -> bool:
        """Whether any step on the path to `step` computed the sequence, or one that it was forked from, in a batch with
        others."""
        found = self.computed_by(seq_id, step)
        while found is not None:
            work = self._entries[found[0]].node.work
            if work is not None and len(work.parts) > 1:
                return True
            if (before := self.parent(found[0])) is None:
                return False
            found = self.computed_by(found[1], before)
        return False

    def has_root(self, step: int) -> bool:
        """Whether the path to a step is known from its beginning."""
        return self._entries[self.path(step)[0]].node.parent is None

    def needed_for(self, step: int) -> list[int]:
        """The steps that a replay of `step` needs (see the function `needed_for`); raises `InputError` where a step
        that is referred to is not known any more."""
        found = needed_for(self.at(step).node.step, self._node)
        for at in found:
            for source in referred_to(self._entries[at].node.changes):
                self.at(source)
        return found

    def _node(self, step: int) -> Node | None:
        return self._entries[step].node if step in self._entries else None

    def computed_by(self, seq_id: int, step: int) -> tuple[int, int] | None:
        """The newest step on the path to `step` that computed a sequence or the one that it was forked from, and the
        `seq_id` that it computed. An edit that changed the newest logits counts as computing."""
        state = self.states(step).get(seq_id)
        return None if state is None else state.computed_by

    def remove(self, steps: Collection[int]) -> None:
        """Remove steps; `steps` must include all their descendants."""
        self.remove_nodes(steps)
        for step in steps:
            del self._entries[step]


def needed_for(step: int, node_at: Callable[[int], Node | None]) -> list[int]:
    """The steps that a replay of `step` repeats, ascending: its path, and the paths of all steps that forks or edits on
    it refer to, as far as they are known."""
    found: set[int] = set()
    wanted = [step]
    while wanted:
        at: int | None = wanted.pop()
        while at is not None and at not in found and (node := node_at(at)) is not None:
            found.add(at)
            wanted += referred_to(node.changes)
            at = node.parent
    return sorted(found)


def referred_to(changes: tuple[Change, ...]) -> list[int]:
    """The steps that changes refer to: origins of forks, and steps whose rows an edit took."""
    found = [change.step for change in changes if isinstance(change, SequenceForked)]
    found += [getattr(change.edit, "from_step", None) for change in changes if isinstance(change, EditMade)]
    return [step for step in found if step is not None]


# ---- one path of the tree -----------------------------------------------------------------------------------------


class LineageSegment(NamedTuple):
    """A part of the history of a forked sequence, and in which sequence it took place: `owner`, up to the step `last`.
    Only its first `length` tokens are also those of the forked sequence."""

    owner: int
    last: int
    length: int


class TreePath:
    """The steps of one path of `tree`, ascending (numbers of other branches are missing). Up to a fork the history of a
    sequence is that of the one that it was forked from. `now` has the states at the end of the path where they are not
    those of its newest step."""

    def __init__(
        self, tree: Tree, steps: Iterable[int] = (), now: Callable[[int], SequenceState | None] = lambda _: None
    ) -> None:
        self._tree, self._now = tree, now
        self.steps = [*steps]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def newest(self) -> int:
        """The newest step, -1 before the first."""
        return self.steps[-1] if self.steps else -1

    def add(self, *steps: int) -> None:
        """Append steps, and forget those that the tree has dropped."""
        if self.steps and self.steps[0] not in self._tree:
            self.steps = [step for step in self.steps if step in self._tree]
        self.steps += steps

    def states(self, step: int) -> States | None:
        """The states after a step; None if it is not on the path."""
        index = bisect_left(self.steps, step)
        return self._tree.states(step) if index < len(self.steps) and self.steps[index] == step else None

    def cut_after(self, step: int) -> None:
        """Remove all steps after `step` (-1: all)."""
        del self.steps[bisect_right(self.steps, step) :]

    # ---- sequences and their forks -------------------------------------------------------------------------------

    def _lineage(self, seq_id: int, step: int) -> Iterator[LineageSegment]:
        """The history of a sequence up to `step` in segments, each with the sequence that it took place in: the newest
        first. Never empty."""
        length = ALL_TOKENS
        state = self._now(seq_id) or self._tree.states(self.newest).get(seq_id)
        for origin in () if state is None else state.origins:
            if step > origin.until:
                yield LineageSegment(seq_id, step, length)
            seq_id, step, length = origin.parent, min(step, origin.step), min(length, origin.length)
        yield LineageSegment(seq_id, step, length)

    def owner(self, seq_id: int, step: int) -> tuple[int, int]:
        """The sequence that was what `seq_id` was at a step: itself, or the one that it was forked from later; and the
        step at which to look that one up."""
        segment = next(self._lineage(seq_id, step))
        return segment.owner, segment.last

    def state(self, seq_id: int, step: int) -> SequenceState | None:
        """The state of a sequence after a step, or of the one that it was forked from later; None where it did not
        exist or had tokens that the fork did not take."""
        segment = next(self._lineage(seq_id, step))
        state = self.state_of(segment.owner, segment.last)
        return state if state is not None and state.num_tokens <= segment.length else None

    def state_of(self, owner: int, step: int) -> SequenceState | None:
        """The state of exactly this sequence after a step, without following forks."""
        states = self.states(step)
        return states.get(owner) if states else None

    def computed_by(self, seq_id: int, step: int) -> tuple[int, int] | None:
        """The newest step up to `step` that computed a sequence, and the `seq_id` that it computed: the sequence
        itself, or the one that it was forked from. None where none is known."""
        state = self.state(seq_id, step)
        return None if state is None else state.computed_by

    def forward_lengths(self, seq_id: int, until: int | None = None) -> list[int]:
        """The length of a sequence after each step up to `until` that computed it since it last began: forwards that
        end at these lengths repeat its own exactly."""
        lengths: list[int] = []
        for segment in reversed([*self._lineage(seq_id, self.newest + 1 if until is None else until)]):
            for at in self.steps[: bisect_right(self.steps, segment.last)]:
                state = self._tree.states(at).get(segment.owner)
                if state is None or state.num_tokens > segment.length:
                    continue
                if lengths and state.num_tokens < lengths[-1]:
                    lengths = []  # it was preempted, and prefilled again
                if state.num_tokens > (lengths[-1] if lengths else 0):
                    lengths.append(state.num_tokens)
        return lengths
