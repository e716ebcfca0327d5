"""How an engine process ends: what it dies of is named, closing ends it, nothing outlives the window."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import engine.client.process as process
from engine.client.process import ProcessClient
from engine.client.thread import ThreadClient
from engine.wire.commands import Step
from engine.wire.events import EngineLost, Event, Failed
from tests.engine.client.driver import Driver, speaking
from tests.engine.tiny import write_config


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("import time; print('hello there'); import sys; sys.stdout.flush(); time.sleep(60)", "cannot be read"),
        (
            "import struct, sys, time; sys.stdout.buffer.write(b'KVL\\n' + struct.pack('<IQ', 1, 1 << 40));"
            "sys.stdout.flush(); time.sleep(60)",
            "is too large",
        ),
        ("import os, time; os.close(1); time.sleep(60)", "closed its end without a word"),
        ("import sys; sys.exit(3)", "ended by itself (exit status 3)"),
        ("raise MemoryError('no room')", "MemoryError: no room"),
        ("import os; os.abort()", "crashed (SIGABRT)"),
    ],
)
def test_whatever_else_it_dies_of_is_named(script: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = speaking(script, monkeypatch)
    assert cause in driver.end().cause
    assert driver.client.close(0.1)


def test_rubbish_among_the_commands_is_said_and_not_taken_for_an_end_that_was_wanted(driver: Driver) -> None:
    assert isinstance(driver.client, ProcessClient)
    child = driver.client._child
    assert child is not None
    assert child.stdin is not None
    child.stdin.write(b"x" * 64)
    child.stdin.flush()
    assert "no message stands in the stream" in driver.end().cause


@pytest.mark.parametrize("is_loading", [False, True])
def test_closing_ends_it(driver: Driver, tmp_path: Path, is_loading: bool) -> None:
    child = driver.child
    if is_loading:
        driver.load(f"shape:{write_config('llama', tmp_path)}")
        driver.wait(lambda: driver.events, "its first word")
    assert driver.client.close(1.3)
    assert not child.is_running()
    assert not driver.of(EngineLost)


class Refusing:
    """A standard error that is gone: its terminal was closed."""

    def write(self, text: str) -> None:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("stream", [None, Refusing()])
def test_its_complaints_never_hold_it_up(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    """More than any pipe holds is read where this process has nowhere to print it."""
    monkeypatch.setattr(process.sys, "stderr", stream)
    script = (
        "import sys\n"
        "for _ in range(2000): print('x' * 999, file=sys.stderr)\n"
        "print('last', file=sys.stderr); sys.exit(3)"
    )
    driver = speaking(script, monkeypatch)
    assert "(last)" in driver.end().cause


def test_an_unforeseen_error_of_the_reader_ends_the_engine_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(frames: object) -> Event:
        raise MemoryError("no room to read it")

    monkeypatch.setattr(process, "decode_event", fail)
    driver = Driver(ProcessClient())
    child = driver.child
    driver.load("shape:/no/such/file")
    assert "cannot be read (MemoryError: no room to read it)" in driver.end().cause
    assert not child.is_running(), "it was ended, and waited for"


def test_who_waits_for_what_is_refused_is_told_at_once() -> None:
    driver = Driver(ThreadClient())
    driver.client.send(Step(id=77))
    with pytest.raises(
        AssertionError, match=r"There is no model yet.*reply_to=77.* while waiting for the engine.s end"
    ):
        driver.end()
    assert driver.client.close(300)


def test_a_thread_that_has_ended_answers_as_a_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise SystemError("out of order")

    monkeypatch.setattr("engine.loop.loop.EngineLoop.run", fail)
    driver = Driver(ThreadClient())
    assert driver.end()
    driver.client.send(Step(id=77))
    driver.wait_for(Failed)
    (failed,) = driver.of(Failed)
    assert isinstance(failed, Failed)
    assert (failed.reply_to, "out of order" in failed.message) == (77, True)
    assert failed.message.endswith("restart it.")


def test_it_does_not_outlive_a_window_that_is_killed() -> None:
    script = (
        "import time\n"
        "from engine.client.process import ProcessClient\n"
        "print(ProcessClient().process_id, flush=True)\n"
        "time.sleep(60)\n"
    )
    window = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert window.stdout is not None
    child = psutil.Process(int(window.stdout.readline()))
    os.kill(window.pid, signal.SIGKILL)
    window.wait()
    assert psutil.wait_procs([child], timeout=300)[1] == []


def test_what_it_prints_reaches_standard_error_and_no_message() -> None:
    script = "from engine.client.child import _take_streams\n_take_streams()\nprint('a stray word')\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.stdout, done.stderr.strip()) == ("", "a stray word")
