"""The history of a session is a tree: every step is a node, and so is every edit; nothing is deleted by going back.

Nodes share one sequence of numbers with the steps, in the order in which they were made, so that a number always means
the same moment: a branch that begins after step 5 of 20 goes on with step 21. A path from the root to a node therefore
has ascending numbers, with gaps where other branches were made meanwhile.
"""

from __future__ import annotations

from engine.spec.cache import CacheSpec
from engine.wire.changes import Change
from engine.wire.message import Part
from engine.wire.records import SequenceStep, StepRecord, StopReason


class PlannedPart(Part, frozen=True):
    """What a step did to a sequence: it fed the tokens `first_position … num_tokens`, a single one `forced` or not, and
    `sampled` was chosen next. `token_id` is the one that a decode step fed, None of a prompt's."""

    seq_id: int
    first_position: int
    num_tokens: int
    sampled: int | None
    forced: bool
    stop: StopReason | None
    token_id: int | None = None

    @classmethod
    def of(cls, step: SequenceStep) -> PlannedPart:
        """As it was recorded."""
        is_prompt = step.phase == "prefill" or len(step.token_ids) != 1
        fed = None if is_prompt else step.token_ids[0]
        return cls(step.seq_id, step.first_position, step.num_tokens, step.sampled, step.forced, step.stop, fed)


class PlannedStep(Part, frozen=True):
    """A step to be done once more: the mode it ran in, what it did to which sequences, those that gave their pages up
    before it, and the runner of its forwards (empty: whichever is chosen)."""

    step: int
    cache: CacheSpec
    parts: tuple[PlannedPart, ...]
    preempted: tuple[int, ...]
    runner: str = ""

    @classmethod
    def of(cls, record: StepRecord) -> PlannedStep:
        """As it was recorded."""
        parts = tuple(map(PlannedPart.of, record.sequences))
        return cls(record.step, record.cache, parts, record.preempted, record.runner)


class Node(Part, frozen=True):
    """A moment that can be returned to: what came of `changes` to the `parent` (None: to an empty session), and then,
    unless it is None, of a step. `checksums` of the K and V rows that the step wrote, one a layer with rows."""

    step: int
    parent: int | None
    changes: tuple[Change, ...]
    cache: CacheSpec
    work: PlannedStep | None = None
    checksums: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: StepRecord) -> Node:
        """The node of a recorded step."""
        return cls(record.step, record.parent, record.changes, record.cache, PlannedStep.of(record), record.checksums)


class BranchBytes(Part, frozen=True):
    """A moment that is not the live one and is kept as it stood: bytes of K and V that it shares with others, and those
    of its own, as it is now. Going to any other moment computes it again, or copies from one of these."""

    step: int
    shared: int
    private: int
