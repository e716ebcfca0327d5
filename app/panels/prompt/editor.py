"""The editor of the prompt: plain text, and a paste of any size without freezing."""

from __future__ import annotations

from PySide6.QtCore import QMimeData, QTimer, Signal
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QWidget

# Laying out more than this takes longer than a person waits between two keys.
MAX_SHOWN_CHARS = 60_000
PREVIEW_CHARS = 1_500
TYPING_PAUSE_MS = 180


class PromptEdit(QPlainTextEdit):
    """`edited` follows a pause in typing. A text too long to edit is held whole and shown in part, read-only."""

    edited = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._held: str | None = None
        self._pause = QTimer(self)
        self._pause.setSingleShot(True)
        self._pause.setInterval(TYPING_PAUSE_MS)
        self._pause.timeout.connect(self.edited)
        self.setTabChangesFocus(True)
        self.textChanged.connect(self._pause.start)

    @property
    def is_held(self) -> bool:
        """Whether only the beginning is shown of a text that is kept whole."""
        return self._held is not None

    def text(self) -> str:
        """The whole text, whatever of it is shown."""
        return self.toPlainText() if self._held is None else self._held

    def set_text(self, text: str) -> None:
        """Replace everything."""
        self._held = text if len(text) > MAX_SHOWN_CHARS else None
        self.setReadOnly(self.is_held)
        self.setPlainText(text[:PREVIEW_CHARS] + " …" if self.is_held else text)
        self.moveCursor(QTextCursor.MoveOperation.End)

    def insertFromMimeData(self, source: QMimeData) -> None:
        pasted = source.text()
        if len(pasted) + self.document().characterCount() <= MAX_SHOWN_CHARS:
            self.insertPlainText(pasted)
            return
        cursor = self.textCursor()
        before = self.toPlainText()
        start, end = sorted((cursor.selectionStart(), cursor.selectionEnd()))
        self.set_text(before[:start] + pasted + before[end:])

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return source.hasText() and not source.hasUrls()
