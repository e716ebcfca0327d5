"""The history tree as the window knows it: every step, every other node, their branches, and the tokens after each.

A node is made by a step, or added without one (an edit, for example). Parents and branches are in the base,
`TreeShape`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from engine.history.state import SharedList, mapped
from engine.history.tree import Branch, TreeShape
from engine.spec.edit import Edit, ReplaceTokens
from engine.wire.events import NodeAdded
from engine.wire.measurements import EditMeasured
from engine.wire.records import Change, EditMade, SequenceForked, SequenceStep, StepRecord
from engine.wire.tree import Node


@dataclasses.dataclass(frozen=True)
class Token:
    """One token of a sequence whose K and V are in the cache; `step` is the step that put them there.

    `token_id` is -1 if an opened file does not say it. `surprisal` is in nats, None if it was not computed.
    `is_served`: its K and V came from a prefix hit and were not computed for this sequence. `num_computed_before`: how
    many tokens its step computed before it. `is_computed_anew`: an edit recomputed its K and V, behind other tokens
    than its step computed.
    """

    position: int
    token_id: int
    text: str
    surprisal: float | None
    step: int
    forced: bool
    is_prompt: bool
    is_served: bool = False
    num_computed_before: int = 0
    is_computed_anew: bool = False

    @property
    def id_text(self) -> str:
        """The token id as text, or "not known"."""
        return f"{self.token_id:,}" if self.token_id >= 0 else "not known"

    @property
    def awaits_surprisal(self) -> bool:
        """Whether the surprisal is computed later than K and V, as for the tokens of a long prompt."""
        return self.surprisal is None and self.num_computed_before > 0 and not self.is_computed_anew

    def with_surprisal(self, surprisal: float) -> Token:
        return dataclasses.replace(self, surprisal=surprisal)

    @property
    def no_surprisal(self) -> str:
        """Why the token has no surprisal, in words; empty if it has one."""
        if self.surprisal is not None:
            return ""
        if self.awaits_surprisal:
            return "not computed yet: comes when the engine rests"
        if self.is_computed_anew:
            return "not computed: other tokens were put in before it"
        if self.is_served:
            return "not computed: its page was found"
        return "nothing predicted it" if self.position == 0 else "not computed: no logits of the token before it"


NO_TOKENS = SharedList[Token]()


class Birth(NamedTuple):
    """A sequence was forked: it has what `parent` had after the node `step`, or with `num_tokens` its first tokens."""

    parent: int
    step: int
    num_tokens: int | None


class Lane(NamedTuple):
    """The tokens of a sequence after a node; the steps that computed the first and the newest of them; and its birth,
    None if it was not forked. Lists of tokens are shared, so that a node costs O(new tokens)."""

    tokens: SharedList[Token] = NO_TOKENS
    first: int | None = None
    computed: int | None = None
    birth: Birth | None = None

    def fork(self, birth: Birth | None, num_tokens: int | None) -> Lane:
        """A fork of it, of its first `num_tokens` tokens (None: of all)."""
        return self._replace(tokens=self.tokens if num_tokens is None else self.tokens.first(num_tokens), birth=birth)

    def extend(self, step: int, part: SequenceStep, served: Sequence[Token]) -> Lane:
        """After a step that computed tokens, which stand behind those `served` by a prefix hit if it has none yet.
        Tokens that a preempted sequence is computed again keep their entry."""
        known = self.tokens or SharedList(served)
        again = known[part.first_position : part.first_position + len(part.token_ids)]
        if any(token.token_id != token_id for token, token_id in zip(again, part.token_ids, strict=False)):
            known = known.first(part.first_position)
        new = []
        for offset, (token_id, text) in enumerate(zip(part.token_ids, part.texts, strict=True)):
            position = part.first_position + offset
            if position < len(known):
                continue
            surprisal = part.surprisal[offset] if offset < len(part.surprisal) else None
            is_prompt = position < part.num_prompt_tokens
            forced = part.forced and not is_prompt
            new.append(Token(position, token_id, text, surprisal, step, forced, is_prompt, num_computed_before=offset))
        if not new:
            return self
        first = step if self.first is None else self.first
        return Lane(known.extended(new), first, step, self.birth)

    def replace(
        self, node: int, position: int, num_replaced: int, new: Sequence[tuple[int, str]], *, is_prefill: bool
    ) -> Lane:
        """After an edit made by `node`: others, given as (id, text), in the place of `num_replaced` tokens at
        `position`. The tokens behind are moved, and marked as recomputed if `is_prefill`."""
        old, stop = self.tokens, position + num_replaced
        if position >= len(old):
            return self
        is_prompt, moved = old[position].is_prompt, len(new) - num_replaced
        put = [
            Token(position + offset, token_id, text, None, node, forced=True, is_prompt=is_prompt)
            for offset, (token_id, text) in enumerate(new)
        ]
        behind = old[stop:]
        if is_prefill:
            anew = partial(dataclasses.replace, step=node, surprisal=None, is_computed_anew=True)
            behind = [anew(token, position=token.position + moved) for token in behind]
        return self._replace(tokens=SharedList([*old[:position], *put, *behind]))


Lanes = dict[int, Lane]  # of all sequences at one node, by `seq_id`
NO_LANE, NO_LANES = Lane(), Lanes()


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
        self.names: dict[int, str] = {}  # that the user gave to branches, by first node
        self.prompts: dict[int, tuple[tuple[int, str], ...]] = {}  # (id, text) pairs of every prompt, by sequence
        self._lanes: dict[int, Lanes] = {}
        self.open_steps: set[int] = set()  # those that lack surprisals, which come later
        self.live: int | None = None  # the node whose state the engine has
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
    def left(self) -> int | None:
        """The node that was live before the engine last went to another one; None if it was deleted."""
        return self._left if self._left in self else None

    def record(self, step: int) -> StepRecord | None:
        """The record of a step; None for a node that was added without a step."""
        return self._records.get(step)

    def record_at(self, step: int | None) -> StepRecord | None:
        """The record of a step; for a node without one, that of the newest step before it."""
        while step is not None and step not in self._records:
            step = self.parent_of(step)
        return None if step is None else self._records[step]

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

    # ---- sequences -----------------------------------------------------------------------------------------------

    def lanes(self, step: int | None) -> Lanes:
        """Every sequence after a node, oldest first; none where there is no such node."""
        return NO_LANES if step is None else self._lanes.get(step, NO_LANES)

    def parent_lane(self, seq_id: int, step: int, now: Lanes) -> Lane:
        """A sequence that was forked after a step: as it was then, or if it was itself forked since, as it is now."""
        return self.lanes(step).get(seq_id) or now.get(seq_id, NO_LANE)

    def forked(self, lanes: Lanes, seq_id: int, parent: int, step: int | None, num_tokens: int | None) -> Lanes:
        """The sequences after a fork was made among them, of what its parent had after `step` (None: has)."""
        source = lanes.get(parent, NO_LANE) if step is None else self.parent_lane(parent, step, lanes)
        birth = None if step is None else Birth(parent, step, num_tokens)
        return {**lanes, seq_id: source.fork(birth, num_tokens)}

    def _fold(self, node: int, parent: int | None, changes: Iterable[Change], texts: tuple[str, ...] = ()) -> Lanes:
        """The sequences after the changes that a node carries; `texts` of the tokens that an edit put in."""
        lanes = self.lanes(parent)
        for change in changes:
            match change:
                case SequenceForked(seq_id, of, step, count):
                    lanes = self.forked(lanes, seq_id, of, step, count)
                case EditMade(ReplaceTokens() as edit) if edit.seq_id in lanes:
                    known = texts if len(texts) == len(edit.token_ids) else [f"#{each}" for each in edit.token_ids]
                    new, count = list(zip(edit.token_ids, known, strict=True)), edit.stop - edit.position
                    lane = lanes[edit.seq_id]
                    lane = lane.replace(node, edit.position, count, new, is_prefill=edit.how == "re-prefill")
                    lanes = {**lanes, edit.seq_id: lane}
        return lanes

    def _step(self, record: StepRecord) -> Lanes:
        """The sequences after a step. What of a prompt no step computed came from a prefix hit."""
        lanes = {**self._fold(record.step, record.parent, record.changes)}
        for part in record.sequences:
            lane = lanes.get(part.seq_id, NO_LANE)
            prompt = () if lane.tokens else self.prompts.get(part.seq_id, ())[: part.first_position]
            served = [
                Token(position, token_id, text, None, record.step, False, position < part.num_prompt_tokens, True)
                for position, (token_id, text) in enumerate(prompt)
            ]
            lanes[part.seq_id] = lane.extend(record.step, part, served)
        return lanes

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

    def name(self, first: int) -> str:
        """A branch's name; empty if it has none."""
        return self.names.get(first, "")

    # ---- written by the controller -------------------------------------------------------------------------------

    def take(self, records: Iterable[StepRecord]) -> list[StepRecord]:
        """Add the records of new steps; the newest becomes live. Returns them as they are in the tree: a record with an
        unknown parent (of a file with only some of the steps) gets the live node as its parent."""
        taken: list[StepRecord] = []
        for record in records:
            if record.parent not in self and record.parent != self.live:
                record = replace(record, parent=self.live)
            if record.step in self:
                self._forget(set(self.below(record.step)))
            self._enter(record.step, record.parent, record.changes)
            self._records[record.step] = record
            self._lanes[record.step] = self._step(record)
            if _lacks_surprisal(record):
                self.open_steps.add(record.step)
            self.live = record.step
            taken.append(record)
        if taken:
            self.changed.emit()
        return taken

    def replace(self, record: StepRecord) -> None:
        """Replace the record of a step by one with more information; its place in the tree stays."""
        if (old := self._records.get(record.step)) is not None:
            self._records[record.step] = replace(record, parent=old.parent)

    def fill(self, step: int, seq_id: int, first_position: int, values: tuple[float, ...]) -> None:
        """Fill in the surprisals of tokens from `first_position` on, which the step's record did not have yet; also in
        the forks that have them."""
        if (known := self._records.get(step)) is None:
            return
        self._records[step] = record = known.with_surprisal(seq_id, first_position, values)
        if not _lacks_surprisal(record):
            self.open_steps.discard(step)

        def filled(token: Token) -> Token:
            offset = token.position - first_position
            is_of_step = token.step == step and token.awaits_surprisal and 0 <= offset < len(values)
            return token.with_surprisal(values[offset]) if is_of_step else token

        places = [(lanes, of) for lanes in self._lanes.values() for of in lanes]
        for (lanes, of), run in zip(places, mapped([lanes[of].tokens for lanes, of in places], filled), strict=True):
            lanes[of] = lanes[of]._replace(tokens=run)

    def add(self, added: NodeAdded) -> None:
        """Add a node without a step."""
        node = added.node
        self._enter(node.step, node.parent, node.changes)
        self._added[node.step] = added
        self._lanes[node.step] = self._fold(node.step, node.parent, node.changes, added.texts)
        if added.is_live:
            self.live = node.step
        self.changed.emit()

    def go_to(self, step: int | None) -> None:
        """Make another node the live one (None: the start, and one that is not here, whose path nobody could walk)."""
        step = step if step in self else None
        if step != self.live:
            self.shape += 1
            self._left, self.live = self.live, step
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
            self.names.pop(first, None)
            if name:
                self.names[first] = name
            self.changed.emit()
            self.reshaped.emit()

    def clear(self) -> None:
        """Delete everything: another history begins."""
        self._records.clear()
        self._added.clear()
        self._changed.clear()
        self._clear()
        self._lanes.clear()
        self.open_steps.clear()
        self.names.clear()
        self.prompts.clear()
        self.live = self._left = None
        self.shape += 1
        self.changed.emit()

    def _enter(self, step: int, parent: int | None, changes: tuple[Change, ...]) -> None:
        begins = self.add_node(step, parent)
        first = self.branch_of(step).first
        if begins or changes or self.live is None or self.branch_of(self.live).first != first:
            self.shape += 1
        if changes:
            self._changed.setdefault(first, []).append(step)

    def _forget(self, steps: Collection[int]) -> None:
        """Remove nodes whose descendants are all among them."""
        self.shape += 1
        joined = self.remove_nodes(steps)
        self.open_steps.difference_update(steps)
        for step in steps:
            self._lanes.pop(step, None)
            self._records.pop(step, None)
            self._added.pop(step, None)
            self.names.pop(step, None)
        for first, other in joined.items():
            if name := self.names.pop(first, ""):
                self.names.setdefault(other, name)
        changed = sorted(step for steps in self._changed.values() for step in steps if step in self)
        self._changed = {}
        for step in changed:
            self._changed.setdefault(self.branch_of(step).first, []).append(step)
        if self.live not in self:
            self.live = None


