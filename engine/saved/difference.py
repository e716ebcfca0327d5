"""Where a step that was done once more is not what it was: by moment, sequence and layer. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from engine.wire.planned import PlannedPart, PlannedStep
from engine.wire.records import SequenceStep, StepRecord
from engine.wire.tree import Node


class Difference(Struct, frozen=True):
    """A token that another one stands for, or rows of a layer with another checksum. `seq_id` is None of rows that
    several sequences wrote in one step, `layer` of a token."""

    step: int
    what: str
    expected: int | None
    found: int | None
    seq_id: int | None = None
    layer: int | None = None

    def describe(self) -> str:
        """In a few words."""
        where = "" if self.seq_id is None else f", sequence {self.seq_id}"
        if self.layer is not None:
            return f"step {self.step}{where}, layer {self.layer}: the rows of K and V are others"
        return f"step {self.step}{where}: {self.what} token {self.found}, where it was {self.expected}"


def differences(node: Node, record: StepRecord, layers: Sequence[int]) -> Iterator[Difference]:
    """What is not as it was; `layers` are the numbers of those that have rows. Where tokens came from pages of an
    earlier run, they are computed anew in other pieces: rows of that step are not compared."""
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
                yield Difference(node.step, "rows", was, now, seq_id, layer)


def _of_tokens(step: int, part: PlannedPart, now: SequenceStep | None) -> Iterator[Difference]:
    if now is None or now.num_tokens != part.num_tokens:
        count = None if now is None else now.num_tokens
        yield Difference(step, "after it stands", part.num_tokens, count, part.seq_id)
        return
    if part.token_id is not None and now.token_ids[-1] != part.token_id:
        yield Difference(step, "it fed", part.token_id, now.token_ids[-1], part.seq_id)
    if part.sampled != now.sampled:
        yield Difference(step, "it chose", part.sampled, now.sampled, part.seq_id)


def are_same_pieces(work: PlannedStep, record: StepRecord) -> bool:
    """Whether every sequence was fed the same tokens in one piece."""
    found = {step.seq_id: step for step in record.sequences}
    return all(part.seq_id in found and found[part.seq_id].first_position == part.first_position for part in work.parts)
