"""Steps as they are to be done once more: which tokens of which sequences were fed, and what was chosen."""

from __future__ import annotations

from engine.spec.cache import CacheSpec
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
