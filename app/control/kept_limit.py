"""How many bytes the moments may take that were left and are kept as they stood."""

from __future__ import annotations

from app.control.sender import Sender
from engine.wire.commands import SetKeptLimit


class KeptLimit:
    """What was chosen, for this engine and for the next one; None leaves it to the engine."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._num_bytes: int | None = None

    def choose(self, num_bytes: int | None, *, has_engine: bool) -> None:
        """From now on; an engine that has not begun yet is told when it has."""
        self._num_bytes = num_bytes
        if has_engine:
            self.repeat()

    def repeat(self) -> None:
        """It may be another engine, which has its own limit."""
        if self._num_bytes is not None:
            self._sender.post(SetKeptLimit(self._num_bytes))
