"""The history of a session as a tree: every step, and every edit, is a node that can be returned to. No torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from engine.errors import InputError
from engine.history import journal
from engine.history.marks import Checkpoint
from engine.spec.edit import BiasLogits, ReplaceTokens
from engine.wire.changes import Change, EditMade, SequenceForked
from engine.wire.tree import Node
from engine.wire.tree_shape import TreeShape


@dataclass(eq=False, slots=True)
class Moment:
    """A node, and where every sequence stood after it."""

    node: Node
    checkpoint: Checkpoint


class Tree(TreeShape):
    """Moments by the number of their step. A path from the root has ascending numbers; the root itself, an empty
    session, is None."""

    def __init__(self) -> None:
        super().__init__()
        self._moments: dict[int, Moment] = {}
        self._num_replacements = 0  # that were ever made: without any, nobody looks for one

    def __iter__(self) -> Iterator[Moment]:
        """In the order in which they were made."""
        return iter(self._moments.values())

    @property
    def nodes(self) -> dict[int, Node]:
        """The nodes by their step."""
        return {step: moment.node for step, moment in self._moments.items()}

    def add(self, moment: Moment) -> None:
        """Beyond so many as a path may have the oldest are forgotten."""
        if len(self._moments) + 1 >= journal.MAX_STEPS + journal.MAX_STEPS // 8:
            for step in self.remove_oldest_nodes(journal.MAX_STEPS - 1):
                del self._moments[step]
        node = moment.node
        edits = (change.edit for change in node.changes if isinstance(change, EditMade))
        num_replacements = sum(isinstance(edit, ReplaceTokens) for edit in edits)
        self.add_node(node.step, node.parent)
        self._moments[node.step] = moment
        self._num_replacements += num_replacements

    def set_checksums(self, step: int, checksums: tuple[int, ...]) -> None:
        """Of the rows that a step wrote, once they are known; a moment that was forgotten meanwhile needs none."""
        if checksums and (moment := self._moments.get(step)) is not None:
            moment.node = replace(moment.node, checksums=checksums)

    def at(self, step: int) -> Moment:
        """The moment after a step, or an `InputError` that says which are known."""
        if (moment := self._moments.get(step)) is None:
            known = f"steps {min(self._moments)} … {max(self._moments)} are kept" if self._moments else ""
            raise InputError(f"There is no step {step} to go to: {known or 'nothing was stepped yet'}.")
        return moment

    def parent(self, step: int) -> int | None:
        """The node that a step was taken from; None where that is the root, or is not kept any more."""
        parent = self._moments[step].node.parent
        return parent if parent in self._moments else None

    def has_other_text(self, step: int, later: int | None) -> bool:
        """Whether tokens before `step` were replaced on the way from it to a later one."""
        for between in self.path(later, above=step) if self._num_replacements else ():
            edits = (c.edit for c in self._moments[between].node.changes if isinstance(c, EditMade))
            if any(isinstance(edit, ReplaceTokens) for edit in edits):
                return True
        return False

    def is_fed_with_others(self, seq_id: int, step: int) -> bool:
        """Whether a step on the path to `step` fed a sequence together with others, or one that it was forked from."""
        found = self.fed_at(seq_id, step)
        while found is not None:
            work = self._moments[found[0]].node.work
            if work is not None and len(work.parts) > 1:
                return True
            if (before := self.parent(found[0])) is None:
                return False
            found = self.fed_at(found[1], before)
        return False

    def has_root(self, step: int) -> bool:
        """Whether the path to a step is known from its beginning."""
        return self._moments[self.path(step)[0]].node.parent is None

    def needed_for(self, step: int) -> list[int]:
        """As the function of that name; raises `InputError` where something is taken from a moment that is gone."""
        found = needed_for(self.at(step).node.step, self._node)
        for at in found:
            for source in referred_to(self._moments[at].node.changes):
                self.at(source)
        return found

    def _node(self, step: int) -> Node | None:
        return self._moments[step].node if step in self._moments else None

    def fed_at(self, seq_id: int, step: int) -> tuple[int, int] | None:
        """The newest step on the path to `step` that fed a sequence, or the one it was forked from, and under which
        `seq_id`."""
        at: int | None = step
        while at is not None and at in self._moments:
            node = self._moments[at].node
            if node.work is not None and any(part.seq_id == seq_id for part in node.work.parts):
                return at, seq_id
            if any(rewrites(change, seq_id) for change in node.changes):
                return at, seq_id
            at = self.parent(at)
            for change in reversed(node.changes):
                if isinstance(change, SequenceForked) and change.seq_id == seq_id:
                    if change.num_tokens is not None:
                        return None  # the token behind its rows is read yet, and nothing gave it logits
                    seq_id = change.parent
                    at = at if change.step is None else change.step
        return None

    def remove(self, steps: Collection[int]) -> None:
        """Forget steps with all that came of them, which is among them."""
        self.remove_nodes(steps)
        for step in steps:
            del self._moments[step]


def needed_for(step: int, node_at: Callable[[int], Node | None]) -> list[int]:
    """The steps that a replay of one does, ascending: its path, and the paths of what was forked or copied from other
    branches on it, as far as they are known."""
    found: set[int] = set()
    wanted = [step]
    while wanted:
        at: int | None = wanted.pop()
        while at is not None and at not in found and (node := node_at(at)) is not None:
            found.add(at)
            wanted += referred_to(node.changes)
            at = node.parent
    return sorted(found)


def rewrites(change: Change, seq_id: int) -> bool:
    """Whether an edit changed what the newest token of a sequence gives."""
    return isinstance(change, EditMade) and change.edit.seq_id == seq_id and not isinstance(change.edit, BiasLogits)


def referred_to(changes: tuple[Change, ...]) -> list[int]:
    """The steps that changes take something from."""
    found = [change.step for change in changes if isinstance(change, SequenceForked)]
    found += [getattr(change.edit, "from_step", None) for change in changes if isinstance(change, EditMade)]
    return [step for step in found if step is not None]
