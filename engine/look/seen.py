"""What was counted and drawn of rows, so that the next picture of them costs only what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.look.canvas import Canvas
from engine.look.magnitudes import Blocks
from engine.look.source import Held
from engine.spec.codec import Part

if TYPE_CHECKING:
    from engine.session.queries import Queries

# By part, layer, kv head and channel: the position of the number farthest from zero, and that number
Peaks = dict[tuple[Part, int, int, int], tuple[int, float]]


class Seen:
    """What was counted and drawn of the rows of one owner: to be discarded when rows that were there before may have
    other numbers."""

    def __init__(self, rows_of: object) -> None:
        self.rows_of = rows_of
        self.blocks, self.wall, self.peaks = Blocks(), Canvas(), Peaks()
        self.queries: Queries | None = None
        self.full: dict[int, Held] = {}


class SeenSequences:
    """What was seen of the sequences of a session."""

    def __init__(self) -> None:
        self._of: dict[int, Seen] = {}

    def of(self, seq_id: int, cache: object) -> Seen:
        """What was seen of a sequence in this cache; what was seen of it in any other is discarded."""
        known = self._of.get(seq_id)
        if known is None or known.rows_of is not cache:
            known = self._of[seq_id] = Seen(cache)
        return known

    def forget(self, seq_id: int) -> None:
        """Discard it for a sequence that is removed, or whose rows may have been overwritten."""
        self._of.pop(seq_id, None)

    def forget_all(self) -> None:
        """Discard all, when other sequences become the present ones."""
        self._of.clear()
