"""The plot of a parity report: one dot a step, on a band that says what rounding may do."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent, QPen, QPolygonF, QResizeEvent
from PySide6.QtWidgets import QWidget

from app.draw.format import brief, thousands
from app.kit.plotting import AXIS_WIDTH, paint_scale, paint_tag, paint_words, point_of, y_of
from app.kit.theme import Theme
from app.panels.parity import draw
from app.panels.parity.draw import DEPARTS, LOSSY, WITHIN, Points, Quantity
from engine.wire.records import ParityReport

ROLES = {WITHIN: "accent", LOSSY: "warning", DEPARTS: "bad"}
_LANE, _BOTTOM, _TOP = 9, 16, 15
_STACKED = 170


class ParityCanvas(QWidget):
    """`picked(index)` and `pointed(index or None)` count the steps of the report. A tall one shows both quantities."""

    picked = Signal(int)
    pointed = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._report: ParityReport | None = None
        self._quantity: Quantity = "logits"
        self._selected: int | None = None
        self._words = ""
        self._found: dict[Quantity, Points] = {}
        self.setMouseTracking(True)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setMinimumSize(60, 40)
        self.setAccessibleName("Difference at every step")

    @property
    def is_stacked(self) -> bool:
        return self.height() >= _STACKED

    def show_report(self, theme: Theme, report: ParityReport | None, quantity: Quantity, selected: int | None) -> None:
        """`selected` counts the steps of the report."""
        if report is not self._report:
            self._found = {}
        self._theme, self._report, self._quantity, self._selected = theme, report, quantity, selected
        self.update()

    def show_words(self, words: str) -> None:
        """One line below, about the step that is pointed at."""
        if words != self._words:
            self._words = words
            self.update()

    def _plots(self) -> list[tuple[Quantity, QRectF]]:
        area = QRectF(AXIS_WIDTH, _TOP, self.width() - AXIS_WIDTH - 2, self.height() - _TOP - _BOTTOM - _LANE)
        if not self.is_stacked:
            return [(self._quantity, area)]
        half = (area.height() - 18) / 2
        upper = QRectF(area.left(), area.top(), area.width(), half)
        return [("logits", upper), ("kl", upper.translated(0, half + 18))]

    def _points(self, report: ParityReport, quantity: Quantity, plot: QRectF) -> Points:
        if quantity not in self._found:
            self._found[quantity] = draw.points(report, quantity, plot.width())
        return self._found[quantity]

    def paintEvent(self, event: QPaintEvent) -> None:
        report = self._report
        if report is None or not len(report.steps):
            return
        painter = QPainter(self)
        for quantity, plot in self._plots():
            found = self._points(report, quantity, plot)
            if quantity == "logits":
                self._paint_band(painter, report, plot, found)
            paint_scale(painter, self._theme, plot, found.scale)
            if quantity == "logits":
                self._paint_tolerance(painter, report, plot, found)
            self._paint_points(painter, plot, found)
            name = "max |Δ logit|" if quantity == "logits" else "KL, nats"
            paint_tag(
                painter,
                self._theme,
                QRectF(plot.left() - 3, plot.top() - 15, 10, 13),
                name,
                self._theme.color("muted"),
                int(Qt.AlignmentFlag.AlignLeft),
            )
        self._paint_lane(painter, report)
        first, last = int(report.steps[0]), int(report.steps[-1])
        room = QRectF(AXIS_WIDTH, self.height() - _BOTTOM + 1, self.width() - AXIS_WIDTH - 2, _BOTTOM - 1)
        end = f"step {thousands(last)}" if last != first else ""
        paint_words(painter, self._theme, room, f"step {thousands(first)}", end, self._words)

    def _paint_band(self, painter: QPainter, report: ParityReport, plot: QRectF, found: Points) -> None:
        y = y_of(plot, float(found.scale.at(report.tolerance)))
        painter.fillRect(QRectF(plot.left(), y, plot.width(), plot.bottom() - y), self._theme.color("good", 26))

    def _paint_tolerance(self, painter: QPainter, report: ParityReport, plot: QRectF, found: Points) -> None:
        y = y_of(plot, float(found.scale.at(report.tolerance)))
        painter.setPen(QPen(self._theme.color("good"), 1, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        # above the plot: what is written inside lies over points
        text = f"rounding, {report.dtype}: up to {brief(report.tolerance)}"
        place = QRectF(plot.right() - 10, plot.top() - 15, 10, 13)
        paint_tag(painter, self._theme, place, text, self._theme.color("good"))

    def _paint_points(self, painter: QPainter, plot: QRectF, found: Points) -> None:
        places = [point_of(plot, float(x), float(y)) for x, y in zip(found.x, found.y, strict=True)]
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(self._theme.color("accent", 90), 1))
        painter.drawPolyline(QPolygonF(places))
        radius = 2.6 if len(places) < plot.width() / 6 else 1.6
        painter.setPen(Qt.PenStyle.NoPen)
        for place, kind in zip(places, found.kinds, strict=True):
            painter.setBrush(self._theme.color(ROLES[int(kind)]))
            if kind == DEPARTS:  # not by its colour alone
                painter.drawRect(QRectF(place.x() - radius - 1, place.y() - radius - 1, 2 * radius + 2, 2 * radius + 2))
            else:
                painter.drawEllipse(place, radius, radius)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        column = draw.column_of(found, self._selected) if self._selected is not None else None
        if column is not None:
            x = round(places[column].x()) + 0.5
            painter.setPen(QPen(self._theme.color("selected"), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawLine(QPointF(x, plot.top()), QPointF(x, plot.bottom()))

    def _paint_lane(self, painter: QPainter, report: ParityReport) -> None:
        """Where the top token is another one, a cross under its step."""
        _, plot = self._plots()[-1]
        found = next(iter(self._found.values()))
        y = plot.bottom() + _LANE / 2 + 1
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(self._theme.bad), 1.4))
        for x, is_other in zip(found.x, found.disagrees, strict=True):
            if is_other:
                at = plot.left() + float(x) * plot.width()
                painter.drawLine(QPointF(at - 2.5, y - 2.5), QPointF(at + 2.5, y + 2.5))
                painter.drawLine(QPointF(at - 2.5, y + 2.5), QPointF(at + 2.5, y - 2.5))

    def _index(self, event: QMouseEvent) -> int | None:
        if self._report is None or not len(self._report.steps):
            return None
        quantity, plot = self._plots()[0]
        x = (event.position().x() - plot.left()) / max(plot.width(), 1)
        return draw.step_at(self._points(self._report, quantity, plot), x)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self._index(event)
        if index is not None and event.button() == Qt.MouseButton.LeftButton:
            self.picked.emit(index)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self.pointed.emit(self._index(event))

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.pointed.emit(None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._found = {}
