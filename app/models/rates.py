"""The rates in the status line, computed from the latest steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from app.models.slices import Slices
from app.models.timeline import Timeline
from engine.wire.records import StepRecord
from engine.wire.status import SequenceInfo

RECENT_STEPS = 32
RECENT_CHUNKS = 4


class Rates(Struct, frozen=True):
    """Tokens per second, time to the first token, and the share of time spent on looking. None: nothing was measured
    yet."""

    tokens_per_s: float | None
    first_token_ms: float | None
    looking_ratio: float | None


def rates(timeline: Timeline, slices: Slices, seq_id: int) -> Rates:
    """Decode speed, time to a sequence's first token, and the share of the engine's time spent on statistics and
    pictures."""
    recent = timeline.records[-RECENT_STEPS:]
    return Rates(_speed(recent), _first_token_ms(timeline, seq_id), _looking(recent, slices))


def seconds_left(timeline: Timeline, info: SequenceInfo) -> float | None:
    """How long the rest of a prompt's prefill takes at the speed of its last chunks; None before the first chunk."""
    chunks: list[StepRecord] = []
    for record in reversed(timeline.records[-RECENT_CHUNKS:]):
        part = record.of(info.seq_id)
        if record.phase != "prefill" or part is None or part.sampled is not None:
            break
        chunks.insert(0, record)
    if not chunks:
        return None
    if len(chunks) == 1:
        took_s, num_tokens = chunks[0].timings.total_ms / 1e3, _num_fed(chunks, info.seq_id)
    else:  # wall-clock time, as it includes the time spent on pictures between two chunks
        took_s, num_tokens = chunks[-1].wall_time - chunks[0].wall_time, _num_fed(chunks[1:], info.seq_id)
    return took_s / num_tokens * max(0, info.num_prompt_tokens - info.num_tokens) if num_tokens else None


def _num_fed(records: Iterable[StepRecord], seq_id: int) -> int:
    return sum(len(part.token_ids) for record in records if (part := record.of(seq_id)) is not None)


def _speed(recent: Iterable[StepRecord]) -> float | None:
    decoded = [record for record in recent if record.phase == "decode"]
    total_ms = sum(record.timings.total_ms for record in decoded)
    num_tokens = sum(len(part.token_ids) for record in decoded for part in record.sequences)
    return num_tokens / total_ms * 1000 if total_ms > 0 else None


def _first_token_ms(timeline: Timeline, seq_id: int) -> float | None:
    """The time of a sequence's prefill, once it has chosen a token; None for a fork, which had no prefill."""
    total_ms = 0.0
    for record in timeline.since_first(seq_id):
        part = record.of(seq_id)
        if part is None:
            continue
        if record.phase == "decode":
            return None
        total_ms += record.timings.total_ms
        if part.sampled is not None:
            return total_ms or None  # steps of an opened session have no times
    return None


def _looking(recent: Sequence[StepRecord], slices: Slices) -> float | None:
    if not recent:
        return None
    pictures = slices.cost_ms(recent[0].wall_time, recent[-1].wall_time)
    looking = pictures + sum(record.timings.observe_ms for record in recent)
    total = pictures + sum(record.timings.total_ms for record in recent)
    return looking / total if total > 0 else None
