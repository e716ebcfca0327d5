"""Compares replayed steps with recorded ones: the differences, and how much was compared. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from engine.wire.records import SequenceStep, StepRecord
from engine.wire.tree import Node, PlannedPart, PlannedStep


class ReplayDifference(Struct, frozen=True):
    """Another token than recorded, or rows of a layer with another checksum. `seq_id` is None for rows that several
    sequences wrote in one step; `layer` is None for a token."""

    step: int
    what: str
    expected: int | None
    found: int | None
    seq_id: int | None = None
    layer: int | None = None

    def describe(self) -> str:
        """The difference in words."""
        where = "" if self.seq_id is None else f", sequence {self.seq_id}"
        if self.layer is not None:
            return f"step {self.step}{where}, layer {self.layer}: the rows of K and V are others"
        return f"step {self.step}{where}: {self.what} token {self.found}, where it was {self.expected}"


def differences(node: Node, record: StepRecord, layers: Sequence[int]) -> Iterator[ReplayDifference]:
    """How a replayed step differs from its node; `layers` are the indices of the layers with rows. Rows are not
    compared if a prefix hit of the original run was missing, since the tokens were then fed in other chunks."""
    if node.work is None:
        return
    found = {step.seq_id: step for step in record.sequences}
    for part in node.work.parts:
        yield from _of_tokens(node.step, part, found.get(part.seq_id))
    if not are_same_pieces(node.work, record):
        return
    seq_id = node.work.parts[0].seq_id if len(node.work.parts) == 1 else None
    if len(node.checksums) == len(record.checksums):
        for layer, was, now in zip(layers, node.checksums, record.checksums, strict=False):
            if was != now:
                yield ReplayDifference(node.step, "rows", was, now, seq_id, layer)


def _of_tokens(step: int, part: PlannedPart, now: SequenceStep | None) -> Iterator[ReplayDifference]:
    if now is None or now.num_tokens != part.num_tokens:
        count = None if now is None else now.num_tokens
        yield ReplayDifference(step, "after it stands", part.num_tokens, count, part.seq_id)
        return
    if part.token_id is not None and now.token_ids[-1] != part.token_id:
        yield ReplayDifference(step, "it fed", part.token_id, now.token_ids[-1], part.seq_id)
    if part.sampled != now.sampled:
        yield ReplayDifference(step, "it chose", part.sampled, now.sampled, part.seq_id)


def are_same_pieces(work: PlannedStep, record: StepRecord) -> bool:
    """Whether every sequence was fed from the same position on, so that its chunk was the same."""
    found = {step.seq_id: step for step in record.sequences}
    return all(part.seq_id in found and found[part.seq_id].first_position == part.first_position for part in work.parts)


class Compared:
    """Counts what was compared: tokens fed or chosen, checksums of K and V, and by reason the nodes whose rows were not
    compared."""

    def __init__(self) -> None:
        self.num_tokens = self.num_checksums = 0
        self.rows_not_compared: Counter[str] = Counter()

    def add(self, node: Node, record: StepRecord | None, layers: Sequence[int]) -> None:
        """Count a replayed node."""
        if node.work is not None:
            parts = node.work.parts
            self.num_tokens += sum((part.token_id is not None) + (part.sampled is not None) for part in parts)
        if why := why_rows_not_compared(node, record):
            self.rows_not_compared[why] += 1
        else:
            self.num_checksums += min(len(layers), len(node.checksums))

    def describe(self) -> str:
        """The counts in one line."""
        words = f"compared: {self.num_tokens:,} tokens, {self.num_checksums:,} checksums of K and V"
        for why, count in sorted(self.rows_not_compared.items()):
            words += f"; not the rows of {count:,} {'moment' if count == 1 else 'moments'}: {why}"
        return words


def why_rows_not_compared(node: Node, record: StepRecord | None) -> str:
    """Why the K and V of a node were not compared; empty where their checksums were."""
    if node.work is None or record is None:
        return "an edit or a change alone, which no step wrote"
    if not node.checksums:
        return "no checksum was written of them"
    if len(node.checksums) != len(record.checksums):
        return "their checksums are of another number of layers"
    if not are_same_pieces(node.work, record):
        return "tokens came from pages of an earlier run, and were computed in other pieces"
    return ""
