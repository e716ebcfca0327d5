"""What the engine says of itself while it runs is told where somebody may wait for it, and not for counts alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from app.models.status import NOT_YET, Status
from engine.spec.cache import cache_preset
from engine.spec.sampling import SamplingParams
from engine.wire.status import CaptureState, EngineStatus, SequenceInfo, Work
from tests.app import samples

Change = Callable[[EngineStatus], EngineStatus]


def running() -> EngineStatus:
    infos = tuple(SequenceInfo(seq_id, "decode", 9 + seq_id, 4, 3, None) for seq_id in range(2))
    return replace(samples.status(5), running=True, sequences=infos)


def of_one(number: int, **changes: object) -> Change:
    """The same of one sequence."""

    def change(status: EngineStatus) -> EngineStatus:
        infos = list(status.sequences)
        infos[number] = replace(infos[number], **changes)
        return replace(status, sequences=tuple(infos))

    return change


def of_all(**changes: object) -> Change:
    return lambda status: replace(status, **changes)


CHANGES: dict[str, tuple[Change, bool]] = {
    "nothing": (of_all(), False),
    "a step": (of_all(step=6), False),
    "tokens of the first": (of_one(0, num_tokens=10, sampled=7), False),
    "tokens of the second": (of_one(1, num_tokens=11), False),
    "what looking takes": (of_all(capture=CaptureState("rows", costs_ms=(("rows", 2.0),))), False),
    "how much is viewed": (of_all(capture=CaptureState("everything")), True),
    "the first stops": (of_one(0, stop="length"), True),
    "the second stops": (of_one(1, stop="length"), True),
    "the first waits": (of_one(0, phase="waiting"), True),
    "the second is drawn otherwise": (of_one(1, sampling=SamplingParams(0.5)), True),
    "the second is another": (of_one(1, seq_id=7), True),
    "one is gone": (lambda status: replace(status, sequences=status.sequences[:1]), True),
    "it works on something": (of_all(work=Work("Measuring", 1, 2)), True),
    "another mode": (of_all(cache=cache_preset("h2o").spec), True),
    "it rests": (of_all(running=False), True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_counts_are_told_by_nobody_and_anything_else_is(qapp: object, name: str) -> None:
    change, is_told = CHANGES[name]
    status, before = Status(), running()
    told: list[tuple[EngineStatus, EngineStatus]] = []
    status.changed.connect(lambda old, new: told.append((old, new)))
    status.set(before)
    after = change(before)
    status.set(after)
    assert told == [(NOT_YET, before), *([(before, after)] if is_told else [])]
    assert status.now is after
    status.set(replace(before, running=False))
    told.clear()
    status.set(replace(before, running=False, step=9))
    assert not told, "at rest neither"
