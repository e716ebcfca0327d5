"""Steps that cannot be recorded, or are not what was recorded: said once, and computed by the fused decoder."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

import pytest
import torch

from engine.model.runners.launch import Launch, ReplayFunction, RerunRecorder, StepFunction
from engine.spec.model import RUNNERS, RunnerName
from engine.spec.sampling import Prompt
from tests.engine.model.runners.test_launch import LAYOUTS, compare, session_of
from tests.engine.tiny import prompt_ids


class Failing(RerunRecorder):
    """What a card says that cannot record."""

    def record(self, step: StepFunction) -> object:  # type: ignore[override]
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")


@pytest.mark.parametrize("runner", ["graph", "compile"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_cannot_be_recorded_is_said_once_and_computed_by_the_fused_decoder(
    layout: str, runner: RunnerName, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, eager = session_of(LAYOUTS[layout], [20], runner), session_of(LAYOUTS[layout], [20], "fused")
    monkeypatch.setattr("engine.model.runners.runners.why_not_compiled", lambda device: "")
    monkeypatch.setattr("engine.model.runners.runners.recorder_of", lambda name, device, compiling: Failing())
    told: list[str] = []

    @contextmanager
    def announce(label: str) -> Iterator[None]:
        told.append(label)
        yield

    session.model.runners.announce = announce
    for _ in range(3):
        assert session.step().runner == "fused"
        eager.step()
    compare(session, eager)
    assert told == ["Recording a step of up to 64 tokens"]
    note = session.model.runners.state.note
    why = "CUDA error: operation not permitted when stream is capturing"
    assert note == f"no {RUNNERS[runner].label} ({why}): the fused decoder is used"


class Stale(RerunRecorder):
    """What is given in place of the outputs of a replay that would be right: those of the first one."""

    def record(self, step: StepFunction) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
        outputs, replay = super().record(step)
        first = [output.clone() for output in outputs]

        def stale() -> None:
            replay()
            for output, old in zip(outputs, first, strict=True):
                output.copy_(old)

        return outputs, stale


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_recording_that_has_numbers_baked_in_is_found_out_by_its_second_replay(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, eager = session_of(LAYOUTS[layout], [20]), session_of(LAYOUTS[layout], [20], "fused")
    monkeypatch.setattr("engine.model.runners.runners.recorder_of", lambda name, device, compiling: Stale())
    assert [session.step().runner for _ in range(3)] == ["graph", "fused", "fused"]
    for _ in range(3):
        eager.step()
    compare(session, eager)
    assert "other numbers than the same step computed at once" in session.model.runners.state.note


class Small(RerunRecorder):
    """A card without room for a recording, as long as `is_full`."""

    is_full = True

    def record(self, step: StepFunction) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
        if not self.is_full:
            return super().record(step)
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 MiB. GPU 0 has no more.")
        finally:  # what the end of the capture says then
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_memory_ran_out_for_is_the_only_one_that_is_not_recorded(
    layout: str, monkeypatch: pytest.MonkeyPatch, launches: WeakSet[Launch]
) -> None:
    session = session_of(LAYOUTS[layout], [62])
    monkeypatch.setattr("engine.model.runners.launch.free_bytes", lambda device: 7 << 30)
    card = Small()
    card.is_full = False
    monkeypatch.setattr("engine.model.runners.runners.recorder_of", lambda name, device, compiling: card)
    runners, used = session.model.runners, [session.step().runner]
    (recorded,) = map(id, launches)
    card.is_full = True
    used += [session.step().runner, session.step().runner]
    assert used == ["graph", "graph", "fused"]
    gc.collect()
    assert recorded not in map(id, launches), "room was made"
    assert runners.note == (
        "no recorded steps of up to 96 tokens (memory ran out, 3.0 MiB more were needed and 7.0 GiB are free on cpu; "
        "to have them take a cache that keeps fewer rows or fewer bits, or remove a sequence): "
        "the fused decoder is used"
    )
    card.is_full = False
    assert session.step().runner == "fused", "it is not tried at every step"
    session.submit(Prompt(token_ids=prompt_ids(5, 3)))
    session.step()
    # the second has a shorter bucket, and together they are another recording
    assert session.step().runner == ("graph" if layout == "paged" else "fused+graph")
    runners.choose("graph")
    assert not runners.note
    assert session.step().runner == "graph"


class Lost(RerunRecorder):
    """A card that fails while a step is recorded."""

    def record(self, step: StepFunction) -> object:  # type: ignore[override]
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_card_that_fails_is_not_taken_for_a_step_that_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(LAYOUTS["growing"], [20])
    monkeypatch.setattr("engine.model.runners.runners.recorder_of", lambda name, device, compiling: Lost())
    with pytest.raises(RuntimeError, match="illegal memory access"):
        session.step()
    assert not session.model.runners.note
