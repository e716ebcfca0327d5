"""A command whose answers somebody waits for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from msgspec import Struct

from engine.wire.events import Failed
from engine.wire.message import Command


def ignore(_answer: object) -> None:
    """Do nothing with an answer."""


class Question(Struct, frozen=True):
    """A command, and who takes its answers. Views emit it as `wants`.

    `on_answer` takes each answer but a mere `Done`. `on_refusal` takes the failure, without a message where the command
    was cancelled or the engine is gone; without it the failure is shown in the status line. Of the questions of one
    `slot` only the newest is answered.
    """

    command: Command
    on_answer: Callable[[Any], object] = ignore
    on_refusal: Callable[[Failed], object] | None = None
    slot: Hashable = None
