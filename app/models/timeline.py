"""The path that the window shows, and questions about branches.

It is a path of the history tree from the root to the live node, or while a node of another branch is selected, to the
end of that branch. Step numbers ascend along a path, with gaps where numbers were given to other branches or to nodes
without a step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from app.draw.edited import MarkKind, edit_name, kind_of
from app.models.history import NO_LANE, Birth, HistoryTree, Lane, Lanes, Token
from app.models.selection import Selected
from engine.history.state import SharedList
from engine.wire.events import NodeAdded
from engine.wire.records import CacheBytes, EditMade, SequenceStep, StepRecord

FULL_SURPRISAL = 7.0  # nats, of the strongest colour and the highest tick; e^-7 is one in a thousand


class Path:
    """The path to a node: all its `nodes`, with or without a step, and the `records` of its `steps`, oldest first; and
    its `lanes`, every sequence as it is now, oldest first. Live views: do not keep them."""

    def __init__(self, history: HistoryTree) -> None:
        self.history = history
        self.nodes: list[int] = []
        self.records: list[StepRecord] = []
        self.steps: list[int] = []
        self.lanes: Lanes = {}

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self.records)

    def follow(self, step: int | None) -> bool:
        """Become the path to another node (None: the empty path); the common part is kept. Returns whether the path
        changed."""
        before, step = self.tip, step if step in self.history else None
        while self.nodes and self.nodes[-1] not in self.history:
            self.nodes.pop()
        common = self.history.common_ancestor(self.tip, step)
        last = -1 if common is None else common
        del self.nodes[bisect_right(self.nodes, last) :]
        count = bisect_right(self.steps, last)
        del self.records[count:], self.steps[count:]
        for node in self.history.path(step, above=common):
            self.nodes.append(node)
            if (record := self.history.record(node)) is not None:
                self.records.append(record)
                self.steps.append(node)
        self.lanes = self.history.lanes(self.tip)
        return self.tip != before

    # ---- its steps -----------------------------------------------------------------------------------------------

    @property
    def latest(self) -> StepRecord | None:
        return self.records[-1] if self.records else None

    @property
    def first(self) -> StepRecord | None:
        return self.records[0] if self.records else None

    @property
    def tip(self) -> int | None:
        """The newest node of the path, with or without a step; None if the path is empty."""
        return self.nodes[-1] if self.nodes else None

    def record(self, step: int) -> StepRecord | None:
        """The record of a step; None if it is not on the path."""
        index = self.index_of(step)
        return self.records[index] if index is not None else None

    def index_of(self, step: int) -> int | None:
        """The index of a step among the records; None if it is not on the path."""
        return _index_in(self.steps, step)

    def node_index(self, step: int) -> int | None:
        """The index of a node on the path; None if it is not on it."""
        return _index_in(self.nodes, step)

    def at(self, step: int | None) -> StepRecord | None:
        """The record to show for `Selected.step`: that of the step, or the newest for None. For a node without a step,
        the record of the step before it."""
        if step is None:
            return self.latest
        index = bisect_right(self.steps, step)
        return self.records[index - 1] if index and _index_in(self.nodes, step) is not None else None

    def neighbour(self, step: int | None, direction: int) -> int | None:
        """The node before (-1) or after (+1) a node (None: the newest) of the path, limited to its ends; None if it is
        empty."""
        if not self.nodes:
            return None
        last = len(self.nodes) - 1
        here = last if step is None else bisect_left(self.nodes, step)
        return self.nodes[min(max(here + direction, 0), last)]

    # ---- its sequences -------------------------------------------------------------------------------------------

    def lineage(self, seq_id: int, step: int | None) -> Iterator[tuple[int, int | None, int | None]]:
        """A sequence as it is after a step (None: now), then the sequences it descends from, which may be on other
        branches: each with the node up to which its tokens are shared, and how many of them (None: all). Ends where the
        branch of an ancestor was deleted."""
        history, now = self.history, self.lanes
        count, lane = None, now.get(seq_id, NO_LANE)
        yield seq_id, step, count
        while lane.birth is not None and lane.birth.step in history:
            parent, at, num_tokens = lane.birth
            step = step if step is not None and history.is_on_path(step, at) else at
            if num_tokens is not None:
                count = num_tokens if count is None else min(count, num_tokens)
            yield parent, step, count
            lane = history.parent_lane(parent, at, now)

    def part(self, seq_id: int, step: int | None = None) -> SequenceStep | None:
        """What a step (None: the newest) did to a sequence; None if nothing. For a fork before its own first step, that
        is what it did to the parent sequence."""
        if (record := self.at(step)) is None:
            return None
        for of, node, _ in self.lineage(seq_id, record.step):
            if of in self.history.lanes(node):
                found = record if node == record.step else self.history.record_at(node)
                return found.of(of) if found is not None else None
        return None

    def _lane(self, seq_id: int, step: int | None) -> Lane:
        """A sequence after a node (None: now), before its birth what its parent was; empty if it is not there."""
        if step is None:
            return self.lanes.get(seq_id, NO_LANE)
        index = bisect_right(self.nodes, step)
        for of, node, count in self.lineage(seq_id, self.nodes[index - 1]) if index else ():
            if (found := self.history.lanes(node).get(of)) is not None:
                return found if count is None else found.fork(found.birth, count)
        return NO_LANE

    def birth(self, seq_id: int) -> Birth | None:
        """How a sequence was forked; None if it was not."""
        return self.lanes.get(seq_id, NO_LANE).birth

    def since_first(self, seq_id: int) -> Iterator[StepRecord]:
        """The records from the one on that computed the first token of a sequence."""
        first = self.lanes.get(seq_id, NO_LANE).first
        if first is not None:
            yield from map(self.records.__getitem__, range(bisect_left(self.steps, first), len(self)))

    def newest_of(self, seq_id: int, step: int | None = None) -> StepRecord | None:
        """The newest record up to a step (None: of all) that computed the sequence, which may have ended while others
        went on."""
        record = self.at(step)
        if record is None or not self.lanes.get(seq_id, NO_LANE).tokens:
            return None
        if self.part(seq_id, record.step) is not None:
            return record
        computed = self._lane(seq_id, record.step).computed
        return self.record(computed) if computed is not None else None

    def tokens(self, seq_id: int, step: int | None = None) -> SharedList[Token]:
        """The tokens of a sequence in the cache after a step (None: now)."""
        return self._lane(seq_id, step).tokens

    def token(self, seq_id: int, position: int) -> Token | None:
        """One token that is in the cache now; None if there is none."""
        tokens = self.tokens(seq_id)
        return tokens[position] if 0 <= position < len(tokens) else None

    def num_tokens(self, seq_id: int, step: int | None = None) -> int:
        """How many tokens of a sequence are in the cache after a step (None: now)."""
        return len(self.tokens(seq_id, step))

    def sequence_ids(self) -> tuple[int, ...]:
        """Every sequence that has tokens, oldest first."""
        return tuple(seq_id for seq_id, lane in self.lanes.items() if lane.tokens)

    def awaits_surprisal(self, seq_id: int) -> bool:
        """Whether surprisals of the sequence are still to be computed."""
        return bool(self.history.open_steps) and any(token.awaits_surprisal for token in self.tokens(seq_id))


def _index_in(ascending: Sequence[int], number: int) -> int | None:
    index = bisect_left(ascending, number)
    return index if index < len(ascending) and ascending[index] == number else None


class Timeline(Path, QObject):
    """The path shown. Only the controller writes it, and the history through it; every view reads. Which path is shown
    follows from the selected step, and is decided only here.

    Signals: `appended()`, records were added; it is emitted as often as the window ticks. `texts_due()` follows it: at
    once while the engine rests, and while it runs no more often than texts can be read. So a view that follows
    `appended` may show a later step than one that follows `texts_due`, which therefore names its step. `filled(index)`:
    the surprisals of a long prompt were put into the record at that index. `reset()`: the path is another one.
    """

    appended = Signal()
    filled = Signal(int)
    texts_due = Signal()
    reset = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        QObject.__init__(self, parent)
        Path.__init__(self, HistoryTree(self))
        self._viewed: int | None = None  # the selected step
        self._other = Path(self.history)  # to the live node, while another branch is shown
        self._forked: list[tuple[int, int, int | None, int]] = []  # forks since the newest record, in no record yet
        self._since_change: CacheBytes | None = None  # bytes held after a change of mode that is in no node yet
        self._held_after: dict[int, CacheBytes] = {}  # node without a step -> bytes held after it
        self._has_unannounced = False  # something was added since `texts_due` was last emitted
        self.history.reshaped.connect(self._forget_deleted)  # connected before any view, which then reads the new path

    def follow(self, step: int | None) -> bool:
        """The same with the forks that are in no node yet, which are of the live one."""
        is_other = super().follow(step)
        for fork in self._forked if self._forked and self.is_of_live else ():
            self.lanes = self.history.forked(self.lanes, *fork)
        return is_other

    @property
    def is_before_change(self) -> bool:
        """Whether the cache holds something else than the newest record says: its mode may have been changed since."""
        return self._held_since_change(None) is not None

    def num_bytes(self, step: int | None) -> CacheBytes | None:
        """The bytes that the cache held after a step; None: what it holds now, a change of mode included."""
        if (held := self._held_since_change(step)) is not None:
            return held
        record = self.at(step)
        return record.num_bytes if record is not None else None

    def _held_since_change(self, step: int | None) -> CacheBytes | None:
        """The bytes after a change of mode between the last record up to a node and that node (None: now); None if
        there was none."""
        if step is None and self._since_change is not None:
            return self._since_change
        node, record = self.tip if step is None else step, self.at(step)
        while node is not None and node in self.history and record is not None and node != record.step:
            if (held := self._held_after.get(node)) is not None:
                return held
            node = self.history.node(node).parent
        return None

    def begin(self, seq_id: int, token_ids: Sequence[int], texts: Sequence[str]) -> None:
        """Note the tokens of a new prompt: the first of them may come from a prefix hit, so that no step computes
        them."""
        self.history.prompts[seq_id] = tuple(zip(token_ids, texts, strict=True))

    def append(self, records: Iterable[StepRecord]) -> None:
        """Add the records of new steps; O(new records). One whose parent is not the newest node changes the path to
        that parent's, unless another branch is shown. Emits each signal at most once."""
        records, tip, had = list(records), self.tip, len(self.nodes)
        if any(record.step in self.history for record in records):
            self.follow(None)
        if not (taken := self.history.take(records)):
            return
        self._forked.clear()
        self._since_change = None
        self._has_unannounced = True
        is_longer = self.follow(self._end()) and (tip is None or self.history.is_on_path(tip, self.tip))
        is_longer = is_longer and self.nodes[had:] == [record.step for record in taken]
        if self.tip != tip and not is_longer:
            self.reset.emit()
        self.appended.emit()

    def replace(self, record: StepRecord) -> int | None:
        """Replace the record of a step by one with other pages or surprisals but the same tokens. Returns its index on
        the path; None if it is not there."""
        self.history.replace(record)
        index = self.index_of(record.step)
        if index is not None:
            self.records[index] = record
            self._has_unannounced = True
        return index

    def fill(self, step: int, seq_id: int, first_position: int, values: tuple[float, ...]) -> None:
        """Fill in the surprisals of a long prompt's tokens from `first_position` on, which the step's record did not
        have yet."""
        self.history.fill(step, seq_id, first_position, values)
        self.follow(self.tip)  # a fork has its own list of sequences
        if (record := self.history.record(step)) is not None and (index := self.replace(record)) is not None:
            self.filled.emit(index)

    def announce(self, *, again: bool = False) -> None:
        """Emit `texts_due` if anything was added since the last time, or if `again`."""
        if self._has_unannounced or (again and self.records):
            self._has_unannounced = False
            self.texts_due.emit()

    def change_mode(self, num_bytes: CacheBytes) -> None:
        """Note that the sequences were moved into another cache, which holds `num_bytes`, before any step in it."""
        if self.records:
            self._since_change = num_bytes
            self.texts_due.emit()

    def add_node(self, added: NodeAdded) -> None:
        """Add a node without a step. A change of mode that is in no node yet is now recorded in it, also where another
        step is visited next."""
        if self._since_change is not None:
            self._held_after[added.node.step] = self._since_change
        self.history.add(added)
        if added.is_live:
            self.go_to(added.node.step)

    def branch(self, seq_id: int, parent: int, step: int | None, num_tokens: int) -> None:
        """Note a fork of `num_tokens` tokens, read or not: until its own first step it has what its parent had after
        `step`."""
        self.history.prompts[seq_id] = self.history.prompts.get(parent, ())[:num_tokens]
        self._forked.append((seq_id, parent, step, num_tokens))
        self.follow(self.tip)
        if self.is_of_live and self.tokens(seq_id):
            self.reset.emit()

    def go_to(self, step: int | None, held: CacheBytes | None = None) -> None:
        """Make another node the live one (None: the start, before any step), and show the path to it, or the one to the
        selected step. `held` are the bytes that the cache holds there; None: as they were recorded."""
        was_changed = self.is_before_change
        self._forked.clear()
        self.history.go_to(step)
        is_other = self.follow(self._end())
        self._since_change = None
        if step is not None and held is not None:
            record = self.history.record(step)
            if record is None:
                self._held_after[step] = held
            elif (held.layers, held.exact) != (record.num_bytes.layers, record.num_bytes.exact):
                self._since_change = held  # a change of mode after the step, as in a session that was opened again
        if is_other or was_changed or self.is_before_change:
            self.reset.emit()

    def _forget_deleted(self) -> None:
        """Shorten the path if nodes of it were deleted from the history."""
        if self.tip is not None and self.tip not in self.history and self.follow(self._end()):
            self.reset.emit()

    def on_selected(self, _old: Selected, new: Selected) -> None:
        """Show a path that contains the newly selected step."""
        if new.step == self._viewed:
            return
        self._viewed = new.step
        if len(self.history) and self._end() != self.tip:
            self.follow(self._end())
            self.reset.emit()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the selected step is not on the path to the live node, which alone has its rows in the cache."""
        step, history = self._viewed, self.history
        return step is not None and step in history and not history.is_on_path(step, history.live)

    @property
    def is_of_live(self) -> bool:
        """Whether the path shown is the one to the live node."""
        return self.tip not in self.history or self.history.is_on_path(self.tip or 0, self.history.live)

    @property
    def live_path(self) -> Path:
        """The path to the live node, whichever is shown."""
        if self.is_of_live:
            return self
        self._other.follow(self.history.live)
        return self._other

    @property
    def num_steps_ahead(self) -> int:
        """How many steps the selected step is ahead of the live node; 0 if it is not after it."""
        step, history = self._viewed, self.history
        if (
            not self.is_elsewhere
            or step is None
            or not (history.live is None or history.is_on_path(history.live, step))
        ):
            return 0
        return sum(history.record(node) is not None for node in history.path(step, above=history.live))

    def _end(self) -> int | None:
        """The newest node of the path to show. While another branch is shown, its path stays if it has the selected
        step."""
        history, step, live = self.history, self._viewed, self.history.live
        if step is None or step not in history:
            return live
        if not self.is_of_live and history.is_on_path(step, self.tip):
            return self.tip
        return live if history.is_on_path(step, live) else history.newest_below(step)

    def clear(self) -> None:
        """Clear everything: another history begins."""
        self._viewed = None
        self._forked.clear()
        self._since_change = None
        self._held_after.clear()
        self.history.clear()
        self.follow(None)
        self.reset.emit()


TEXT_LIMIT = 400  # characters of a branch's text, which is shown on one line


def branch_text(history: HistoryTree, first: int, seq_id: int | None = None, limit: int = TEXT_LIMIT) -> str:
    """The text that the steps of the branch beginning with `first` computed of one sequence: `seq_id`, or if that is
    None or was not computed, the first sequence that was. If the steps computed nothing, the names of the edits made on
    the branch."""
    text, chosen = "", seq_id
    for index, step in enumerate(history.steps_of(first)):
        record = history.record(step)
        if record is None:
            continue
        computed = {part.seq_id for part in record.sequences}
        if not text and computed and chosen not in computed:
            chosen = min(computed)
        part = record.of(chosen) if chosen is not None else None
        text += "".join(part.texts) if part is not None else ""
        if len(text) > limit or index > limit:
            break
    return text[:limit] or _edits_text(history, first)[:limit]


def _edits_text(history: HistoryTree, first: int) -> str:
    """The names of the edits that were made on a branch: `zero, mask`."""
    made = (change for step in history.changed_of(first) for change in history.changes(step))
    return ", ".join(dict.fromkeys(edit_name(one.edit).lower() for one in made if isinstance(one, EditMade)))


def steps_ahead(history: HistoryTree, step: int | None) -> tuple[int, ...]:
    """The nodes after `step` (None: after the root) that were left by going back to it or before it: those on the way
    to the newest node after the one that was left last, else to the newest node of all."""
    if not history.children_of(step):  # asked with every picture: most often nothing follows, and a path is long
        return ()
    return history.path(history.newest_below(step), above=step)


def tip_left(history: HistoryTree) -> int | None:
    """The newest node of the branch that was left last: after the live one where the user went back, else on the branch
    that was live before this one. None if no branch was left."""
    if behind := steps_ahead(history, history.live):
        return behind[-1]
    left = history.left
    if left is None or history.live is None or history.is_on_path(left, history.live):
        return None
    return history.newest_below(left)


def first_of_segment(history: HistoryTree, step: int) -> int:
    """The first node of the segment of a branch that `step` is on. A segment begins after a node where another branch
    begins, or where the branch leaves the path to the live node."""
    branch = history.branch_of(step)
    shared = history.common_ancestor(step, history.live)
    parted = [other.parent for other in history.branches() if other.parent is not None] + [shared]
    before = [node for node in parted if node is not None and branch.first <= node < step]
    before = [node for node in before if history.branch_of(node).first == branch.first]
    return history.node_at(branch.first, history.index_of(max(before)) + 1) if before else branch.first


def count_from(history: HistoryTree, step: int) -> int:
    """The number of nodes in the subtree of `step`, itself included."""
    count, waiting = 0, [step]
    while waiting:
        count += 1
        waiting += history.children_of(waiting.pop())
    return count


class SequenceOrigin(Struct, frozen=True):
    """Sequence `seq_id` was forked from `parent` after `step`. `branch` is the first node of the branch that this step
    is on, if it is not on the path shown, else None."""

    seq_id: int
    parent: int
    step: int
    branch: int | None


def origin_of(timeline: Timeline, seq_id: int) -> SequenceOrigin | None:
    """Where a sequence of the path shown was forked from; None if it was not forked."""
    birth, history = timeline.birth(seq_id), timeline.history
    if birth is None:
        return None
    is_other = birth.step in history and not history.is_on_path(birth.step, timeline.tip)
    branch = history.branch_of(birth.step).first if is_other else None
    return SequenceOrigin(seq_id, birth.parent, birth.step, branch)


class PathMark(Struct, frozen=True):
    """A node of a path where another branch begins, or before which something was changed."""

    step: int
    kind: MarkKind | None  # None: a branch begins here


def path_marks(history: HistoryTree, tip: int | None) -> tuple[PathMark, ...]:
    """The marks to draw on the path to `tip`; O(branches + changes), not O(nodes)."""
    found: list[PathMark] = []
    for branch in history.branches():
        if branch.parent is not None and history.is_on_path(branch.parent, tip) and branch.parent != tip:
            found.append(PathMark(branch.parent, None))
        for step in history.changed_of(branch.first):
            kind = kind_of(history.changes(step))
            if kind in ("edit", "mode") and history.is_on_path(step, tip):
                found.append(PathMark(step, kind))
    return tuple(dict.fromkeys(found))
