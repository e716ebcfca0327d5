"""What goes wrong is told once, in one sentence, by what was raised; the session lives on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from msgspec import structs

from engine.errors import InputError
from engine.loop.failures import is_out_of_memory, plain
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import (
    Command,
    Force,
    GoTo,
    LoadModel,
    RemoveSequence,
    Run,
    SetCache,
    Step,
    SubmitPrompt,
    TakeSlice,
)
from engine.wire.events import Failed, Restarted
from engine.wire.exporting import Export
from engine.wire.records import StepRecord
from engine.wire.requests import WallRequest
from tests.engine.loop.driver import GROWING, Driver, prompt


@pytest.mark.parametrize(
    "command",
    [
        SubmitPrompt(Prompt(token_ids=(9999,))),
        SubmitPrompt(Prompt(token_ids=(3,) * 1000)),
        SubmitPrompt(Prompt(text="no tokenizer")),
        Force(7, (3,)),
        Force(0, (-1,)),
        GoTo(77),
        RemoveSequence(7),
        SetCache(CacheSpec("static", max_length=2)),
        TakeSlice(WallRequest(7, 6, 6, "keys", False, 8, 8)),
        Export(Path("/no/such/folder/x.safetensors"), 0),
        Export(Path("x.safetensors"), 7),
        Export(Path("x.safetensors"), 0, 999),
        LoadModel(ModelSpec("/no/such/model"), GROWING),
        LoadModel(ModelSpec("someone/not-here"), GROWING),
    ],
    ids=lambda c: f"{type(c).__name__} {str(c)[-60:]}",
)
def test_what_cannot_be_done_becomes_one_failed_and_the_session_lives_on(driver: Driver, command: Command) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    before = driver.rest()
    driver.forget()
    driver.send(structs.replace(command, id=41))
    failed = driver.wait_for(Failed)
    after = driver.rest()
    assert failed.reply_to == 41
    assert "\n" not in failed.message
    assert len(driver.of(Failed)) == 1
    assert not driver.of(Restarted)
    assert (after.model, after.cache, after.sequences, after.step) == (
        before.model,
        before.cache,
        before.sequences,
        before.step,
    )
    driver.send(Step())
    assert driver.wait_for(StepRecord).step == 1


def test_an_unexpected_error_in_a_step_is_told_once_and_stops_the_run(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.session.stepper.choose", lambda *args: 1 / 0)
        driver.send(Run())
        failed = driver.wait_for(Failed)
        assert "ZeroDivisionError" in failed.message
        driver.rest()
        assert len(driver.of(Failed)) == 1
    driver.send(Step())
    driver.wait_for(StepRecord, 2)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("no room"), "not enough memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"),
            "not enough",
        ),
        (RuntimeError("the allocation of heads is odd"), "Something unexpected went wrong (RuntimeError"),
        (ValueError("out of memory is what this is not"), "Something unexpected went wrong (ValueError"),
        (InputError("The pool is full: remove a sequence."), "The pool is full: remove a sequence."),
    ],
    ids=lambda case: str(case)[:20],
)
def test_a_step_says_what_went_wrong_by_what_was_raised(driver: Driver, error: Exception, words: str) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)

    def fail(*args: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.session.stepper.choose", fail)
        driver.send(Step())
        message = driver.wait_for(Failed).message
        driver.rest()
    assert message.startswith(words) or words in message
    assert isinstance(error, InputError) == (message == str(error))


def test_where_torch_cannot_be_imported_the_error_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert plain(ImportError("no torch here")).startswith(
        "Something unexpected went wrong (ImportError: no torch here)"
    )
    assert is_out_of_memory(MemoryError())


def test_torchs_own_refusals_of_memory_are_known_for_what_they_are() -> None:

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 46)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2).view(3)
    assert not is_out_of_memory(caught.value)
