"""What all wishes of a person need: a way to the engine."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from app.control.requests import Requests
from app.control.sender import Sender
from app.control.waiting import PersonWaiting
from app.models import Models
from engine.wire import commands


class Asking(QObject):
    """Sends what a person asked for, and takes back what had gone wrong before. `model_wanted()`: a person has to
    choose a model; it stands here because a signal of a class that is not the first base of another is not known there.
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

    def _send(self, command: commands.Command) -> int:
        """Send what a person asked for."""
        self._take_failure_back()
        number = self._sender.post(command)
        self._waiting.wake()
        return number

    def _take_failure_back(self) -> None:
        """What went wrong before is not shown any longer, but that the engine is gone."""
        if not self._models.status.is_engine_lost:
            self._models.status.fail("")
