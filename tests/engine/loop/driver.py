"""An engine loop in a thread, driven as a window drives it: commands in, events out."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from engine.client.thread import ThreadClient
from engine.loop.loop import EngineLoop
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import LoadModel, SubmitPrompt, Tokenize
from engine.wire.events import Cancelled, Done, Event, Failed, Restarted, StateChanged, Tokenized
from engine.wire.message import Command
from engine.wire.status import EngineStatus
from tests.engine.tiny import config_dict, prompt_ids

T = TypeVar("T")
PATIENCE_S = 300.0
GROWING = CacheSpec("growing")


class Driver:
    """Sends commands and waits for what they bring."""

    def __init__(self, source: str, cache: CacheSpec = GROWING) -> None:
        self.loop = ThreadClient(lambda: 0.0)  # on a busy machine it would be taken for one that hangs
        self.events: list[Event] = []
        self.loop.send(LoadModel(ModelSpec(source, device="cpu", num_threads=1), cache))

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.loop.send(command)

    def wait(self, found: Callable[[], T | None]) -> T:
        """The first thing `found` finds, looking again after every batch of events."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.events += self.loop.drain()
            result = found()
            if result:
                return result
            time.sleep(0.002)
        raise AssertionError(f"waited in vain; the last events were {self.events[-5:]}")

    def of(self, kind: type[T]) -> list[T]:
        return [e for e in self.events if isinstance(e, kind)]

    def wait_for(self, kind: type[T], count: int = 1) -> T:
        return self.wait(lambda: self.of(kind)[-1:] if len(self.of(kind)) >= count else None)[0]

    def last_words(self) -> list[Event]:
        """The last words that commands with an id got without an answer, in their order."""
        return [e for e in self.events if isinstance(e, Done | Cancelled | Failed) and e.reply_to]

    def forget(self) -> None:
        """Drop what was said so far, but how things stand."""
        self.events += self.loop.drain()
        self.events[:] = self.of(StateChanged)[-1:]

    @property
    def engine(self) -> EngineLoop:
        """The loop of the engine's thread, to be looked at while it rests."""
        return self.loop._loop

    @property
    def session(self) -> Session:
        session = self.engine.workspace.session
        assert session is not None
        return session

    @property
    def status(self) -> EngineStatus:
        return self.of(StateChanged)[-1].status

    def rest(self) -> EngineStatus:
        """The status once everything sent so far is done and nothing runs."""
        number = random.randrange(10**9)
        self.send(Tokenize("", id=number))

        def done() -> EngineStatus | None:
            answered = any(t.reply_to == number for t in self.of(Tokenized))
            return self.status if answered and not self.status.running else None

        return self.wait(done)

    def loaded(self) -> Driver:
        self.wait(lambda: self.of(Restarted))
        self.rest()
        self.forget()
        return self


def shape_of(folder: Path, **changes: Any) -> str:
    import json

    (folder / "config.json").write_text(json.dumps({**config_dict("llama"), **changes}))
    return f"shape:{folder / 'config.json'}"


def prompt(length: int, **sampling: Any) -> SubmitPrompt:
    return SubmitPrompt(Prompt(token_ids=prompt_ids(length), sampling=SamplingParams(**sampling)))
