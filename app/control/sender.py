"""Gives every command an id, which its answers repeat, and sends it to the engine."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from engine.wire.message import Command


class Sender:
    """Numbers commands and sends them."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._last_id = 0

    def next_id(self) -> int:
        """A new id for a command or a picture."""
        self._last_id += 1
        return self._last_id

    def post(self, command: Command) -> int:
        """Send a command under its own id, or a new one if it has none; returns the id."""
        number = command.id or self.next_id()
        self._send(replace(command, id=number))
        return number
