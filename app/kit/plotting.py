"""What the small plots share: a frame, a logarithmic axis on its left, and words along its edges."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen

from app.draw.scale import LogScale
from app.kit.theme import Theme, font_fixed, font_text

AXIS_WIDTH = 36
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_MIDDLE = int(Qt.AlignmentFlag.AlignCenter)


def paint_scale(painter: QPainter, theme: Theme, plot: QRectF, scale: LogScale) -> None:
    """Decades as hairlines with their names to the left of the plot; the floor by its own mark."""
    painter.setFont(font_fixed(10))
    marks = scale.ticks(max(2, int(plot.height() // 26)))
    last = plot.bottom() + 99
    for mark in marks:
        y, text = y_of(plot, mark.at), mark.text
        painter.setPen(QPen(theme.color("hairline"), 1))
        painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        if last - y >= 12:  # the floor and the first decade may be too close for two names
            painter.setPen(theme.color("muted"))
            painter.drawText(QRectF(plot.left() - AXIS_WIDTH, y - 7, AXIS_WIDTH - 5, 14), _RIGHT, text)
            last = y


def y_of(plot: QRectF, share: float) -> float:
    """A share from the bottom as a crisp line."""
    return round(plot.bottom() - share * plot.height()) + 0.5


def point_of(plot: QRectF, x: float, y: float) -> QPointF:
    return QPointF(plot.left() + x * plot.width(), plot.bottom() - y * plot.height())


def paint_words(painter: QPainter, theme: Theme, room: QRectF, left: str, right: str, middle: str = "") -> None:
    """One line under a plot: its ends, and in the text's own colour what is pointed at."""
    painter.setFont(font_text(11))
    metrics = painter.fontMetrics()
    ends = metrics.horizontalAdvance(left), metrics.horizontalAdvance(right)
    wanted = metrics.horizontalAdvance(middle)
    if middle and wanted + sum(ends) + 24 > room.width():  # who points wants to know; the ends can wait
        painter.setPen(theme.color("text"))
        shown = metrics.elidedText(middle, Qt.TextElideMode.ElideRight, int(room.width()))
        painter.drawText(room, _MIDDLE, shown)
        return
    painter.setPen(theme.color("muted"))
    painter.drawText(room, _LEFT, left)
    if sum(ends) + 12 <= room.width():
        painter.drawText(room, _RIGHT, right)
    if middle:
        painter.setPen(theme.color("text"))
        painter.drawText(room.adjusted(ends[0] + 8, 0, -ends[1] - 8, 0), _MIDDLE, middle)


def paint_tag(painter: QPainter, theme: Theme, place: QRectF, text: str, color: QColor, align: int = _RIGHT) -> None:
    """A few words on a plot, on a ground of their own so that points behind stay out of them."""
    painter.setFont(font_text(10.5))
    width = painter.fontMetrics().horizontalAdvance(text) + 6
    left = place.right() - width if align == _RIGHT else place.left()
    box = QRectF(left, place.top(), width, place.height())
    painter.fillRect(box, theme.color("panel", 215))
    painter.setPen(color)
    painter.drawText(box, _MIDDLE, text)
