"""The prompt's text editor, which takes a paste of any size, and the drafts of text and token ids."""

from __future__ import annotations

from PySide6.QtCore import QMimeData, QTimer, Signal
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QPlainTextEdit

from app.models.draft import token_ids
from app.panels.prompt.words import IDS, TEXT
from engine.errors import InputError

# Laying out a longer text takes longer than the time between two keys.
MAX_SHOWN_CHARS = 60_000
PREVIEW_CHARS = 1_500
TYPING_PAUSE_MS = 180


class PromptEdit(QPlainTextEdit):
    """Signal: `edited()`, after a pause in typing. A text too long to edit is kept whole, and its beginning shown
    read-only."""

    edited = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._held: str | None = None
        self._pause = QTimer(self, singleShot=True, interval=TYPING_PAUSE_MS)
        self._pause.timeout.connect(self.edited)
        self.setTabChangesFocus(True)
        self.textChanged.connect(self._pause.start)

    @property
    def is_shortened(self) -> bool:
        """Whether a long text is kept whole and only its beginning is shown."""
        return self._held is not None

    def text(self) -> str:
        """The whole text, even if only its beginning is shown."""
        return self.toPlainText() if self._held is None else self._held

    def set_text(self, text: str) -> None:
        """Replace the text."""
        self._held = text if len(text) > MAX_SHOWN_CHARS else None
        self.setReadOnly(self.is_shortened)
        self.setPlainText(text[:PREVIEW_CHARS] + " …" if self.is_shortened else text)
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


class Drafts:
    """The drafts of text and ids, which share one editor: the one not shown is kept."""

    def __init__(self, edit: PromptEdit) -> None:
        self._edit = edit
        self._kept = {TEXT: "", IDS: ""}
        self._shown = TEXT

    @property
    def text(self) -> str:
        return self._edit.text() if self._shown == TEXT else self._kept[TEXT]

    @text.setter
    def text(self, text: str) -> None:
        if self._shown == TEXT:
            self._edit.set_text(text)
        else:
            self._kept[TEXT] = text

    def show(self, mode: str, ids: tuple[int, ...] | None) -> None:
        """Show the draft of a mode. If no ids were written yet, they begin as `ids`, the tokens of the text (None:
        unknown), or the text itself if it is a list of ids."""
        if mode == self._shown:
            return
        text = self._kept[self._shown] = self._edit.text()
        if mode == IDS and not self._kept[IDS]:
            self._kept[IDS] = " ".join(map(str, ids)) if ids else _ids_in(text)
        self._shown = mode
        self._edit.set_text(self._kept[mode])


def _ids_in(text: str) -> str:
    """The text, if it is a list of token ids, else empty."""
    try:
        token_ids(text, None, seed=0)
    except InputError:
        return ""
    return text
