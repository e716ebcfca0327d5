"""Steps and sequences of an engine that is gone, as another one shall do them once more."""

from __future__ import annotations

from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
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
    """A step to be done once more: the mode it ran in, what it did to which sequences, and those that gave their pages
    up before it."""

    step: int
    cache: CacheSpec
    parts: tuple[PlannedPart, ...]
    preempted: tuple[int, ...]

    @classmethod
    def of(cls, record: StepRecord) -> PlannedStep:
        """As it was recorded."""
        return cls(record.step, record.cache, tuple(map(PlannedPart.of, record.sequences)), record.preempted)


class PlannedFork(Part, frozen=True):
    """A sequence was forked from what `parent` had after `step`, when `until` was the newest."""

    parent: int
    step: int
    until: int


class PlannedSequence(Part, frozen=True):
    """A sequence with all its tokens, those of its prompt that were not read yet included, and how it stands at the
    end. One that `is_gone` was removed; its steps are those of the others too."""

    seq_id: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    sampling: SamplingParams
    sampled: int | None
    stop: StopReason | None
    fork: PlannedFork | None
    is_gone: bool
