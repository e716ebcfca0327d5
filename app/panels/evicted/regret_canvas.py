"""The scatter of policy regret: a dot a row, by what the rule thinks of it and by what its removal does."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from app.draw.format import decimal
from app.kit.plotting import AXIS_WIDTH, paint_scale, paint_tag, paint_words, point_of, y_of
from app.kit.theme import Theme
from app.panels.evicted import regret_draw as draw
from app.panels.evicted.regret_draw import Scatter
from engine.wire.records import Regret

_TOP, _BOTTOM, _REACH = 16, 17, 9.0


class RegretCanvas(QWidget):
    """`picked(index)` and `pointed(index or None)` count the pages of the answer."""

    picked = Signal(int)
    pointed = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._regret: Regret | None = None
        self._found: Scatter | None = None
        self._marked: int | None = None
        self._words = ""
        self.setMouseTracking(True)
        self.setMinimumSize(80, 60)
        self.setToolTip(
            "Each mark is a row, or a page of rows. Rank correlation is Spearman's, over all marks.\n"
            "○ kept whatever the score: sinks and the latest\n■ a low score, and yet among those that matter most"
        )
        self.setAccessibleName("Effect of removing each row against the rule's score")

    def show_regret(self, theme: Theme, regret: Regret | None, num_rows: int, marked: int | None, words: str) -> None:
        """`num_rows` were in the cache: with them the rule knows which it would never drop."""
        if regret is not self._regret:
            self._found = draw.scatter(regret, num_rows) if regret is not None else None
        self._theme, self._regret, self._marked, self._words = theme, regret, marked, words
        self.setAccessibleDescription(words)
        self.update()

    def _plot(self) -> QRectF:
        return QRectF(AXIS_WIDTH, _TOP, self.width() - AXIS_WIDTH - 8, self.height() - _TOP - _BOTTOM - 6)

    def paintEvent(self, event: QPaintEvent) -> None:
        found = self._found
        if found is None:
            return
        painter = QPainter(self)
        plot = self._plot()
        paint_scale(painter, self._theme, plot, found.scale)
        muted = self._theme.color("muted")
        left = int(Qt.AlignmentFlag.AlignLeft)
        name = "KL without it, nats"
        paint_tag(painter, self._theme, QRectF(plot.left() - 3, plot.top() - 16, 9, 13), name, muted, left)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        radius = 3.0 if len(found.x) < 200 else 2.2
        painter.setPen(Qt.PenStyle.NoPen)
        dots = zip(found.x, found.y, found.is_missed, found.is_protected, strict=True)
        for x, y, is_missed, is_protected in dots:
            place = point_of(plot, float(x), float(y))
            painter.setBrush(self._theme.color("bad" if is_missed else "accent", 255 if is_missed else 200))
            if is_protected:
                painter.setPen(QPen(self._theme.color("muted"), 1.2))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawEllipse(place, radius - 0.4, radius - 0.4)
                painter.setPen(Qt.PenStyle.NoPen)
            elif is_missed:
                painter.drawRect(QRectF(place.x() - radius, place.y() - radius, 2 * radius, 2 * radius))
            else:
                painter.drawEllipse(place, radius, radius)
        if self._marked is not None and self._marked < len(found.x):
            place = point_of(plot, float(found.x[self._marked]), float(found.y[self._marked]))
            painter.setPen(QPen(self._theme.color("selected"), 1.8))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawEllipse(place, radius + 3.2, radius + 3.2)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        y = y_of(plot, 0)
        painter.setPen(QPen(self._theme.color("hairline"), 1))
        painter.drawLine(QPointF(plot.left() + 0.5, plot.top()), QPointF(plot.left() + 0.5, y))
        assert self._regret is not None
        words = f"rank correlation {decimal(self._regret.rank_correlation, is_signed=True)}"
        if found.is_protected.any():
            words += f" · ○ {int(found.is_protected.sum())} never dropped"
        paint_tag(painter, self._theme, QRectF(plot.right() - 10, plot.top() - 16, 10, 13), words, muted)
        room = QRectF(plot.left(), self.height() - 15, plot.width(), 14)
        paint_words(painter, self._theme, room, "← goes first", "the rule keeps it longest →", self._words)

    def _at(self, event: QMouseEvent) -> int | None:
        if self._found is None:
            return None
        plot = self._plot()
        x = (event.position().x() - plot.left()) / max(plot.width(), 1)
        y = (plot.bottom() - event.position().y()) / max(plot.height(), 1)
        return draw.nearest(self._found, x, y, plot.width(), plot.height(), _REACH)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        index = self._at(event)
        self.setCursor(Qt.CursorShape.PointingHandCursor if index is not None else Qt.CursorShape.ArrowCursor)
        self.pointed.emit(index)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self._at(event)
        if index is not None and event.button() == Qt.MouseButton.LeftButton:
            self.picked.emit(index)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.pointed.emit(None)
