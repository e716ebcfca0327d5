"""Has the engine write exports, and says in the status line what became of each."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.control.sender import Sender
from app.draw.format import byte_size, milliseconds
from app.kit.question import Question
from app.models import Models
from engine.wire.exporting import Export, ExportCancelled, Exported


class Exporting(QObject):
    """Signal: `written(Exported)`."""

    written = Signal(object)

    def __init__(self, models: Models, sender: Sender) -> None:
        super().__init__()
        self._models = models
        self._sender = sender

    def write(self, command: Export) -> None:
        self._sender.ask(Question(command, self._take))

    def is_writing(self, path: Path) -> bool:
        """Whether an export to that file has been asked for and is not finished."""
        others = (command.path for command in self._sender.unanswered(Export))
        return any(other == path or other.resolve() == path.resolve() for other in others)

    def _take(self, answer: Exported | ExportCancelled) -> None:
        if isinstance(answer, ExportCancelled):
            self._models.status.notify(f"Export cancelled: nothing was written to {answer.path}")
            return
        beside = f" · {answer.script.name} beside it" if answer.script is not None else ""
        size, took = byte_size(answer.num_bytes), milliseconds(answer.took_ms)
        self._models.status.notify(f"Written to {answer.path}: {size} in {took}{beside}")
        self.written.emit(answer)
