"""The base of painted charts: a widget whose items can be pointed at, picked, and reached with the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QEvent, QPoint, QPointF, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.kit.labels import TellsPlaces
from app.kit.theme import Theme, current_theme


class PointsWhileThere:
    """Mixin, named before the widget's class, that stops pointing (`_point(None)`) when mouse or focus leave the
    chart."""

    def _point(self, item: Any) -> None:
        raise NotImplementedError

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)  # type: ignore[misc]
        self._point(None)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)  # type: ignore[misc]
        self._point(None)


_STEPS = {Qt.Key.Key_Up: -1, Qt.Key.Key_Left: -1, Qt.Key.Key_Down: 1, Qt.Key.Key_Right: 1}


class Surface(PointsWhileThere, TellsPlaces, QWidget):
    """Signals: `pointed(item or None)` and `picked(item)`. A subclass paints, says which item is where, lists the items
    in order, and describes each; the description is its tool tip, and is read out when the keys reach it."""

    pointed = Signal(object)
    picked = Signal(object)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._pointed: Any = None
        self.setAccessibleName(name)
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setMouseTracking(True)
        self.setMinimumSize(60, 30)

    # ---- implemented by subclasses -----------------------------------------------------------------------------------

    def paint(self, painter: QPainter, theme: Theme) -> None:
        """Paint everything; the background is painted already."""
        raise NotImplementedError

    def item_at(self, place: QPointF) -> Any:
        """The item at a point of the widget; None if there is none."""
        return None

    def items(self) -> Sequence[Any]:
        """The items in the order in which the keys reach them."""
        return ()

    def words(self, item: Any) -> str:
        """Describe an item."""
        return ""

    # ---- the base ------------------------------------------------------------------------------------------------

    @property
    def pointed_item(self) -> Any:
        """The item that the mouse or the keys point at."""
        return self._pointed

    def can_be_walked(self) -> None:
        """Accept the focus, so that the keys can reach the items."""
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, theme = QPainter(self), current_theme()
        painter.fillRect(self.rect(), theme.color("panel"))
        self.paint(painter, theme)

    def _point(self, item: Any) -> None:
        if item != self._pointed:
            self._pointed = item
            self.pointed.emit(item)
            self.update()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        item = self.item_at(event.position())
        self.setCursor(Qt.CursorShape.PointingHandCursor if item is not None else Qt.CursorShape.ArrowCursor)
        self._point(item)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        item = self.item_at(event.position())
        if item is not None and event.button() == Qt.MouseButton.LeftButton:
            self.picked.emit(item)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step, items = _STEPS.get(Qt.Key(event.key())), list(self.items())
        if step is not None and items:
            at = items.index(self._pointed) + step if self._pointed in items else 0
            self._point(items[min(max(at, 0), len(items) - 1)])
            self.setAccessibleDescription(self.words(self._pointed))
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._pointed is not None:
            self.picked.emit(self._pointed)
        else:
            super().keyPressEvent(event)

    def tip_at(self, place: QPoint) -> str:
        item = self.item_at(QPointF(place))
        return self.words(item) if item is not None else ""
