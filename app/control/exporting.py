"""Sends exports to the engine and asks how large they would become."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from app.control.sender import Sender
from app.draw.format import byte_size, milliseconds
from app.models import Models
from engine.wire.events import Failed
from engine.wire.exporting import EstimateExport, Export, ExportCancelled, Exported, ExportEstimate


class Exporting(QObject):
    """Keeps the exports that are being written, until they are answered. Signals: `estimated(ExportEstimate)` or
    `refused(why)`, only for the newest estimate that was asked for; `written(Exported)`."""

    estimated = Signal(object)
    refused = Signal(str)
    written = Signal(object)

    def __init__(self, models: Models, sender: Sender) -> None:
        super().__init__()
        self._models = models
        self._sender = sender
        self._writing: dict[int, Path] = {}
        self._estimate = 0  # command id of the newest estimate
        self._estimates: set[int] = set()  # command ids of estimates not answered yet

    def write(self, command: Export) -> None:
        self._writing[self._sender.post(command)] = command.path

    def is_writing(self, path: Path) -> bool:
        """Whether an export to that file has been asked for and is not finished."""
        return any(other == path or other.resolve() == path.resolve() for other in self._writing.values())

    def estimate(self, command: Export) -> None:
        """Ask how large an export would become; its records are left out, as the size does not need them."""
        self._estimate = self._sender.post(EstimateExport(replace(command, records=())))
        self._estimates.add(self._estimate)

    # ---- answers -------------------------------------------------------------------------------------------------

    def take_estimate(self, answer: ExportEstimate) -> None:
        self._estimates.discard(answer.reply_to or 0)
        if answer.reply_to == self._estimate:
            self.estimated.emit(answer)

    def take_exported(self, event: Exported) -> None:
        self._writing.pop(event.reply_to or 0, None)
        beside = f" · {event.script.name} beside it" if event.script is not None else ""
        size, took = byte_size(event.num_bytes), milliseconds(event.took_ms)
        self._models.status.notify(f"Written to {event.path}: {size} in {took}{beside}")
        self.written.emit(event)

    def take_cancelled(self, event: ExportCancelled) -> None:
        self._writing.pop(event.reply_to or 0, None)
        self._models.status.notify(f"Export cancelled: nothing was written to {event.path}")

    def refuse(self, failure: Failed) -> bool:
        """Whether the failure concerns an estimate; the export dialog then shows it if it is the newest one."""
        number = failure.reply_to or 0
        self._writing.pop(number, None)
        if number not in self._estimates:
            return False
        self._estimates.discard(number)
        if number == self._estimate:
            self.refused.emit(failure.message)
        return True

    def forget(self) -> None:
        """Drop all that is unanswered: the engine is gone."""
        self._writing.clear()
        self._estimates.clear()
