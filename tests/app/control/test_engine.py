"""An engine that is lost costs the window nothing, and begins again with what there was."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from app.control.engine import Engine
from app.shell import Shell
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.commands import LoadModel, OpenSnapshot, TakePicture, Watch
from engine.wire.events import EngineBack, EngineLost, Event, Failed, Restarted, StateChanged
from engine.wire.message import Command
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button, texts_in


def test_a_lost_engine_is_a_banner_with_a_way_on_and_nothing_is_lost(running: Shell, engine: FakeEngine) -> None:
    banner, wanted = running.window.banner, []
    running.engine_wanted.connect(wanted.append)
    assert not banner.isVisible()
    engine.is_silent = True
    engine.emit(EngineLost("The engine was killed (SIGKILL)"))
    turn(running)
    assert running.models.status.failure.startswith("The engine was killed (SIGKILL): restart it.")
    assert button(banner, "Restart engine").isVisible()
    assert len(running.models.timeline) == 21
    assert running.models.pictures.wall is not None
    engine.sent.clear()
    running.models.selection.update(layer=4)
    turn(running)
    assert not engine.of(Watch) + engine.of(TakePicture), "nobody is there to answer"
    button(banner, "Restart engine").click()
    assert wanted == [""]


def test_one_that_answers_again_takes_the_banner_back(running: Shell, engine: FakeEngine) -> None:
    engine.emit(EngineLost("The engine has been silent for 8 seconds", has_ended=False))
    turn(running)
    assert button(running.window.banner, "Restart engine").isVisible()
    assert "wait, or restart it" in running.models.status.failure
    engine.emit(EngineBack())
    turn(running)
    assert not running.window.banner.isVisible()


def test_where_the_engine_runs_stands_in_the_status_line(running: Shell) -> None:
    running.models.status.set_engine("process")
    turn(running)
    assert "cpu · 2 threads · engine in a process" in texts_in(running.window.status)


class Recording:
    """A client that keeps what it was sent and says what it is told to."""

    kind = "thread"

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.events: list[Event] = []
        self.is_closed = False
        self.listeners: list[object] = []

    def listen(self, ring: object) -> None:
        self.listeners.append(ring)

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def drain(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def close(self, timeout_s: float = 2.0) -> bool:
        self.is_closed = True
        return True


def test_it_begins_again_with_the_model_that_was_loaded_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Recording] = []

    def opened(kind: str) -> Recording:
        clients.append(Recording())
        return clients[-1]

    monkeypatch.setattr("app.control.engine.open_client", opened)
    engine = Engine("thread")
    engine.listen(ring := lambda: None)
    first, second, bad = ModelSpec("/one"), ModelSpec("/two", dtype="bfloat16"), ModelSpec("/bad")
    engine.start(first, CacheSpec())
    engine.send(LoadModel(second, CacheSpec(), id=4))
    engine.send(LoadModel(bad, CacheSpec(), id=5))
    clients[0].events.append(Restarted(reply_to=4))
    engine.drain()
    engine.restart(CacheSpec("paged"))
    assert clients[0].is_closed
    assert clients[1].sent == [LoadModel(second, CacheSpec("paged"))]
    assert [client.listeners for client in clients] == [[ring, None], [ring]], "who was closed rings no more"


def test_a_file_that_cannot_be_opened_at_the_start_leaves_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Recording] = []

    def opened(kind: str) -> Recording:
        clients.append(Recording())
        return clients[-1]

    monkeypatch.setattr("app.control.engine.open_client", opened)
    engine, model, file = Engine("thread"), ModelSpec("/one"), Path("/damaged.safetensors")
    engine.listen(lambda: None)
    engine.start(model, CacheSpec(), OpenSnapshot(file))
    failure = Failed("'/damaged.safetensors' cannot be opened: take another copy of it.", reply_to=0)
    clients[0].events.append(failure)
    assert engine.drain() == [failure], "why is told all the same"
    assert clients[0].sent == [OpenSnapshot(file), LoadModel(model, CacheSpec())]
    clients[0].events.append(failure)
    engine.drain()
    assert len(clients[0].sent) == 2, "once"
    engine.restart(CacheSpec())
    assert clients[1].sent == [LoadModel(model, CacheSpec())]
    engine.start(model, CacheSpec(), OpenSnapshot(file))
    clients[2].events += [Restarted(reply_to=0), Failed("The disk is full.", reply_to=0)]
    engine.drain()
    assert clients[2].sent == [OpenSnapshot(file)], "it was opened"


def test_a_remembered_device_that_is_gone_leaves_the_choice_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Recording] = []

    def opened(kind: str) -> Recording:
        clients.append(Recording())
        return clients[-1]

    monkeypatch.setattr("app.control.engine.open_client", opened)
    engine, model = Engine("thread"), ModelSpec("/one", device="cuda:5", num_threads=2)
    engine.listen(lambda: None)
    failure = Failed("The device 'cuda:5' cannot be used here: use cpu.", reply_to=0)
    engine.start(model, CacheSpec(), is_remembered=True)
    clients[0].events.append(failure)
    engine.drain()
    here = replace(model, device="auto")
    assert clients[0].sent == [LoadModel(model, CacheSpec()), LoadModel(here, CacheSpec())]
    engine.reload(CacheSpec("paged"))
    assert clients[0].sent[-1] == LoadModel(here, CacheSpec("paged"))
    engine.start(model, CacheSpec())  # it was asked for just now: then it is refused
    clients[1].events.append(failure)
    engine.drain()
    assert clients[1].sent == [LoadModel(model, CacheSpec())]


def test_a_lost_gpu_can_be_left_for_the_cpu(
    running: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_gpu, wishes = button(running.window.banner, "Go on on the CPU"), []
    running.cpu_wanted.connect(lambda: wishes.append(True))
    engine.is_silent = True
    engine.emit(EngineLost("cpu does not work any more"))
    turn(running)
    assert not leave_gpu.isVisible(), "it is on the CPU"
    assert engine.status.model is not None
    engine.emit(EngineBack(), StateChanged(replace(engine.status, model=replace(engine.status.model, device="cuda:0"))))
    turn(running)
    engine.emit(EngineLost("cuda:0 does not work any more (CUDA error: unspecified launch failure)"))
    turn(running)
    assert leave_gpu.isVisible()
    assert running.models.status.failure == (
        "cuda:0 does not work any more (CUDA error: unspecified launch failure): restart it, or go on on the CPU. "
        "What was recorded stays on the screen."
    )
    leave_gpu.click()
    assert wishes == [True]
    # ---- and what becomes of the wish
    kinds: list[str] = []
    clients: list[Recording] = []

    def opened(kind: str) -> Recording:
        kinds.append(kind)
        clients.append(Recording())
        return clients[-1]

    monkeypatch.setattr("app.control.engine.open_client", opened)
    behind = Engine("thread")
    behind.start(ModelSpec("/one", "auto", "cuda:0"), CacheSpec())
    behind.restart_on_cpu(CacheSpec("paged"), "bfloat16")
    assert kinds == ["thread", "process"], "a device that failed in this process may spoil it"
    assert clients[0].is_closed
    assert clients[1].sent == [LoadModel(ModelSpec("/one", "bfloat16", "cpu"), CacheSpec("paged"))]