def _lacks_surprisal(record: StepRecord) -> bool:
    return any(None in part.surprisal[1:] for part in record.sequences)


class MadeEdit(Struct, frozen=True):
    """An edit and the number of its node in the history tree."""

    step: int
    edit: Edit


class Edits(QObject):
    """The edits in the history, and their effect on the next token. Only the controller writes.

    Signal: `changed()`, an edit was made, undone or measured, or other edits are in force at the live node.
    """

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.made: tuple[MadeEdit, ...] = ()  # every edit, undone ones too, oldest first
        self._measured: dict[int, EditMeasured] = {}
        self._in_force: tuple[MadeEdit, ...] = ()  # those on the path to the live node, as they were told last

    def follow(self, history: HistoryTree) -> None:
        """Set the history tree that the edits are read from."""
        self._history = history
        history.changed.connect(self._on_history)

    def on_path(self, step: int | None = None) -> tuple[MadeEdit, ...]:
        """The edits on the path to a node (None: the live one), oldest first."""
        tip = self._history.live if step is None else step
        if tip is None or tip not in self._history:
            return ()
        return tuple(made for made in self.made if self._history.is_on_path(made.step, tip))

    @property
    def undone(self) -> tuple[MadeEdit, ...]:
        """The edits that are not on the path to the live node."""
        live = set(self.on_path())
        return tuple(made for made in self.made if made not in live)

    def measured(self, step: int) -> EditMeasured | None:
        """The measured effect of the edit `step` on the next token; None if it is not known."""
        return self._measured.get(step)

    def kl(self, step: int) -> float | None:
        """How far an edit moved the distribution of the next token, in nats; None where that is not known."""
        measured, added = self._measured.get(step), self._history.added(step)
        return measured.kl if measured is not None else added.kl if added is not None else None

    def take(self, measured: EditMeasured) -> None:
        """Store the measured effect of an edit."""
        self._measured[measured.step] = measured
        self.changed.emit()

    def _on_history(self) -> None:
        before, self.made = (
            self.made,
            tuple(
                MadeEdit(node.step, change.edit)
                for node in self._history.added_nodes
                for change in node.changes
                if isinstance(change, EditMade)
            ),
        )
        in_force = self.on_path()
        if (self.made, in_force) != (before, self._in_force):
            self._in_force = in_force
            known = {made.step for made in self.made}
            self._measured = {step: found for step, found in self._measured.items() if step in known}
            self.changed.emit()
