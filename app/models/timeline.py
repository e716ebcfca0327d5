"""The path that the window shows: from the root of the history tree to the live node, or while a node of another branch
is selected, to the end of that branch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PySide6.QtCore import QObject, Signal

from app.models.history import HistoryTree
from app.models.path import Path, PathFork
from app.models.selection import Selected
from engine.wire.records import CacheBytes, StepRecord

__all__ = ["PathFork", "Timeline"]


class Timeline(Path, QObject):
    """Step records in order. Only the controller writes; every view reads. `history` is the whole tree. Which path is
    shown follows from the selected step, and is decided only here.

    Signals: `appended()`, records were added; it is emitted as often as the window ticks. `texts_due()` follows it: at
    once while the engine rests, and while it runs no more often than texts can be read. So a view that follows
    `appended` may show a later step than one that follows `texts_due`, which therefore names its step. `filled(index)`:
    the surprisals of a long prompt were put into the record at that index. `reset()`: the path is another one.
    """

    appended = Signal()
    filled = Signal(int)
    texts_due = Signal()
    reset = Signal()

    def __init__(self, history: HistoryTree | None = None, parent: QObject | None = None) -> None:
        QObject.__init__(self, parent)
        Path.__init__(self, history or HistoryTree(self))
        self._looked_at: int | None = None  # the selected step
        self._forked: list[tuple[int, int, int | None, int]] = []  # forks since the newest record, in no record yet
        self._since_change: CacheBytes | None = None  # bytes held after a change of mode that is in no node yet
        self._changed: dict[int, CacheBytes] = {}  # node without a step -> bytes held after its change of mode
        self._has_unannounced = False  # something was added since `texts_due` was last emitted
        self.history.reshaped.connect(self._forget_deleted)  # connected before any view, which then reads the new path

    @property
    def is_before_change(self) -> bool:
        """Whether the cache mode was changed after the newest record, which therefore still describes the old mode."""
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
            if (held := self._changed.get(node)) is not None:
                return held
            node = self.history.node(node).parent
        return None

    def begin(self, seq_id: int, token_ids: Sequence[int], texts: Sequence[str]) -> None:
        """Note the tokens of a new prompt: the first of them may come from a prefix hit, so that no step feeds them."""
        self._prompts[seq_id] = tuple(zip(token_ids, texts, strict=True))

    def append(self, records: Iterable[StepRecord]) -> None:
        """Add records; O(new records). A record whose parent is not the newest node changes the path to that parent's.
        Records of a branch that is not shown are skipped. Emits each signal at most once."""
        is_new = is_other_path = False
        for record in records:
            is_new = True
            if record.step in self.history:
                if not self.history.is_on_path(record.step, self._end()):
                    continue  # another branch is shown
                if record.parent != self.tip:
                    is_other_path |= self.follow(record.parent)
            self._enter(record)
        if is_other_path:
            self.reset.emit()
        if is_new:
            self._forked.clear()
            self._since_change = None
            self._has_unannounced = True
            self.appended.emit()

    def replace(self, record: StepRecord) -> int | None:
        """Replace the record of a step on the path by one with other pages or surprisals but the same tokens. Returns
        its index; None if it is not on the path."""
        index = self.index_of(record.step)
        if index is not None:
            self._records[index] = record
            self._has_unannounced = True
        return index

    def fill(self, step: int, seq_id: int, first_position: int, values: tuple[float, ...]) -> None:
        """Fill in the surprisals of a long prompt's tokens from `first_position` on, which the step's record did not
        have yet."""
        if (known := self.history.record(step)) is not None:
            self.history.replace(known.with_surprisal(seq_id, first_position, values))
        for sequence in self._sequences.values():
            sequence.fill(step, first_position, values)
        record = self.record(step)
        if (
            record is not None
            and (index := self.replace(record.with_surprisal(seq_id, first_position, values))) is not None
        ):
            self.filled.emit(index)

    def announce(self, *, again: bool = False) -> None:
        """Emit `texts_due` if anything was added since the last time, or if `again`."""
        if self._has_unannounced or (again and self._records):
            self._has_unannounced = False
            self.texts_due.emit()

    def change_mode(self, num_bytes: CacheBytes) -> None:
        """Note that the sequences were moved into another cache, which holds `num_bytes`, before any step in it."""
        if self._records:
            self._since_change = num_bytes
            self.texts_due.emit()

    def add_node(self, step: int) -> None:
        """Make a node without a step the live one; a change of mode since the node before it is now recorded in it."""
        if self._since_change is not None:
            self._changed[step] = self._since_change
        self.go_to(step)

    def branch(self, seq_id: int, parent: int, step: int | None, num_tokens: int) -> None:
        """Note a fork of `num_tokens` tokens, read or not: until its own first step it has what its parent had after
        `step`."""
        self._prompts[seq_id] = self._prompts.get(parent, ())[:num_tokens]
        self._forked.append((seq_id, parent, step, num_tokens))
        if self.is_of_live and self._fork(seq_id, parent, step, num_tokens):
            self.reset.emit()

    def go_to(self, step: int | None) -> None:
        """Show the path to the new live node, or the one to the selected step; None: the start, before any step."""
        self._forked.clear()
        was_changed = self.is_before_change
        is_other = self.follow(self._end(step))
        self._since_change = None
        if is_other or was_changed:
            self.reset.emit()

    def _forget_deleted(self) -> None:
        """Shorten the path if nodes of it were deleted from the history."""
        if self.tip is not None and self.tip not in self.history and self.follow(self._end()):
            self.reset.emit()

    def on_selected(self, _old: Selected, new: Selected) -> None:
        """Show a path that contains the newly selected step."""
        if new.step == self._looked_at:
            return
        self._looked_at, was_of_live = new.step, self.is_of_live
        if len(self.history) and self._end() != self.tip and self.follow(self._end()):
            if self.is_of_live and not was_of_live:
                for fork in self._forked:
                    self._fork(*fork)
            self.reset.emit()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the selected step is not on the path to the live node, which alone has its rows in the cache."""
        step, history = self._looked_at, self.history
        return step is not None and step in history and not history.is_on_path(step, history.live)

    @property
    def live(self) -> int | None:
        """The node whose state the engine has."""
        return self.history.live if len(self.history) else self.tip

    @property
    def is_of_live(self) -> bool:
        """Whether the path shown is the one to the live node."""
        return self.tip not in self.history or self.history.is_on_path(self.tip or 0, self.history.live)

    @property
    def live_path(self) -> Path:
        """The path to the live node, whichever is shown."""
        return self if self.is_of_live else self._elsewhere(self.history.live)

    @property
    def num_steps_ahead(self) -> int:
        """How many steps the selected step is ahead of the live node; 0 if it is not after it."""
        step, history = self._looked_at, self.history
        if (
            not self.is_elsewhere
            or step is None
            or not (history.live is None or history.is_on_path(history.live, step))
        ):
            return 0
        return sum(history.record(node) is not None for node in history.path(step, above=history.live))

    def _end(self, live: int | None = None) -> int | None:
        """The newest node of the path to show. While another branch is shown, its path stays if it has the selected
        step."""
        history, step = self.history, self._looked_at
        live = history.live if live is None else live
        if step is None or step not in history:
            return live
        if not self.is_of_live and history.is_on_path(step, self.tip):
            return self.tip
        return live if history.is_on_path(step, live) else history.newest_below(step)

    def clear(self) -> None:
        """Clear everything: another history begins."""
        self._clear()
        self._looked_at = None
        self._since_change = None
        self._changed.clear()
        self.reset.emit()
