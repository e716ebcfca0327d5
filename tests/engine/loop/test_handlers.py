"""The table of handlers is complete."""

from __future__ import annotations

from engine.loop.handlers import HANDLERS
from engine.wire.commands import COMMANDS, Shutdown


def test_every_command_has_a_handler_but_the_one_that_ends_the_loop() -> None:
    assert HANDLERS.keys() == {*COMMANDS} - {Shutdown}
