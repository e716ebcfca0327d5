"""An engine process driven by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

import engine.client.process as process
from engine.client import Client
from engine.client.process import ProcessClient
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.commands import LoadModel
from engine.wire.events import Event

PATIENCE_S = 300.0


class Driver:
    """A client, and what it said."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.events: list[Event] = []

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def wait(self, found: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not found():
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.events[-3:]}"
            self.events += self.client.drain()
            time.sleep(0.005)

    def load(self, source: str) -> None:
        self.client.send(LoadModel(ModelSpec(source, device="cpu", num_threads=1), CacheSpec("paged", page_size=4)))

    def wait_for(self, kind: type, count: int = 1) -> None:
        self.wait(lambda: len(self.of(kind)) >= count, kind.__name__)

    @property
    def child(self) -> psutil.Process:
        assert isinstance(self.client, ProcessClient)
        return psutil.Process(self.client.process_id)


def speaking(script: str, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A client whose engine is that script."""

    def spawn() -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe)

    monkeypatch.setattr(process, "_spawn", spawn)
    return Driver(ProcessClient())
