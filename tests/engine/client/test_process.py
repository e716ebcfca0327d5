"""The engine in a process of its own: it does what a thread does, and its end is one event that names the cause."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import psutil
import pytest
from msgspec.structs import replace

import engine.client.process as process
from engine.client import kind_for
from engine.client.child import _encoded
from engine.client.process import ProcessClient
from engine.client.stream import read_frames, write_messages
from engine.client.thread import ThreadClient
from engine.spec.sampling import Prompt
from engine.wire import encoding
from engine.wire.commands import Run, Step, SubmitPrompt
from engine.wire.encoding import WireError, decode_event, encode
from engine.wire.events import EngineBack, EngineBusy, EngineLost, Failed, Submitted
from engine.wire.exporting import Export, Exported
from engine.wire.records import Eviction, StepRecord
from tests.app import samples
from tests.engine.client.driver import Driver, speaking
from tests.engine.tiny import config_dict, prompt_ids


def slow_source(folder: Path) -> str:
    """A model whose run is long enough to be caught in the middle."""
    shape = {**config_dict("llama"), "max_position_embeddings": 8192, "num_hidden_layers": 8, "hidden_size": 256}
    (folder / "config.json").write_text(json.dumps(shape))
    return f"shape:{folder / 'config.json'}"


def assert_killed(driver: Driver) -> None:
    """Its end is one event, and what is sent after it fails with what to do."""
    driver.child.kill()
    assert "SIGKILL" in driver.end().cause
    driver.client.send(Step(id=77))
    driver.wait_for(Failed)
    assert isinstance(driver.events[-1], Failed)
    assert driver.events[-1].reply_to == 77
    assert driver.events[-1].message.endswith("restart it.")
    assert driver.end(), "it is told once"


def test_it_gives_the_same_tokens_as_a_thread_and_exports_and_is_killed_at_work(tmp_path: Path) -> None:
    """In the end it is killed in the middle of a run, with an export that is not answered."""
    source = slow_source(tmp_path)
    told = []
    for kind in (ThreadClient, ProcessClient):
        driver = Driver(kind())
        driver.load(source)
        driver.client.send(SubmitPrompt(Prompt(token_ids=prompt_ids(9)), id=5))
        driver.client.send(Run(6))
        driver.wait_for(StepRecord, 6)
        assert [event.reply_to for event in driver.of(Submitted)] == [5]  # type: ignore[attr-defined]
        told.append([(r.step, r.sequences[0].sampled, len(r.page_events)) for r in driver.of(StepRecord)])  # type: ignore[attr-defined]
        path = tmp_path / f"{kind.__name__}.safetensors"
        driver.client.send(Export(path, 0, id=9))
        driver.wait_for(Exported)
        assert path.is_file()
        assert [event.reply_to for event in driver.of(Exported)] == [9]  # type: ignore[attr-defined]
        if kind is ThreadClient:
            assert driver.client.close(300)
    assert told[0] == told[1]
    driver.client.send(Run())
    driver.wait_for(StepRecord, 7)
    driver.client.send(Export(tmp_path / "x.safetensors", 0))
    assert_killed(driver)
    assert driver.client.close(0.5)


@pytest.mark.parametrize("moment", ["start", "load"])
def test_a_killed_engine_is_one_event_that_names_the_cause(driver: Driver, tmp_path: Path, moment: str) -> None:
    driver.load(slow_source(tmp_path))
    if moment == "load":
        driver.wait(lambda: driver.events, "its first word")
    assert_killed(driver)


def test_one_that_hangs_is_told_and_comes_back_and_can_be_closed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = driver.child
    driver.wait(lambda: driver.client._num_heard, "a sign of life")  # type: ignore[attr-defined]
    monkeypatch.setattr(process, "SILENT_S", 2.0)
    child.suspend()
    driver.wait_for(EngineLost)
    (lost,) = driver.of(EngineLost)
    assert isinstance(lost, EngineLost)
    assert not lost.has_ended
    assert "silent" in lost.cause
    child.resume()
    driver.wait_for(EngineBack)
    child.suspend()
    assert driver.client.close(0.3)
    assert not child.is_running()


def test_a_loop_that_hangs_in_a_living_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life go on coming from its process, which says that its loop does not get on."""
    script = (
        "import time; from engine.client import child, pulse; from engine.loop.loop import EngineLoop\n"
        "def hang(self):\n"
        "    self.activity.begin('counting sheep')\n"
        "    time.sleep(1000)\n"
        "pulse.BUSY_S, pulse.HANGS_S, child.HEARTBEAT_S = 0.2, 1.0, 0.1; EngineLoop.run = hang\n"
        "child.main()\n"
    )
    driver = speaking(script, monkeypatch)
    driver.wait_for(EngineLost)
    (lost,) = driver.of(EngineLost)
    assert isinstance(lost, EngineLost)
    assert not lost.has_ended
    assert "busy with counting sheep" in lost.cause
    assert EngineBusy("counting sheep", 1) in driver.events
    assert driver.child.status() != psutil.STATUS_ZOMBIE
    driver.child.kill()


def test_a_step_that_evicts_more_than_a_message_holds_is_sent_without(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(5000)
    eviction = Eviction(0, 1, None, rows, rows.astype(np.float32), None, "the oldest go")
    record = replace(samples.step_record(7), evictions=(eviction,))
    monkeypatch.setattr(encoding, "MAX_MESSAGE_BYTES", 20_000)
    step, failed = map(decode_event, _encoded(record))
    assert isinstance(step, StepRecord)
    assert isinstance(failed, Failed)
    assert (step.step, step.evictions) == (7, ())
    assert "step 7 evicted" in failed.message
    (whole,) = map(decode_event, _encoded(replace(record, evictions=())))
    assert isinstance(whole, StepRecord)
    assert whole.step == 7


def test_a_step_of_more_arrays_than_frames_comes_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_FRAMES", 8)
    rows = np.arange(500)
    evictions = tuple(Eviction(0, n, None, rows + n, rows.astype(np.float32), None, "the oldest go") for n in range(9))
    record = replace(samples.step_record(7), evictions=evictions)
    frames = encode(record)
    assert len(frames) == 8
    again = decode_event(frames)
    assert isinstance(again, StepRecord)
    for eviction, sent in zip(again.evictions, evictions, strict=True):
        assert (eviction.positions == sent.positions).all()
        assert (eviction.scores == sent.scores).all()


def test_one_that_cannot_be_spawned_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.sys, "executable", "/no/such/python")
    driver = Driver(ProcessClient())
    assert "could not be started (No such file or directory)" in driver.end().cause
    assert driver.client.close(0.1)


def test_a_stream_that_is_cut_off_or_strange_is_refused() -> None:
    stream = io.BytesIO()
    write_messages(stream, [[b"one", b"three"]])
    whole = stream.getvalue()
    assert read_frames(io.BytesIO(whole)) == [b"one", b"three"]
    assert read_frames(io.BytesIO(b"")) is None
    for length in range(1, len(whole)):
        with pytest.raises(WireError):
            read_frames(io.BytesIO(whole[:length]))


def test_a_gpu_gets_a_thread_and_a_cpu_a_process() -> None:
    assert kind_for("auto", "cpu") == "process"
    assert kind_for("auto", "cuda") == "thread"
    assert kind_for("thread", "cpu") == "thread"
    assert kind_for("process", "cuda:0") == "process"
