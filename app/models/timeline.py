"""The path that the window shows: the moments from the root of the history tree to the live one, or, while one of
another branch is looked at, to the end of that. Looking back is an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PySide6.QtCore import QObject, Signal

from app.models.history import HistoryTree
from app.models.path import Path, PathFork
from app.models.selection import Selected
from engine.wire.records import CacheBytes, StepRecord

__all__ = ["PathFork", "Timeline"]


class Timeline(Path, QObject):
    """Step records in order. Only the controller writes; every view reads. `history` has what is on other branches.
    Which path is shown follows from the moment that is looked at, here alone.

    `appended` follows the engine as fast as the window goes. `legible` comes after it, at once while the engine rests
    and no more often than words and numbers can be read while it runs. What follows the first shows a later step then
    than what follows the second, which therefore says which step it shows. `filled(index)`: the surprisals of a long
    prompt came into the record of an earlier step, or of the newest.
    """

    appended = Signal()
    filled = Signal(int)
    legible = Signal()
    reset = Signal()

    def __init__(self, history: HistoryTree | None = None, parent: QObject | None = None) -> None:
        QObject.__init__(self, parent)
        Path.__init__(self, history or HistoryTree(self))
        self._looked_at: int | None = None
        self._forked: list[tuple[int, int, int | None, int]] = []  # since the live moment, and in no record yet
        self._since_change: CacheBytes | None = None  # while no node has the change yet
        self._changed: dict[int, CacheBytes] = {}  # what was held after a change that a node without a step has
        self._is_untold = False
        self.history.reshaped.connect(self._forget_deleted)  # before any view reads it

    @property
    def is_before_change(self) -> bool:
        """Whether the cache mode was changed after the newest record, which therefore tells of the mode before."""
        return self._held_since_change(None) is not None

    def num_bytes(self, step: int | None) -> CacheBytes | None:
        """What the cache held after a step; for None what it holds now, a change of the mode included."""
        if (held := self._held_since_change(step)) is not None:
            return held
        record = self.at(step)
        return record.num_bytes if record is not None else None

    def _held_since_change(self, step: int | None) -> CacheBytes | None:
        """What a cache held into which the sequences moved between the last record up to a moment and that moment; None
        where they did not."""
        if step is None and self._since_change is not None:
            return self._since_change
        node, record = self.tip if step is None else step, self.at(step)
        while node is not None and node in self.history and record is not None and node != record.step:
            if (held := self._changed.get(node)) is not None:
                return held
            node = self.history.node(node).parent
        return None

    def begin(self, seq_id: int, token_ids: Sequence[int], texts: Sequence[str]) -> None:
        """A prompt was taken: its first tokens may be served by a prefix that is there already, and fed by no step."""
        self._prompts[seq_id] = tuple(zip(token_ids, texts, strict=True))

    def append(self, records: Iterable[StepRecord]) -> None:
        """Add records; O(what is new). One whose parent is not the newest node is shown on the path to that parent.
        Emits once."""
        is_new = is_other_path = False
        for record in records:
            is_new = True
            if record.step in self.history:
                if not self.history.is_on_path(record.step, self._end()):
                    continue  # a moment of another branch is looked at
                if record.parent != self.tip:
                    is_other_path |= self.follow(record.parent)
            self._enter(record)
        if is_other_path:
            self.reset.emit()
        if is_new:
            self._forked.clear()
            self._since_change = None
            self._is_untold = True
            self.appended.emit()

    def replace(self, record: StepRecord) -> int | None:
        """Another record of a step that is there; of pages it says something else, of tokens it does not. Returns its
        index, None where it is not on the path."""
        index = self.index_of(record.step)
        if index is not None:
            self._records[index] = record
            self._is_untold = True
        return index

    def fill(self, step: int, seq_id: int, first_position: int, values: tuple[float, ...]) -> None:
        """The surprisals of a long prompt's tokens from a position on, which the record of a step left open."""
        if (known := self.history.record(step)) is not None:
            self.history.replace(known.with_surprisal(seq_id, first_position, values))
        for lane in self._lanes.values():
            lane.fill(step, first_position, values)
        record = self.record(step)
        if (
            record is not None
            and (index := self.replace(record.with_surprisal(seq_id, first_position, values))) is not None
        ):
            self.filled.emit(index)

    def tell(self, *, again: bool = False) -> None:
        """What was appended since the last time may be read now; `again` even where nothing was."""
        if self._is_untold or (again and self._records):
            self._is_untold = False
            self.legible.emit()

    def change_mode(self, num_bytes: CacheBytes) -> None:
        """The sequences have moved into another cache, which holds so much, and no step has been taken in it yet."""
        if self._records:
            self._since_change = num_bytes
            self.legible.emit()

    def add_node(self, step: int) -> None:
        """A node that no step made is live: what was done since the moment before is its own, a change of the mode
        too."""
        if self._since_change is not None:
            self._changed[step] = self._since_change
        self.go_to(step)

    def branch(self, seq_id: int, parent: int, step: int | None, num_tokens: int) -> None:
        """A sequence of `num_tokens` tokens, read or not, has just been forked: until it is stepped it stands where its
        parent stood after `step`."""
        self._prompts[seq_id] = self._prompts.get(parent, ())[:num_tokens]
        self._forked.append((seq_id, parent, step, num_tokens))
        if self.is_of_live and self._fork(seq_id, parent, step, num_tokens):
            self.reset.emit()

    def go_to(self, step: int | None) -> None:
        """Another node of the history is live: show the path to it, or to what is looked at; None: there is nothing
        yet."""
        self._forked.clear()
        was_changed = self.is_before_change
        is_other = self.follow(self._end(step))
        self._since_change = None
        if is_other or was_changed:
            self.reset.emit()

    def _forget_deleted(self) -> None:
        """What is left of the path that is shown, where nodes of the history were deleted."""
        if self.tip is not None and self.tip not in self.history and self.follow(self._end()):
            self.reset.emit()

    def on_selected(self, _old: Selected, new: Selected) -> None:
        """Another moment is looked at: show a path that goes through it."""
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
        """Whether the moment that is looked at is not on the path to the live one, which alone has its rows."""
        step, history = self._looked_at, self.history
        return step is not None and step in history and not history.is_on_path(step, history.live)

    @property
    def live(self) -> int | None:
        """The moment that the engine is at."""
        return self.history.live if len(self.history) else self.tip

    @property
    def is_of_live(self) -> bool:
        """Whether the path that is shown is the one to the live moment."""
        return self.tip not in self.history or self.history.is_on_path(self.tip or 0, self.history.live)

    @property
    def live_path(self) -> Path:
        """The path to the live moment, whatever is looked at."""
        return self if self.is_of_live else self._elsewhere(self.history.live)

    @property
    def num_steps_ahead(self) -> int:
        """How many steps the moment that is looked at is ahead of the live one; 0 where it did not come of that."""
        step, history = self._looked_at, self.history
        if (
            not self.is_elsewhere
            or step is None
            or not (history.live is None or history.is_on_path(history.live, step))
        ):
            return 0
        return sum(history.record(node) is not None for node in history.path(step, above=history.live))

    def _end(self, live: int | None = None) -> int | None:
        """The newest moment of the path to be shown. A path of another branch stays while it has what is looked at."""
        history, step = self.history, self._looked_at
        live = history.live if live is None else live
        if step is None or step not in history:
            return live
        if not self.is_of_live and history.is_on_path(step, self.tip):
            return self.tip
        return live if history.is_on_path(step, live) else history.end_beyond(step)

    def clear(self) -> None:
        """Begin anew."""
        self._clear()
        self._looked_at = None
        self._since_change = None
        self._changed.clear()
        self.reset.emit()
