"""What goes wrong is told once, in one sentence, by what was raised; the session lives on."""

from __future__ import annotations

import sys
import weakref
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from msgspec import structs

from engine.__main__ import main
from engine.errors import InputError, is_of_device, is_out_of_memory
from engine.loop.reporter import in_a_sentence
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import Force, GoTo, LoadModel, RemoveSequence, Run, SetCache, Step, SubmitPrompt, TakePicture
from engine.wire.events import EngineLost, Failed, Restarted
from engine.wire.exporting import Export
from engine.wire.message import Command
from engine.wire.pictures import WallRequest
from engine.wire.records import StepRecord
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
        TakePicture(WallRequest(7, 6, 6, "keys", False, 8, 8)),
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
        patch.setattr("engine.session.stepper.sample", lambda *args: 1 / 0)
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
        patch.setattr("engine.session.stepper.sample", fail)
        driver.send(Step())
        message = driver.wait_for(Failed).message
        driver.rest()
    assert message.startswith(words) or words in message
    assert isinstance(error, InputError) == (message == str(error))


SITES = {
    "reading a prompt": "engine.model.loader.LoadedModel.forward",  # the forward of a prompt
    "a decode step": "engine.model.loader.LoadedModel.forward",
    "sampling": "engine.session.stepper.sample",
    "looking": "engine.session.observe.Observer.begin",
}
ALLOCATIONS = (
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to "
                 "allocate 3221225472 bytes. Error code 12"),
)  # fmt: skip


def run_out(error: Exception, held: list[weakref.ref[torch.Tensor]], *args: object, **more: object) -> None:
    """Fail as an allocator does, with something in hand."""
    workspace = torch.zeros(1000)
    held.append(weakref.ref(workspace))
    raise type(error)(*error.args)


@pytest.mark.parametrize("site", SITES)
def test_where_memory_runs_out_all_of_the_step_is_given_back_and_two_ways_are_named(driver: Driver, site: str) -> None:
    if site != "reading a prompt":
        driver.send(prompt(6), Step())
        driver.wait_for(StepRecord)
    else:
        driver.send(prompt(6))
    before = driver.rest()
    for error, needed in zip(ALLOCATIONS, ("at least", "2.5 GiB", "3.0 GiB"), strict=True):
        held: list[weakref.ref[torch.Tensor]] = []
        fail = partial(run_out, error, held)

        driver.forget()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SITES[site], fail)
            driver.send(Step(id=33))
            failed = driver.wait_for(Failed)
            after = driver.rest()
        assert failed.reply_to == 33
        what = "reading a prompt" if site == "reading a prompt" else "a decode step"
        assert failed.message.startswith(f"There is not enough memory for {what}: {needed}"), failed.message
        assert "are free on cpu" in failed.message
        assert ", or " in failed.message.rpartition(":")[2]
        assert held[0]() is None, "what the step had made is held no more"
        assert (after.step, after.sequences, after.running) == (before.step, before.sequences, False)
    driver.forget()
    driver.send(Step())
    assert not driver.of(Failed)
    assert driver.wait_for(StepRecord).step == (0 if site == "reading a prompt" else 1)


@pytest.mark.parametrize("error", ALLOCATIONS, ids=lambda error: type(error).__name__)
def test_a_model_that_does_not_fit_leaves_the_present_one(
    driver: Driver, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = driver.rest()

    def fail(*args: object, **more: object) -> None:
        raise error

    monkeypatch.setattr("engine.model.weights.AutoModelForCausalLM.from_pretrained", fail)
    driver.send(LoadModel(ModelSpec(num_threads=1), GROWING, id=5))
    failed = driver.wait_for(Failed)
    assert failed.reply_to == 5
    assert failed.message.startswith("There is not enough memory for Tales 5M: its weights take 0.0 GiB in float32")
    assert (
        "are free on cpu: take int8 weights, int4 weights, a narrower dtype, or unload the present model first."
        in failed.message
    )
    assert driver.rest().model == before.model
    monkeypatch.setattr("engine.model.forecast.free_bytes", lambda device: 1 << 20)
    driver.forget()
    driver.send(LoadModel(ModelSpec(num_threads=1), GROWING))
    assert "0.0 GiB are free on cpu" in driver.wait_for(Failed).message, "before anything is loaded"


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: unspecified launch failure\nmore"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("HIP error: the device is gone"),
    ],
    ids=str,
)
def test_a_device_that_fails_is_named_once_and_nothing_more_is_done_there(driver: Driver, error: Exception) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    driver.rest()

    def fail(*args: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.session.stepper.sample", fail)
        driver.send(Step())
        lost = driver.wait_for(EngineLost)
    assert lost.has_ended
    assert lost.cause == f"cpu does not work any more ({str(error).splitlines()[0]})"
    assert not driver.of(Failed)
    driver.send(Step(id=6))
    failed = driver.wait_for(Failed)
    assert (failed.reply_to, failed.message) == (6, f"{lost.cause}: restart the engine.")


def test_errors_of_a_device_are_known_from_others() -> None:
    assert is_of_device(RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"))
    assert not is_of_device(RuntimeError("CUDA error: out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"))
    assert not is_of_device(InputError("A CUDA error in a sentence."))
    assert not is_of_device(RuntimeError("size mismatch"))


def test_where_torch_cannot_be_imported_the_error_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert in_a_sentence(ImportError("no torch here")).startswith(
        "Something unexpected went wrong (ImportError: no torch here)"
    )
    assert is_out_of_memory(MemoryError())


def test_a_package_that_cannot_be_imported_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers imports some that are installed when it is imported itself, whatever is asked for."""
    (tmp_path / "half_a_quantiser.py").write_text("import of_which_it_lacks_one")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as lacking:
        import_module("half_a_quantiser")
    sentence = (
        "half_a_quantiser, which is installed here, cannot be imported (No module named 'of_which_it_lacks_one'), and "
        "what is asked for needs it or looks for it: install what it lacks, or remove half_a_quantiser."
    )
    assert in_a_sentence(lacking.value) == sentence
    monkeypatch.setattr("engine.model.loader.load", lambda *_, **__: import_module("half_a_quantiser"))
    assert main(["run", "--prompt", "x", "--steps", "1"]) == 2
    assert capsys.readouterr().err == f"kvloupe-engine: {sentence}\n"


def test_torchs_own_refusals_of_memory_are_known_for_what_they_are() -> None:

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 46)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2).view(3)
    assert not is_out_of_memory(caught.value)
