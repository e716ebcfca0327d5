"""Bytes against what they cost: one mark a cache mode, and the front of those that no other mode beats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QMouseEvent, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QWidget

from app.draw.format import byte_size
from app.kit.plotting import AXIS_WIDTH, paint_scale, paint_tag, paint_words, point_of, y_of
from app.kit.theme import Theme, font_fixed, font_text
from app.panels.sweep import draw
from app.panels.sweep.draw import Cloud

_TOP, _BOTTOM, _RIGHT = 16, 31, 6
_REACH = 9.0
_RADIUS = 4.0


class SweepCanvas(QWidget):
    """`pointed(name or "")` and `picked(name)`: the mode whose mark is under the mouse."""

    pointed = Signal(str)
    picked = Signal(str)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._cloud: Cloud | None = None
        self._names: dict[str, str] = {}
        self._marked = self._rests_on = ""
        self._words = ""
        self.setMouseTracking(True)
        self.setMinimumSize(80, 60)
        self.setAccessibleName("Bytes against KL of every cache mode")

    def show_cloud(
        self, theme: Theme, cloud: Cloud, names: dict[str, str], marked: str, words: str, rests_on: str = ""
    ) -> None:
        """`names` are what the modes are called; `marked` has a ring, `words` stand below, or else what is best and on
        how many tokens that `rests_on`."""
        self._theme, self._cloud, self._names, self._marked, self._words = theme, cloud, names, marked, words
        self._rests_on = rests_on
        self.setAccessibleDescription(self._best_words())
        self.update()

    def _best_words(self) -> str:
        best = "— best for its bytes"
        return f"{best}, over {self._rests_on}" if self._rests_on else best

    def _plot(self) -> QRectF:
        return QRectF(AXIS_WIDTH, _TOP, self.width() - AXIS_WIDTH - _RIGHT, self.height() - _TOP - _BOTTOM)

    def _place(self, index: int) -> QPointF:
        assert self._cloud is not None
        # the floor's marks stand on its band, not under it
        return point_of(self._inner(), float(self._cloud.x[index]), float(self._cloud.y[index]))

    def _inner(self) -> QRectF:
        return self._plot().adjusted(0, 0, 0, -9)

    def paintEvent(self, event: QPaintEvent) -> None:
        cloud = self._cloud
        if cloud is None or not cloud.names:
            return
        painter = QPainter(self)
        plot, inner = self._plot(), self._inner()
        floor = y_of(inner, 0.0)
        painter.fillRect(QRectF(plot.left(), floor - 9, plot.width(), 18), self._theme.color("good", 26))
        paint_scale(painter, self._theme, inner, cloud.y_scale)
        self._paint_bytes(painter, plot, cloud)
        left = int(Qt.AlignmentFlag.AlignLeft)
        muted = self._theme.color("muted")
        paint_tag(painter, self._theme, QRectF(plot.left() - 3, plot.top() - 16, 9, 13), "mean KL, nats", muted, left)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_front(painter, cloud)
        self._paint_marks(painter, cloud)
        self._paint_names(painter, cloud, plot)
        room = QRectF(plot.left(), self.height() - 15, plot.width(), 14)
        paint_words(painter, self._theme, room, "KV bytes", self._best_words(), self._words)

    def _paint_bytes(self, painter: QPainter, plot: QRectF, cloud: Cloud) -> None:
        painter.setFont(font_fixed(10))
        metrics = painter.fontMetrics()
        free = plot.left() - 20
        for at, num_bytes in cloud.x_ticks:
            x = round(plot.left() + at * plot.width()) + 0.5
            painter.setPen(QPen(self._theme.color("hairline"), 1))
            painter.drawLine(QPointF(x, plot.bottom()), QPointF(x, plot.bottom() + 3))
            text = byte_size(num_bytes).replace(".0 ", " ")
            width = metrics.horizontalAdvance(text)
            if x - width / 2 > free and x + width / 2 <= self.width():
                painter.setPen(self._theme.color("muted"))
                painter.drawText(
                    QRectF(x - width, plot.bottom() + 3, 2 * width, 13), int(Qt.AlignmentFlag.AlignHCenter), text
                )
                free = x + width / 2 + 8

    def _paint_front(self, painter: QPainter, cloud: Cloud) -> None:
        """Steps: with fewer bytes than a mark has, no less damage is had than at the one before it."""
        corners: list[QPointF] = []
        for index in cloud.front:
            place = self._place(index)
            if corners:
                corners.append(QPointF(place.x(), corners[-1].y()))
            corners.append(place)
        painter.setPen(QPen(self._theme.color("selected"), 1.3))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPolyline(QPolygonF(corners))

    def _paint_marks(self, painter: QPainter, cloud: Cloud) -> None:
        for index, name in enumerate(cloud.names):
            place = self._place(index)
            role = "good" if cloud.is_lossless[index] else "accent"
            painter.setPen(QPen(self._theme.color(role), 1.6))
            painter.setBrush(self._theme.color("panel" if cloud.is_lossless[index] else role))
            painter.drawEllipse(place, _RADIUS, _RADIUS)
            if name == self._marked:
                painter.setPen(QPen(self._theme.color("text"), 1.4))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawEllipse(place, _RADIUS + 3.5, _RADIUS + 3.5)

    def _paint_names(self, painter: QPainter, cloud: Cloud, plot: QRectF) -> None:
        font = font_text(11)
        painter.setFont(font)
        metrics = QFontMetricsF(font)
        groups = self._groups()
        texts = [self._group_name(group) for group in groups]
        places = [self._place(group[0]) for group in groups]
        first = [n for n, group in enumerate(groups) if set(group) & set(cloud.front)]
        x = np.array([place.x() - plot.left() for place in places])
        y = np.array([place.y() - plot.top() for place in places])
        widths = [metrics.horizontalAdvance(text) for text in texts]
        for label in draw.labels(x, y, widths, (plot.width() + _RIGHT, plot.height()), 13, first):
            is_marked = any(cloud.names[i] == self._marked for i in groups[label.index])
            painter.setPen(self._theme.color("text" if is_marked or label.index in first else "muted"))
            left, middle = plot.left() + label.left, plot.top() + label.middle
            ground = QRectF(left - 2, middle - 6, widths[label.index] + 4, 12)
            painter.fillRect(ground, self._theme.color("panel", 190))
            painter.drawText(QPointF(left, middle + metrics.capHeight() / 2), texts[label.index])

    def _groups(self) -> tuple[tuple[int, ...], ...]:
        assert self._cloud is not None
        places = [self._place(index) for index in range(len(self._cloud.names))]
        return draw.clusters(np.array([p.x() for p in places]), np.array([p.y() for p in places]), 3.0)

    def _group_name(self, group: Sequence[int]) -> str:
        assert self._cloud is not None
        name = self._cloud.names[group[0]]
        text = self._names.get(name, name)
        return text if len(group) == 1 else f"{text} +{len(group) - 1}"

    def _at(self, event: QMouseEvent) -> str:
        if self._cloud is None:
            return ""
        away = [(self._place(i) - event.position()).manhattanLength() for i in range(len(self._cloud.names))]
        if not away or min(away) > _REACH:
            return ""
        return self._cloud.names[away.index(min(away))]

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self.pointed.emit(self._at(event))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if name := self._at(event):
            self.picked.emit(name)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.pointed.emit("")
