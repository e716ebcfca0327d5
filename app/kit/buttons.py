"""Buttons that are constructed together with the slot or action they trigger."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QAction, QKeySequence, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QPushButton, QSizePolicy, QWidget

from app.kit.labels import prose
from app.kit.theme import current_theme, font_text


def push_button(text: str, slot: object, tip: str = "", *, is_small: bool = True) -> QPushButton:
    """A button that calls a slot or emits a signal; `is_small`: low enough for a row inside a panel."""
    button = QPushButton(text)
    if is_small:
        button.setObjectName("small")
    button.setToolTip(tip)
    button.clicked.connect(slot)
    return button


def own_action(widget: QWidget, text: str, slot: object, *, tip: str = "", key: str = "") -> QAction:
    """An action of this widget only, listed in its context menu; its key works while the focus is inside the widget."""
    action = QAction(text, widget)
    if tip:
        action.setToolTip(tip)
    if key:
        action.setShortcut(QKeySequence(key))
        action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
    action.triggered.connect(slot)
    widget.addAction(action)
    return action


class ProgressButton(QPushButton):
    """A small button with a progress line along its lower edge."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._share: float | None = None
        self.setObjectName("small")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def show_progress(self, text: str, share: float | None) -> None:
        """Set the text and the fraction that is done; None: nothing is running, or the total is unknown."""
        if text != self.text():
            self.setText(text)
        if share != self._share:
            self._share = share
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self._share is not None:
            line = QRectF(3, self.height() - 3, (self.width() - 6) * self._share, 2)
            QPainter(self).fillRect(line, current_theme().color("accent"))


class LinkButton(QPushButton):
    """One line of text that works as a link, elided where it is too long; disabled it is plain text."""

    def __init__(self) -> None:
        super().__init__()
        self.words = ""
        self.setObjectName("link")
        self.setFlat(True)
        self.setFont(font_text(12))
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_link(self, words: str, tip: str, *, leads: bool) -> None:
        """Set the line and the tool tip of its link; without `leads` it is plain text."""
        self.words = words
        self.setEnabled(leads)
        self.setAccessibleName(prose(words))
        self.setToolTip(tip if leads else "")
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        room = max(60, self.width() - 6)
        text = self.fontMetrics().elidedText(self.words, Qt.TextElideMode.ElideRight, room).replace("&", "&&")
        if text != self.text():
            self.setText(text)


class ActionButton(QPushButton):
    """A button with a text of its own that triggers an action, and is enabled and explained as that action is."""

    def __init__(self, text: str, action: QAction | None = None, *, is_small: bool = False) -> None:
        super().__init__(text)
        if is_small:
            self.setObjectName("small")
        self.action: QAction | None = None
        self.setEnabled(False)
        if action is not None:
            self.set_action(action)

    def set_action(self, action: QAction) -> None:
        """Set the action; called once."""
        self.action = action
        self.setAccessibleName(action.text())
        self.clicked.connect(action.trigger)
        action.changed.connect(self._follow)
        self._follow()

    def _follow(self) -> None:
        if self.action is not None:
            self.setEnabled(self.action.isEnabled())
            self.setToolTip(self.action.toolTip())
