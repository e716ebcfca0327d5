"""How much of a session that was done once more was compared, and what was not, and why. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.saved.difference import are_same_pieces
from engine.wire.records import StepRecord
from engine.wire.tree import Node


class Compared:
    """Tokens that were fed or chosen, checksums of K and V, and the moments whose rows were not compared, by why."""

    def __init__(self) -> None:
        self.num_tokens = self.num_checksums = 0
        self.rows_not_compared: Counter[str] = Counter()

    def add(self, node: Node, record: StepRecord | None, layers: Sequence[int]) -> None:
        """A moment was done once more."""
        if node.work is not None:
            parts = node.work.parts
            self.num_tokens += sum((part.token_id is not None) + (part.sampled is not None) for part in parts)
        if why := why_rows_not_compared(node, record):
            self.rows_not_compared[why] += 1
        else:
            self.num_checksums += min(len(layers), len(node.checksums))

    def describe(self) -> str:
        """In a line."""
        words = f"compared: {self.num_tokens:,} tokens, {self.num_checksums:,} checksums of K and V"
        for why, count in sorted(self.rows_not_compared.items()):
            words += f"; not the rows of {count:,} {'moment' if count == 1 else 'moments'}: {why}"
        return words


def why_rows_not_compared(node: Node, record: StepRecord | None) -> str:
    """Why nothing is said of the K and V of a moment; empty where their checksums were compared."""
    if node.work is None or record is None:
        return "an edit or a change alone, which no step wrote"
    if not node.checksums:
        return "no checksum was written of them"
    if len(node.checksums) != len(record.checksums):
        return "their checksums are of another number of layers"
    if not are_same_pieces(node.work, record):
        return "tokens came from pages of an earlier run, and were computed in other pieces"
    return ""
