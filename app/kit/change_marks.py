"""Paints what was done by hand before a moment: a diamond for an edit, a square for another cache mode."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QPainter, QPen, QPolygonF

from app.draw.change_marks import MarkKind
from app.kit.theme import current_theme

_ROLES = {"edit": "edited", "mode": "page_shared", "road": "selected"}


def paint_mark(painter: QPainter, at: QPointF, kind: MarkKind) -> None:
    """On a line whose moment is at that point; another road stands below it."""
    theme = current_theme()
    painter.setPen(QPen(theme.color("panel"), 1))
    painter.setBrush(theme.color(_ROLES.get(kind, "muted")))
    x, y = at.x(), at.y()
    if kind == "mode":
        painter.drawRect(QRectF(x - 3.5, y - 3.5, 7, 7))
    elif kind == "edit":
        painter.drawPolygon(QPolygonF([QPointF(x, y - 5), QPointF(x + 5, y), QPointF(x, y + 5), QPointF(x - 5, y)]))
    elif kind == "road":
        painter.drawPolygon(QPolygonF([QPointF(x - 4, y + 9), QPointF(x + 4, y + 9), QPointF(x, y + 3)]))
    else:
        painter.drawEllipse(at, 2.5, 2.5)
