"""A question to the engine that takes a while: where it stands, and the one button that asks it and gives it up."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QObject, QRectF, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QPushButton, QSizePolicy, QWidget

from app.kit.labels import plain_tip
from app.kit.theme import Theme
from app.models import Models


class Question(QObject):
    """From the click to the answer. `command` names the question as the engine's `Work` does, `kind` its answer in the
    truth model; `changed` says that `is_open`, `done`, `total` or `refusal` is another one."""

    changed = Signal()

    def __init__(self, models: Models, command: str, kind: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._command, self._kind = command, kind
        self._has_begun = self._is_given_up = False
        self.is_open = False
        self.done, self.total = 0, 0
        self.refusal = ""
        models.status.changed.connect(self._on_status)
        models.truth.changed.connect(self._on_answer)

    def ask(self) -> None:
        """The question is about to be sent."""
        self.is_open, self._has_begun, self._is_given_up = True, False, False
        self.done = self.total = 0
        self.refusal = ""
        self.changed.emit()

    def give_up(self) -> None:
        """It was cancelled: closed as soon as the engine rests."""
        self._is_given_up = True

    @property
    def share(self) -> float | None:
        return self.done / self.total if self.is_open and self.total else None

    def _close(self, refusal: str = "") -> None:
        self.is_open, self.refusal = False, refusal
        self.changed.emit()

    def _on_status(self, _old: object, status: Any) -> None:
        if not self.is_open:
            return
        work = status.work
        if work is not None and work.command == self._command:
            self._has_begun = True
            self.done, self.total = work.done, work.total or 0
            self.changed.emit()
        elif work is None and (self._has_begun or self._is_given_up):
            self._close()

    def _on_answer(self, kind: str) -> None:
        if kind != self._kind:
            return
        if refusal := self._models.truth.refusal(kind):
            self._close(refusal)
            return
        answer = getattr(self._models.truth, kind)
        is_last = not isinstance(answer, tuple) or bool(answer and answer[-1].is_last)
        if (self.is_open and is_last) or (not self.is_open and self.refusal):
            self._close()


class AskButton(QPushButton):
    """Says what it asks, or, while that is being answered, how far it is and that a click stops it."""

    asked = Signal()
    stopped = Signal()

    def __init__(self, question: Question, theme: Theme, words: str, parent: QWidget | None = None) -> None:
        super().__init__(words, parent)
        self._question, self._theme, self._words = question, theme, words
        self.setObjectName("small")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.clicked.connect(self._on_clicked)
        question.changed.connect(self.refresh)

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self.update()

    def set_reason(self, reason: str) -> None:
        """Why it cannot be asked now; empty when it can."""
        self.setEnabled(not reason or self._question.is_open)
        self.setToolTip(plain_tip(reason))

    def refresh(self) -> None:
        question = self._question
        far = f"Stop  {question.done}/{question.total}" if question.total else "Stop"
        text = far if question.is_open else self._words
        if text != self.text():
            self.setText(text)
        self.update()

    def _on_clicked(self) -> None:
        if self._question.is_open:
            self._question.give_up()
            self.stopped.emit()
        else:
            self.asked.emit()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        share = self._question.share
        if share is not None:
            painter = QPainter(self)
            painter.fillRect(QRectF(3, self.height() - 3, (self.width() - 6) * share, 2), self._theme.color("accent"))
