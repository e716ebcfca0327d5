"""Keeps a growing list scrolled to its end until the user scrolls away; a small button then leads back."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QAbstractScrollArea, QPushButton, QScrollBar

from app.kit.changes import connect_all

EDGE = 6


class EndFollower(QObject):
    """Whether a scroll area follows its end. Only the user's scrolling ends that; a new length, size or layout does
    not."""

    def __init__(self, area: QAbstractScrollArea, slack: int) -> None:
        super().__init__(area)
        self._area = area
        self._slack = slack
        self._follows = True
        self._button = QPushButton("newest ↓", area)
        self._button.setObjectName("small")
        self._button.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._button.setToolTip("Follow the newest token again")
        self._button.setAccessibleName("Follow the newest token")
        self._button.hide()
        connect_all(
            (self._button.clicked, self.resume),
            (self._bar.actionTriggered, self._on_scrolled),
            (self._bar.rangeChanged, self._on_range),
        )
        area.viewport().installEventFilter(self)

    @property
    def _bar(self) -> QScrollBar:
        return self._area.verticalScrollBar()

    @property
    def is_following(self) -> bool:
        return self._follows

    @property
    def button(self) -> QPushButton:
        """The button that leads back to the end; hidden while the end is followed."""
        return self._button

    def resume(self) -> None:
        """Scroll to the end, and follow it."""
        self._follow(True)
        self._bar.setValue(self._bar.maximum())

    def follow_if_at_end(self) -> None:
        """After scrolling something into view: follow the end if it is in view as well."""
        self._follow(self._is_at_end(self._bar.value()))

    def _follow(self, follows: bool) -> None:
        self._follows = follows
        self._button.setVisible(not follows)
        # the button has a line of its own below the rows, so that it covers none of them
        self._area.setViewportMargins(0, 0, 0, 0 if follows else self._button.sizeHint().height() + EDGE)
        self._place()

    def _is_at_end(self, value: int) -> bool:
        return value >= self._bar.maximum() - self._slack

    def _on_scrolled(self) -> None:
        """The user scrolled by wheel, key or drag; the bar's value changes only after this signal, its slider
        before."""
        self._follow(self._is_at_end(self._bar.sliderPosition()))

    def _on_range(self, _least: int, most: int) -> None:
        if self._follows:
            self._bar.setValue(most)
        elif most == 0:
            self._follow(True)

    def _place(self) -> None:
        view, size = self._area.viewport().geometry(), self._button.sizeHint()
        self._button.setGeometry(
            view.right() - size.width() - EDGE, view.bottom() + 1 + EDGE // 2, size.width(), size.height()
        )
        self._button.raise_()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize and not self._follows:
            self._place()
        return False
