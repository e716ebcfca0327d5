"""The few numbers of the status line, from the latest steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from app.models.slices import Slices
from app.models.timeline import Timeline
from engine.records import StepRecord

RECENT_STEPS = 32


@dataclass(frozen=True)
class Rates:
    """None where there is nothing to measure yet."""

    tokens_per_s: float | None
    first_token_ms: float | None
    looking_ratio: float | None


def rates(timeline: Timeline, slices: Slices) -> Rates:
    """Speed, time to the first token, and which share of the engine's work was done for looking."""
    recent = timeline.records[-RECENT_STEPS:]
    return Rates(_speed(recent), _first_token_ms(timeline.records), _looking(recent, slices))


def _speed(recent: Iterable[StepRecord]) -> float | None:
    decoded = [record for record in recent if record.phase == "decode"]
    total_ms = sum(record.timings.total_ms for record in decoded)
    num_tokens = sum(len(part.token_ids) for record in decoded for part in record.sequences)
    return num_tokens / total_ms * 1000 if total_ms > 0 else None


def _first_token_ms(records: Iterable[StepRecord]) -> float | None:
    prefill = takewhile(_is_prefill, records)
    total_ms = sum(record.timings.total_ms for record in prefill)
    return total_ms or None


def _is_prefill(record: StepRecord) -> bool:
    return record.phase == "prefill"


def _looking(recent: Sequence[StepRecord], slices: Slices) -> float | None:
    if not recent:
        return None
    pictures = slices.cost_ms(recent[0].wall_time, recent[-1].wall_time)
    looking = pictures + sum(record.timings.observe_ms for record in recent)
    total = pictures + sum(record.timings.total_ms for record in recent)
    return looking / total if total > 0 else None
