"""Surprisals of long prompts in a loop: behind the steps, in the pauses of a run, and before an export."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from engine.model import batch
from engine.snapshot.read import SnapshotFile
from engine.wire.commands import Pause, RemoveSequence, Run, SetPace, Step
from engine.wire.events import Event, Failed, PromptSurprisal
from engine.wire.exporting import Export, Exported
from engine.wire.records import StepRecord
from tests.engine.loop.driver import Driver, prompt

LENGTH = 40


@pytest.fixture(autouse=True)
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prompt is long, and is read four tokens at a time."""
    monkeypatch.setattr(batch, "PRODUCTS_IN_STEP", 0)
    monkeypatch.setattr(batch, "SLICE_LOGITS", 4 * 128)


def positions(driver: Driver) -> list[int]:
    return [each.first_position + i for each in driver.of(PromptSurprisal) for i in range(len(each.values))]


def is_told(driver: Driver) -> bool:
    return positions(driver) == list(range(1, LENGTH))


def test_it_comes_slice_by_slice_when_no_step_is_left(driver: Driver) -> None:
    driver.send(prompt(LENGTH), Step(4))
    driver.wait(lambda: is_told(driver))
    told: list[Event] = [event for event in driver.events if isinstance(event, StepRecord | PromptSurprisal)]
    assert len(list(takewhile(lambda event: isinstance(event, StepRecord), told))) == 4
    assert driver.of(StepRecord)[0].sequences[0].surprisal == (None,) * LENGTH
    assert [len(each.values) for each in driver.of(PromptSurprisal)] == [4] * 9 + [3]
    driver.rest()
    assert driver.session.bytes().looking < driver.of(StepRecord)[-1].num_bytes.looking


def test_a_run_that_waits_for_its_pace_lets_it_come(driver: Driver) -> None:
    driver.send(SetPace(0.001, None), prompt(LENGTH), Run())
    driver.wait(lambda: is_told(driver))
    assert driver.status.running
    assert len(driver.of(StepRecord)) <= 2
    driver.send(Pause())
    assert not driver.rest().running


def test_a_prompt_that_is_removed_is_not_computed_any_more(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command comes while the first slice is computed."""
    sent = []
    advance = batch.Surprisal.advance

    def removed_in_the_middle(self: batch.Surprisal) -> object:
        if not sent:
            sent.append(True)
            driver.send(RemoveSequence(0))
        return advance(self)

    monkeypatch.setattr(batch.Surprisal, "advance", removed_in_the_middle)
    driver.send(prompt(LENGTH), Step())
    driver.wait_for(PromptSurprisal)
    driver.rest()
    assert positions(driver) == [1, 2, 3, 4], "a command waits for one slice and no more"
    assert not driver.session.history.surprisal.is_waiting


def test_an_export_waits_for_it(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "cache.safetensors"
    driver.send(prompt(LENGTH), Step())
    record = driver.wait_for(StepRecord)
    driver.send(Export(path, 0, records=(record,)))
    driver.wait_for(Exported)
    driver.wait(lambda: is_told(driver))
    with SnapshotFile(path) as file:
        known = tuple(value for each in driver.of(PromptSurprisal) for value in each.values)
        assert file.records[0].sequences[0].surprisal == (None, *known)


def test_a_slice_that_fails_is_told_and_steps_go_on(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(batch, "cross_entropy", lambda *_, **__: 1 / 0)
        driver.send(prompt(LENGTH), Step())
        failed = driver.wait_for(Failed)
        driver.rest()
    assert failed.reply_to is None
    driver.send(Step())
    driver.wait_for(StepRecord, 2)
    driver.rest()
    assert len(driver.of(Failed)) == 1
