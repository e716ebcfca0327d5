"""What is made with pyqtgraph: the image of a heat map and the canvas of a plot. Imported with the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QPoint, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QImage, QKeyEvent, QMouseEvent, QPainter, QPen
from PySide6.QtWidgets import QWidget

from app.draw.axis import Tick
from app.draw.colormap import packed
from app.kit.bars import PointsWhileThere
from app.kit.chart import AxisTicks, Band, Chart, Curve, Dots, Painted, PlotFrame, SelectedLine, ShadedSpan
from app.kit.painting import CLICK_SLOP
from app.kit.theme import Theme, current_theme, font_fixed, font_text
from app.kit.widgets import connect_all


class StretchedImage(pg.ImageItem):  # type: ignore[misc]  # pyqtgraph has no types
    """An image item whose pixels are in the format that Qt's painter scales fastest (1.7 ms instead of 9 on a full
    screen)."""

    def render(self) -> None:
        """Make the pixels as pyqtgraph would, which however passes the 256 colours to Qt one by one for every
        picture."""
        if self.image is None or not self.image.size or self.lut is None:
            super().render()
            return
        pixels = np.ascontiguousarray(packed(self.lut).take(self.image))
        height, width = pixels.shape
        self.qimage = QImage(pixels.data, width, height, 4 * width, QImage.Format.Format_RGB32)
        self._pixels = pixels  # kept alive here, because the QImage does not own its memory
        self._renderRequired = self._unrenderable = False


_LEFT, _BOTTOM = 46, 17
# Pixels: the height of a name, the least gap between two names side by side, and the space for a name at first.
_LINE, _APART, _NAME_HEIGHT, _NAME_WIDTH = 12, 4, 24, 60
# One named value is enough for a scale that starts at the plot's floor; a single step says nothing of the others.
_LEAST_NAMES = {"left": 1, "bottom": 2}
_MORE_TICKS = 8  # so many more ticks are tried until enough names fit
_ZOOM = 0.8


class _NameAxis(pg.AxisItem):  # type: ignore[misc]  # pyqtgraph has no types
    """An axis with the names that the chart gives, as many as fit."""

    def __init__(self, orientation: str) -> None:
        super().__init__(orientation, maxTickLength=-3)
        self._source: AxisTicks | None = None
        self._names: dict[float, str] = {}
        self._theme: Theme | None = None
        self._metrics = QFontMetricsF(font_fixed(10))
        self.setStyle(tickFont=font_fixed(10), autoExpandTextSpace=False, hideOverlappingLabels=True, tickTextOffset=3)
        self.setGrid(255 if orientation == "left" else False)

    def show_ticks(self, source: AxisTicks, theme: Theme) -> None:
        self._source = source
        if theme is not self._theme:  # pens are costly to set: pyqtgraph writes its titles anew
            self._theme = theme
            self.setPen(QPen(theme.color("hairline"), 1))
            self.setTextPen(QPen(theme.color("muted")))
        self.picture = None
        self.update()

    def tickValues(self, low: float, high: float, size: float) -> list[tuple[float, list[float]]]:
        room = _NAME_HEIGHT if self.orientation == "left" else _NAME_WIDTH
        self._names = {}
        for more in range(_MORE_TICKS if self._source is not None else 0):
            if sum(map(bool, self._names.values())) < _LEAST_NAMES[self.orientation]:
                found = self._source.ticks(max(2, int(size // room)) + more, low, high)  # type: ignore[union-attr]
                self._names = self._named(found, low, high, size)
        return [(1.0, list(self._names))]

    def _named(self, ticks: Sequence[Tick], low: float, high: float, size: float) -> dict[float, str]:
        """The name at each place; empty where it would extend beyond an end of the axis, where pyqtgraph draws none, or
        overlap the name before."""
        names, end = {}, 0.0
        apart = 0 if self.orientation == "left" else _APART
        for tick in ticks:
            at = (tick.at - low) * size / (high - low)
            half = (_LINE if self.orientation == "left" else self._metrics.horizontalAdvance(tick.text)) / 2
            is_free = end <= at - half and at + half <= size
            names[tick.at] = tick.text if is_free else ""
            end = at + half + apart if is_free and tick.text else end
        return names

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        return [self._names.get(value, "") for value in values]


class _MenulessView(pg.ViewBox):  # type: ignore[misc]
    """A view box that shows no menu of its own."""

    right_clicked = Signal(QPoint)

    def mouseClickEvent(self, event: object) -> None:
        if event.button() == Qt.MouseButton.RightButton:  # type: ignore[attr-defined]
            event.accept()  # type: ignore[attr-defined]
            self.right_clicked.emit(event.screenPos().toPoint())  # type: ignore[attr-defined]


class PlotCanvas(PointsWhileThere, pg.GraphicsView):  # type: ignore[misc]
    """Draws a chart. Signals: `pointed()`, `picked(key)` of one of its points, and `menu_wanted(place on the
    screen)`."""

    pointed = Signal()
    picked = Signal(object)
    menu_wanted = Signal(QPoint)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, background=None)
        self.setCacheMode(PlotCanvas.CacheModeFlag.CacheNone)  # a cached background would keep the old theme's colours
        self.chart: Chart | None = None
        self._drawn_in: Theme | None = None
        self._items: list[object] = []
        self._pointed: int | None = None
        self._pressed: QPointF | None = None
        self.is_zoomed = False
        layout = pg.GraphicsLayout()
        layout.setContentsMargins(0, 4, 2, 0)
        layout.setSpacing(0)
        self._view = _MenulessView(enableMenu=False)
        self._view.disableAutoRange()
        self._y, self._x = _NameAxis("left"), _NameAxis("bottom")
        self._y.setWidth(_LEFT)
        self._x.setHeight(_BOTTOM)
        for item, row, column in ((self._y, 0, 0), (self._view, 0, 1), (self._x, 1, 1)):
            layout.addItem(item, row, column)
        for axis in (self._y, self._x):
            axis.setZValue(-1000)  # grid lines are drawn below the points
        self._y.linkToView(self._view)
        self._x.linkToView(self._view)
        self.setCentralItem(layout)
        self.setMinimumSize(40, 24)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        connect_all(
            (self._view.sigRangeChangedManually, self._on_zoomed),
            (self._view.sigRangeChanged, self._on_range),
            (self._view.right_clicked, self.menu_wanted),
        )

    # ---- painting ------------------------------------------------------------------------------------------------

    @property
    def frame(self) -> PlotFrame:
        """The plot's rectangle and the visible range of its axes."""
        x_range, y_range = self._view.viewRange()
        rect = self._view.sceneBoundingRect()
        return PlotFrame(rect, tuple(x_range), tuple(y_range), self.devicePixelRatioF(), current_theme())

    @property
    def pointed_key(self) -> Any:
        """The key of the point under the mouse; None if there is none."""
        return None if self.chart is None or self._pointed is None else self.chart.keys[self._pointed]

    def show_chart(self, chart: Chart) -> None:
        if (current_theme(), chart) == (self._drawn_in, self.chart):
            return
        is_same_plot = self.chart is not None and len(chart.points) >= len(self.chart.points)
        if (pointed := self.pointed_key) is not None:  # it may have another place now, or be gone
            self._pointed = chart.keys.index(pointed) if pointed in chart.keys else None
        self._drawn_in, self.chart = current_theme(), chart
        for item in self._items:
            self._view.removeItem(item)
        self._items = [self._curve(m) if isinstance(m, Curve) else self._dots(m)
                       for m in chart.marks if isinstance(m, Curve | Dots)]  # fmt: skip
        for item in self._items:
            self._view.addItem(item, ignoreBounds=True)
        self._y.show_ticks(chart.y_ticks, self._drawn_in)
        self._x.show_ticks(chart.x_ticks, self._drawn_in)
        self._view.setMouseEnabled(x=True, y=chart.can_zoom_y)
        (left, right), (low, high) = chart.home
        self._view.setLimits(xMin=left, xMax=right, yMin=low, yMax=high)
        if not self.is_zoomed or not is_same_plot:
            self.reset_view()
        self.viewport().update()

    def _curve(self, mark: Curve) -> object:
        style = Qt.PenStyle.DashLine if mark.is_dashed else Qt.PenStyle.SolidLine
        pen = QPen(current_theme().color(mark.role, mark.alpha), mark.width, style)
        pen.setCosmetic(True)
        return pg.PlotCurveItem(mark.x, mark.y, pen=pen, antialias=True)

    def _dots(self, mark: Dots) -> object:
        pen = pg.mkPen(current_theme().color(mark.role, mark.alpha), width=1.5)
        brush = pg.mkBrush(current_theme().color(mark.fill, mark.alpha) if mark.fill is not None else None)
        return pg.ScatterPlotItem(
            x=mark.x, y=mark.y, symbol=mark.symbol, size=mark.size, pen=pen, brush=brush, antialias=True
        )

    def drawBackground(self, painter: QPainter, rect: QRectF) -> None:
        painter.fillRect(rect, current_theme().color("panel"))
        frame = self.frame
        for mark in self.chart.marks if self.chart is not None else ():
            if isinstance(mark, Band):
                top, bottom = frame.y_of(mark.high), frame.y_of(mark.low)
                area = QRectF(frame.rect.left(), top, frame.rect.width(), bottom - top)
            elif isinstance(mark, ShadedSpan):
                left, right = frame.x_of(mark.low) - 6, frame.x_of(mark.high)
                area = QRectF(left, frame.rect.top(), right - left, frame.rect.height())
            else:
                continue
            painter.fillRect(area & frame.rect, current_theme().color(mark.role, 26))

    def drawForeground(self, painter: QPainter, rect: QRectF) -> None:
        if self.chart is None:
            return
        frame = self.frame
        painter.save()
        painter.setClipRect(frame.rect.adjusted(-1, -6, 6, 1))
        for mark in self.chart.marks:
            match mark:
                case Painted(paint):
                    paint(painter, frame)
                case Band(_, high, role, True):
                    self._draw_line(painter, frame, role, y=high)
                case ShadedSpan(_, high, _, name):
                    self._draw_end(painter, frame, high, name)
                case SelectedLine(x, role):
                    self._draw_line(painter, frame, role, x=x)
        if self._pointed is not None:
            self._draw_pointed(painter, frame, *self.chart.points[self._pointed])
        painter.restore()

    def _draw_line(self, painter: QPainter, frame: PlotFrame, role: str, x: float = 0, y: float | None = None) -> None:
        """Draw a line across the plot: dashed and horizontal if `y` is given, else solid and vertical at `x`."""
        rect = frame.rect
        painter.setPen(
            QPen(current_theme().color(role), 1, Qt.PenStyle.DashLine if y is not None else Qt.PenStyle.SolidLine)
        )
        at = round(frame.x_of(x) if y is None else frame.y_of(y)) + 0.5
        if y is None:
            painter.drawLine(QPointF(at, rect.top()), QPointF(at, rect.bottom()))
        else:
            painter.drawLine(QPointF(rect.left(), at), QPointF(rect.right(), at))

    def _draw_end(self, painter: QPainter, frame: PlotFrame, x: float, name: str) -> None:
        """Draw the end of a span, with its name on the side where it fits."""
        at, rect = round(frame.x_of(x)) + 0.5, frame.rect
        painter.setPen(QPen(current_theme().color("muted"), 1, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(at, rect.top()), QPointF(at, rect.bottom()))
        painter.setFont(font_text(10.5))
        width = painter.fontMetrics().horizontalAdvance(name)
        left = at + 4 if at + 4 + width <= rect.right() else at - 4 - width
        painter.drawText(QPointF(left, rect.top() + painter.fontMetrics().ascent()), name)

    def _draw_pointed(self, painter: QPainter, frame: PlotFrame, x: float, y: float) -> None:
        """Draw the crosshair: a vertical line at the point of the read-out, and a ring around it."""
        place = frame.point_of(x, y)
        if self.chart is not None and self.chart.reach is None:
            painter.setPen(QPen(current_theme().color("muted"), 1, Qt.PenStyle.DotLine))
            painter.drawLine(QPointF(place.x(), frame.rect.top()), QPointF(place.x(), frame.rect.bottom()))
        if np.isfinite(y):
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(current_theme().color("text"), 1.4))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawEllipse(place, 5.5, 5.5)

    # ---- zoom ----------------------------------------------------------------------------------------------------

    def reset_view(self) -> None:
        """Show the whole chart again."""
        if self.chart is not None:
            (left, right), (low, high) = self.chart.home
            self._view.setRange(xRange=(left, right), yRange=(low, high), padding=0)
        self.is_zoomed = False

    def _on_zoomed(self, _axes: object) -> None:
        self.is_zoomed = True

    def _on_range(self, *_ranges: object) -> None:
        self.viewport().update()

    # ---- mouse and keys ------------------------------------------------------------------------------------------

    def index_at(self, place: QPointF) -> int | None:
        """Return the index of the point at a place of the widget; None if there is none near."""
        return self.frame.nearest(self.chart.points, place, self.chart.reach) if self.chart is not None else None

    def _point(self, index: int | None) -> None:
        if index != self._pointed:
            self._pointed = index
            self.viewport().update()
            self.pointed.emit()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        index = self.index_at(event.position()) if not event.buttons() else None
        can_pick = index is not None
        self.setCursor(Qt.CursorShape.PointingHandCursor if can_pick else Qt.CursorShape.ArrowCursor)
        self._point(index)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._pressed = event.position()
        super().mousePressEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        super().mouseReleaseEvent(event)
        is_click = self._pressed is not None and (event.position() - self._pressed).manhattanLength() <= CLICK_SLOP
        index = self.index_at(event.position())
        if is_click and self.chart is not None and index is not None and event.button() == Qt.MouseButton.LeftButton:
            self.picked.emit(self.chart.keys[index])

    def keyPressEvent(self, event: QKeyEvent) -> None:
        match event.key():
            case Qt.Key.Key_Left | Qt.Key.Key_Right as key:
                self._walk(1 if key == Qt.Key.Key_Right else -1)
            case Qt.Key.Key_Return | Qt.Key.Key_Enter if self._pointed is not None:
                self.picked.emit(self.pointed_key)
            case Qt.Key.Key_Home:
                self.reset_view()
            case Qt.Key.Key_Plus | Qt.Key.Key_Equal | Qt.Key.Key_Minus as key:
                factor = 1 / _ZOOM if key == Qt.Key.Key_Minus else _ZOOM
                self._view.scaleBy(x=factor, y=factor if self.chart and self.chart.can_zoom_y else None)
                self.is_zoomed = True
            case _:
                QWidget.keyPressEvent(self, event)

    def _walk(self, by: int) -> None:
        """Point at the next point along x, `by` 1 to the right or -1 to the left."""
        if self.chart is None or not len(self.chart.points):
            return
        order = np.argsort(self.chart.points[:, 0], kind="stable")
        if self._pointed is None:
            self._point(int(order[0 if by > 0 else -1]))
            return
        place = int(np.flatnonzero(order == self._pointed)[0]) + by
        self._point(int(order[min(max(place, 0), len(order) - 1)]))
