"""How much memory the moments may take that were left, with what they take now."""

from __future__ import annotations

from PySide6.QtWidgets import QSpinBox, QWidget

from app.draw.format import byte_size, thousands
from app.kit.dialog import QuestionDialog
from app.kit.labels import plain_label
from app.kit.theme import font_fixed
from app.kit.units import inset
from engine.wire.status import EngineStatus

MIB = 1 << 20
MOST_MIB = 1 << 20  # a tebibyte


class KeptMomentsDialog(QuestionDialog):
    """Intent: `chosen(num_bytes)`."""

    def __init__(self, status: EngineStatus | None, parent: QWidget) -> None:
        super().__init__("Moments kept in memory", parent)
        limit = status.kept_limit if status is not None else 1 << 30
        self.limit = QSpinBox()
        self.limit.setRange(0, MOST_MIB)
        self.limit.setSingleStep(256)
        self.limit.setSuffix(" MiB")
        self.limit.setGroupSeparatorShown(True)
        self.limit.setFont(font_fixed())
        self.limit.setAccessibleName("MiB that kept moments may take")
        self.limit.setValue(limit // MIB)
        inset(self.limit)
        self.form.addRow("They may take", self.limit)
        self.form.addRow("They take now", plain_label(_taken(status)))
        words = plain_label(
            "A moment that is left stays in memory as it stands, so that going back is a swap. Beyond this limit the "
            "one that rested longest is let go: it stays in the history, and is computed again when you go there."
        )
        words.setWordWrap(True)
        self.form.addRow(words)

    def answer(self) -> int:
        return self.limit.value() * MIB


def _taken(status: EngineStatus | None) -> str:
    """`12.0 MiB, 3 moments`."""
    if status is None or not status.kept:
        return "nothing: no moment was left yet"
    count = len(status.kept)
    return f"{byte_size(status.kept_bytes)}, {thousands(count)} {'moment' if count == 1 else 'moments'}"
