"""What charts share in pointing at things: nothing is pointed at once the mouse or the focus has gone."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QEvent
from PySide6.QtGui import QFocusEvent


class PointsWhileThere:
    """Stands before the widget among the bases of a chart, whose `_point(item or None)` it calls."""

    def _point(self, item: Any) -> None:
        raise NotImplementedError

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)  # type: ignore[misc]
        self._point(None)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)  # type: ignore[misc]
        self._point(None)
