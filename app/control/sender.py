"""Commands on their way to the engine, each under an id of its own, which answers repeat."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from engine.wire.commands import Command


class Sender:
    """Numbers commands and sends them."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._last_id = 0

    def next_id(self) -> int:
        """An id that nothing else has."""
        self._last_id += 1
        return self._last_id

    def post(self, command: Command) -> int:
        """Send a command, under the id that it was given or another one; its id."""
        number = command.id or self.next_id()
        self._send(replace(command, id=number))
        return number
