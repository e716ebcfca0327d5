"""Moves and wheel turns of the mouse, given to one widget.

`QTest.mouseMove` moves the cursor of the screen instead, and the platform gives the move to the oldest window that
stands there: in a process with several windows that is another one than the test means.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QApplication, QWidget

from app.kit.plot import Plot

_NONE = Qt.MouseButton.NoButton


def move_mouse(widget: QWidget, place: QPoint | QPointF, held: Qt.MouseButton = _NONE) -> None:
    """The mouse goes to a place of a widget, with a button held or none."""
    at, on_screen = QPointF(place), QPointF(widget.mapToGlobal(place))
    event = QMouseEvent(QEvent.Type.MouseMove, at, on_screen, _NONE, held, Qt.KeyboardModifier.NoModifier)
    QApplication.sendEvent(widget, event)


def point_at(plot: Plot, index: int | None) -> None:
    """One of the points of a plot is pointed at, as its keys and the mouse do; None: none is."""
    plot.canvas._point(index)


def turn_wheel(
    widget: QWidget, place: QPoint | QPointF, notches: int, keys: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier
) -> None:
    """The wheel is turned over a place of a widget: up, away from the hand, is positive. `keys` are held meanwhile."""
    at, on_screen = QPointF(place), QPointF(widget.mapToGlobal(place))
    event = QWheelEvent(
        at, on_screen, QPoint(), QPoint(0, 120 * notches), _NONE, keys, Qt.ScrollPhase.NoScrollPhase, False
    )
    QApplication.sendEvent(widget, event)
