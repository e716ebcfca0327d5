"""The base of all intent classes: it sends commands to the engine."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from app.control.requests import Requests
from app.control.sender import Sender
from app.control.waiting import PersonWaiting
from app.models import Models
from engine.wire import commands
from engine.wire.message import Command


class IntentSender(QObject):
    """Sends the commands of the user's intents, and clears an earlier failure from the status line when it does.

    Signal: `model_wanted()`, the user has to choose a model. It stands in this base because PySide does not find a
    signal that is declared in a class that is only a second or later base.
    """

    model_wanted = Signal()

    def __init__(
        self,
        models: Models,
        sender: Sender,
        requests: Requests,
        waiting: PersonWaiting,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._models = models
        self._sender = sender
        self._requests = requests
        self._waiting = waiting

    def _send_steps(self, command: commands.Step | commands.Run | commands.NextPhase) -> None:
        self._waiting.expect_pictures()
        self._send(command)

    def _send(self, command: Command) -> int:
        """Send a command for the user; returns its id."""
        self._take_failure_back()
        number = self._sender.post(command)
        self._waiting.wake()
        return number

    def _take_failure_back(self) -> None:
        """Clear the failure shown in the status line, unless it says that the engine is gone."""
        if not self._models.status.is_engine_lost:
            self._models.status.fail("")
