"""The history of a session as a tree: every step, and every edit, is a node that can be returned to. No torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from engine.errors import InputError
from engine.history.state import States
from engine.spec.edit import ReplaceTokens
from engine.wire.changes import Change, EditMade, SequenceForked
from engine.wire.tree import Node, TreeShape

MAX_STEPS = 1 << 17  # steps that can be gone back to; each takes some 300 bytes here


@dataclass(eq=False, slots=True)
class Moment:
    """A node of the history tree, and the states of all sequences after it."""

    node: Node
    states: States


class Tree(TreeShape):
    """The history tree: moments by step. Along a path from the root the numbers ascend; the root itself, an empty
    session, is None."""

    def __init__(self) -> None:
        super().__init__()
        self._moments: dict[int, Moment] = {}
        self._num_replacements = 0  # edits that replaced tokens, ever: while 0, no search for one is needed

    def __iter__(self) -> Iterator[Moment]:
        """In the order in which they were made."""
        return iter(self._moments.values())

    @property
    def nodes(self) -> dict[int, Node]:
        """The nodes by their step."""
        return {step: moment.node for step, moment in self._moments.items()}

    def states(self, step: int) -> States:
        """The states after a step; empty where it is none, or is not known any more."""
        return self._moments[step].states if step in self._moments else {}

    def add(self, moment: Moment) -> None:
        """Add a moment; beyond `MAX_STEPS` the oldest are dropped. A sequence that has not changed shares its state
        at the parent, to save memory."""
        if len(self._moments) + 1 >= MAX_STEPS + MAX_STEPS // 8:  # in blocks: each deletion lays all lines anew
            for step in self.remove_oldest_nodes(MAX_STEPS - 1):
                del self._moments[step]
        node, states = moment.node, moment.states
        before = {} if node.parent is None else self.states(node.parent)
        for seq_id, state in states.items():
            if (known := before.get(seq_id)) == state and known is not None:
                states[seq_id] = known
        edits = (change.edit for change in node.changes if isinstance(change, EditMade))
        num_replacements = sum(isinstance(edit, ReplaceTokens) for edit in edits)
        self.add_node(node.step, node.parent)
        self._moments[node.step] = moment
        self._num_replacements += num_replacements

    def set_checksums(self, step: int, checksums: tuple[int, ...]) -> None:
        """Set the checksums of the rows that a step wrote, which are known only after it was added; nothing where the
        step was dropped meanwhile."""
        if checksums and (moment := self._moments.get(step)) is not None:
            moment.node = replace(moment.node, checksums=checksums)

    def at(self, step: int) -> Moment:
        """The moment of a step, or an `InputError` that says which steps are known."""
        if (moment := self._moments.get(step)) is None:
            known = f"steps {min(self._moments)} … {max(self._moments)} are kept" if self._moments else ""
            raise InputError(f"There is no step {step} to go to: {known or 'nothing was stepped yet'}.")
        return moment

    def parent(self, step: int) -> int | None:
        """The parent of a step; None where that is the root, or is not known any more."""
        parent = self._moments[step].node.parent
        return parent if parent in self._moments else None

    def has_other_text(self, step: int, later: int | None) -> bool:
        """Whether an edit replaced tokens on the path from `step` to `later`."""
        for between in self.path(later, above=step) if self._num_replacements else ():
            edits = (c.edit for c in self._moments[between].node.changes if isinstance(c, EditMade))
            if any(isinstance(edit, ReplaceTokens) for edit in edits):
                return True
        return False

    def is_batched_with_others(self, seq_id: int, step: int) -> bool:
        """Whether any step on the path to `step` computed the sequence, or one that it was forked from, in a batch with
        others."""
        found = self.computed_by(seq_id, step)
        while found is not None:
            work = self._moments[found[0]].node.work
            if work is not None and len(work.parts) > 1:
                return True
            if (before := self.parent(found[0])) is None:
                return False
            found = self.computed_by(found[1], before)
        return False

    def has_root(self, step: int) -> bool:
        """Whether the path to a step is known from its beginning."""
        return self._moments[self.path(step)[0]].node.parent is None

    def needed_for(self, step: int) -> list[int]:
        """The steps that a replay of `step` needs (see the function `needed_for`); raises `InputError` where a step
        that is referred to is not known any more."""
        found = needed_for(self.at(step).node.step, self._node)
        for at in found:
            for source in referred_to(self._moments[at].node.changes):
                self.at(source)
        return found

    def _node(self, step: int) -> Node | None:
        return self._moments[step].node if step in self._moments else None

    def computed_by(self, seq_id: int, step: int) -> tuple[int, int] | None:
        """The newest step on the path to `step` that computed a sequence or the one that it was forked from, and the
        `seq_id` that it computed. An edit that changed the newest logits counts as computing."""
        mark = self.states(step).get(seq_id)
        return None if mark is None else mark.computed_by

    def remove(self, steps: Collection[int]) -> None:
        """Remove steps; `steps` must include all their descendants."""
        self.remove_nodes(steps)
        for step in steps:
            del self._moments[step]


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
