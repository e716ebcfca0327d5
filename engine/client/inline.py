"""The inline client: an engine on the thread of its caller, for the command line. A thread of its own would cost a
hand-over for every token, and Ctrl+C its meaning."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.loop.loop import EngineLoop
from engine.wire.events import Cancelled, Done
from engine.wire.message import Command, Event

if TYPE_CHECKING:
    from engine.session.session import Session


class InlineClient:
    """An engine that works while its answers are asked for. What fails is raised there, as it was raised in the engine.
    With `has_whole_records` the record of a step waits for all surprisals of its prompt."""

    def __init__(self, *, has_whole_records: bool = False) -> None:
        self._events: deque[Event] = deque()
        self._loop = EngineLoop(self._events.append, is_inline=True, has_whole_records=has_whole_records)
        self._last_id = 0

    @property
    def session(self) -> Session:
        """The live session, to be looked at: only commands change it."""
        return self._loop.session

    def ask(self, command: Command) -> Iterator[Event]:
        """Have a command carried out; yields all events as they come, up to its last word."""
        self._last_id += 1
        command = replace(command, id=self._last_id)
        self._loop.send(command)
        is_open = True
        while is_open:
            self._loop.turn()
            while self._events:
                event = self._events.popleft()
                is_answer = command.facts.answers == "one" or isinstance(event, Done | Cancelled)
                is_open &= not (is_answer and event.reply_to == command.id)
                yield event

    def do(self, command: Command) -> tuple[Event, ...]:
        """Have a command carried out; returns all events up to its last word."""
        return tuple(self.ask(command))
