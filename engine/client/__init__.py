"""What a window looks at: something that takes commands and answers with events, wherever the engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, get_args

from engine.wire.commands import Command
from engine.wire.events import Event

ClientKind = Literal["thread", "process"]
ClientChoice = Literal["auto", "thread", "process"]
CHOICES: tuple[ClientChoice, ...] = get_args(ClientChoice)


class Client(Protocol):
    """An engine, as its window sees it. All three may be called from one thread, which they never keep waiting."""

    @property
    def kind(self) -> ClientKind: ...

    def send(self, command: Command) -> None:
        """Hand over a command; commands are handled in order."""

    def drain(self) -> list[Event]:
        """All events since the last call, in order."""

    def listen(self, ring: Callable[[], None] | None) -> None:
        """Have this called, on any thread, when events wait that were not drained; None: nobody listens any more."""

    def close(self, timeout_s: float = 2.0) -> bool:
        """End the engine, waiting for it at most so long; whether nothing of it is left."""


def kind_for(choice: ClientChoice, device: str) -> ClientKind:
    """Which client an engine on that device gets: on a GPU the work does not hold the interpreter, on a CPU it does."""
    if choice != "auto":
        return choice
    from engine.client.gpu import has_gpu

    on_gpu = has_gpu() if device == "auto" else device != "cpu"
    return "thread" if on_gpu else "process"


def open_client(kind: ClientKind) -> Client:
    """An engine that has begun and waits for commands."""
    if kind == "thread":
        from engine.client.thread import ThreadClient

        return ThreadClient()
    from engine.client.process import ProcessClient

    return ProcessClient()
