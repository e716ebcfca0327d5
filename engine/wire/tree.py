"""The nodes of a session's history tree: every step and every edit is a node, and going back deletes nothing.

Nodes are numbered in the order in which they were made, steps and edits together, so that a number always means the
same step: a branch that begins after step 5 of 20 continues with step 21. On a path from the root the numbers ascend,
with gaps where other branches were extended meanwhile.
"""

from __future__ import annotations

from engine.spec.cache import CacheSpec
from engine.wire.message import Count, Nested
from engine.wire.records import Change, SequenceStep, StepRecord, StopReason


class PlannedPart(Nested, frozen=True):
    """What a step did to a sequence: it computed the tokens `first_position … num_tokens` and chose `sampled`.
    `forced`: the computed token was forced. `token_id` is the token that a decode step computed; None for prompts."""

    seq_id: Count
    first_position: Count
    num_tokens: Count
    sampled: Count | None
    forced: bool
    stop: StopReason | None
    token_id: Count | None = None

    @classmethod
    def of(cls, step: SequenceStep) -> PlannedPart:
        """The plan that repeats a recorded step of a sequence."""
        is_prompt = step.phase == "prefill" or len(step.token_ids) != 1
        computed = None if is_prompt else step.token_ids[0]
        return cls(step.seq_id, step.first_position, step.num_tokens, step.sampled, step.forced, step.stop, computed)


class PlannedStep(Nested, frozen=True):
    """A step to be repeated: its cache mode, what it does to which sequences, the sequences preempted before it, and
    the runner of its forward passes (empty: whichever is chosen)."""

    step: int
    cache: CacheSpec
    parts: tuple[PlannedPart, ...]
    preempted: tuple[Count, ...]
    runner: str = ""

    @classmethod
    def of(cls, record: StepRecord) -> PlannedStep:
        """The plan that repeats a recorded step."""
        parts = tuple(map(PlannedPart.of, record.sequences))
        return cls(record.step, record.cache, parts, record.preempted, record.runner)


class Node(Nested, frozen=True):
    """A step or edit that can be returned to: the result of `changes` to the `parent` (None: to an empty session),
    followed by the step `work` unless that is None. `checksums` are those of the K and V rows that the step wrote, one
    for each layer with rows."""

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


class KeptStateBytes(Nested, frozen=True):
    """A kept state: bytes of K and V that it shares with others, and those of its own. Going to any other step computes
    it again, or copies from one of these."""

    step: int
    shared: int
    private: int
