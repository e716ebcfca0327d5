"""The dialog for how much memory earlier moments may take, so that going back to them is fast."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.draw.format import byte_size
from app.kit.dialog import QuestionDialog
from app.kit.fields import whole_field
from app.kit.labels import plain_label
from engine.counted import counted
from engine.wire.status import EngineStatus

MIB = 1 << 20
MOST_MIB = 1 << 20  # a tebibyte


class KeptMomentsDialog(QuestionDialog):
    """Choose the limit. Signal: `chosen(num_bytes)`."""

    def __init__(self, status: EngineStatus, parent: QWidget) -> None:
        super().__init__("Checkpoints kept in memory", parent)
        self.limit = whole_field(
            "MiB that checkpoints may take", status.kept_limit // MIB, 0, MOST_MIB, is_grouped=True
        )
        self.limit.setSingleStep(256)
        self.limit.setSuffix(" MiB")
        self.add(self.limit, "They may take")
        self.add(plain_label(_taken(status)), "They take now")
        words = plain_label(
            "The cache of a step that you leave stays in memory as a checkpoint, so that going back is a swap. Beyond "
            "this limit the one that rested longest is let go: its step stays in the history, and is computed again "
            "when you go there.",
            wraps=True,
        )
        self.form.addRow(words)

    def answer(self) -> int:
        return self.limit.value() * MIB


def _taken(status: EngineStatus) -> str:
    """Return what they take now: `12.0 MiB, 3 moments`."""
    if not status.kept:
        return "nothing: no step was left yet"
    return f"{byte_size(status.kept_bytes)}, {counted(len(status.kept), 'checkpoint')}"
