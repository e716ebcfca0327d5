"""The client: how the window talks to an engine, by commands and events, wherever the engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.client.ssh import PREFIX, remote_of
from engine.errors import InputError
from engine.wire.message import Command, Event

ClientKind = str  # thread, process, or the address of another machine: ssh://…
ClientChoice = str  # one of these, or auto
CHOICES: tuple[ClientChoice, ...] = ("auto", "thread", "process")


def check_choice(choice: str) -> ClientChoice:
    """A choice of where the engine runs as it was typed or saved; raises `InputError` for what is none."""
    if choice not in CHOICES:
        if not is_elsewhere(choice):
            raise InputError(f"An engine cannot run in '{choice[:200]}': give {', '.join(CHOICES)} or ssh://HOST.")
        remote_of(choice)
    return choice


def is_elsewhere(kind: str) -> bool:
    """Whether such an engine runs on another machine, whose files are not those of this one."""
    return kind.startswith(PREFIX)


class Client(Protocol):
    """An engine as the window sees it. Call all methods from the same thread; only `close` blocks."""

    @property
    def kind(self) -> ClientKind: ...

    def send(self, command: Command) -> None:
        """Send a command; commands are handled in order."""

    def drain(self) -> list[Event]:
        """Return all events since the last call, in order."""

    def listen(self, callback: Callable[[], None] | None) -> None:
        """Set a callback for when events wait to be drained, which may be called on any thread; None removes it."""

    def close(self, timeout_s: float = 2.0) -> bool:
        """End the engine, waiting at most `timeout_s`; whether it has ended completely."""


def kind_for(choice: ClientChoice, device: str) -> ClientKind:
    """The kind of client for an engine on that device. `auto` is a thread on a GPU, whose work does not hold the
    interpreter lock, and a process on a CPU, whose work does."""
    if choice != "auto":
        return choice
    from engine.client.gpu import has_gpu

    on_gpu = has_gpu() if device == "auto" else device != "cpu"
    return "thread" if on_gpu else "process"


def open_client(kind: ClientKind) -> Client:
    """Start an engine that waits for commands."""
    if kind == "thread":
        from engine.client.thread import ThreadClient

        return ThreadClient()
    from engine.client.process import ProcessClient

    return ProcessClient(kind if is_elsewhere(kind) else "")
