"""An engine process driven by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeGuard

import psutil
import pytest

import engine.client.process as process
from engine.client import Client
from engine.client.process import ProcessClient
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.commands import LoadModel
from engine.wire.events import EngineLost, Event, Failed

PATIENCE_S = 300.0


class Driver:
    """A client, and what it said."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.events: list[Event] = []

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def wait(self, found: Callable[[], object], what: str) -> None:
        """Wait until it is found. A command that fails meanwhile ends the wait, and so does the engine's end, unless it
        is found by that."""
        deadline = time.monotonic() + PATIENCE_S
        while not found():
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.events[-3:]}"
            time.sleep(0.005)
            said = self.client.drain()
            self.events += said
            refused = [event for event in said if isinstance(event, Failed) or is_end(event)]
            assert not refused or found(), f"{refused[0]} while waiting for {what}"

    def end(self) -> EngineLost:
        """How the engine ended, which is waited for. Its silence, as on a busy machine, is no end."""
        self.wait(lambda: any(map(is_end, self.events)), "the engine's end")
        (lost,) = filter(is_end, self.events)
        return lost

    def load(self, source: str) -> None:
        self.client.send(LoadModel(ModelSpec(source, device="cpu", num_threads=1), CacheSpec("paged", page_size=4)))

    def wait_for(self, kind: type, count: int = 1) -> None:
        self.wait(lambda: len(self.of(kind)) >= count, kind.__name__)

    @property
    def child(self) -> psutil.Process:
        assert isinstance(self.client, ProcessClient)
        return psutil.Process(self.client.process_id)


def is_end(event: Event) -> TypeGuard[EngineLost]:
    return isinstance(event, EngineLost) and event.has_ended


def speaking(script: str, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A client whose engine is that script."""

    def spawn() -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe)

    monkeypatch.setattr(process, "_spawn", spawn)
    return Driver(ProcessClient())
