"""A heat map over tokens: an 8-bit image with thin axes, wheel zoom along the tokens, crosshair and marks.

pyqtgraph converts the values to colours. It is imported with the first picture, because the import takes half as long
as the rest of the window's start. The widget paints directly: a graphics scene would add its own work to every frame.
Marks are painted in one pass; their cost depends on what fits on the screen, not on the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from PySide6.QtCore import QEvent, QLineF, QPointF, QRectF, QSizeF, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QColor,
    QContextMenuEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QWidget

from app.draw.axis import Tick, ticks
from app.draw.colormap import ZERO, ColorScale, Indices
from app.draw.edited import EditedRows, MarkKind, at, edit_name, edited_rows, touches
from app.draw.format import cell_number, thousands
from app.draw.ghost import overlay
from app.draw.grid import TokenRange, covers, pooled_rows, whole_steps
from app.draw.matrix import Box, Matrix
from app.kit.painting import CLICK_SLOP, MIDDLE, TextPainter, ghost_hatch, loud_color, pixels_image
from app.kit.provenance import pooling_words
from app.kit.theme import Themed, current_theme, font_fixed
from app.models import Models

if TYPE_CHECKING:
    from app.kit.graphics import StretchedImage


_LEAST_SPAN = 4.0
_WHEEL_STEP = 0.8
_COLUMN_STEP = 64
_TICK_PIXELS = 58


class HeatMap(Themed, QWidget):
    """Shows a matrix over tokens; x is a position, y a row (channel or head).

    Signals, in these units: `hovered(point or None)`, `picked(point)`, `dragged(from, to)`, `menu_wanted(point, point
    on the screen)`. A drag pans; if areas can be selected it selects, and pans with Shift or the middle button.
    `zoomed(TokenRange or None)` asks for other visible positions, None for all; whoever keeps the range answers with
    `show_range`. `fit_wanted()` asks for other colour limits; `resized()`: the picture's area has another size.
    """

    hovered = Signal(object)
    picked = Signal(object)
    dragged = Signal(object, object)
    menu_wanted = Signal(object, object)
    zoomed = Signal(object)
    fit_wanted = Signal()
    resized = Signal()

    def __init__(self, name_position: Callable[[int], str]) -> None:
        super().__init__()
        self._range: TokenRange | None = None
        self.can_select = False  # whether a drag selects an area
        self._is_selecting = False  # the present drag selects an area instead of panning
        self.hover: QPointF | None = None
        self._pressed: QPointF | None = None
        self._dragged_from: tuple[float, float] | None = None
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self._name_position = name_position
        self._announced_size = QSizeF()
        self.marks = Marks()
        self._frame: PictureFrame | None = None
        self._haze: QImage | None = None
        self._ink = TextPainter(font_fixed(10.5))
        self._image: StretchedImage | None = None
        self.matrix: Matrix | None = None
        self._scale: ColorScale | None = None
        self._indices: Indices | None = None  # `[rows, columns]`
        self._row_name: Callable[[int], str] = str
        self._has_numbers = False
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setMinimumSize(60, 40)

    # ---- what is shown -------------------------------------------------------------------------------------------

    @property
    def plot_rect(self) -> QRectF:
        """The area of the picture in the widget's pixels, without the labels."""
        left, top, right, bottom = self._margins()
        return QRectF(left, top, max(1, self.width() - left - right), max(1, self.height() - top - bottom))

    @property
    def image(self) -> StretchedImage:
        """The image item; made, and pyqtgraph imported, when it is first needed."""
        if self._image is None:
            from app.kit.graphics import StretchedImage

            self._image = StretchedImage(axisOrder="row-major", autoDownsample=False)
        return self._image

    @property
    def num_columns(self) -> int:
        """How many columns the picture has pixels for, in steps of 64, so that dragging a splitter requests few
        pictures."""
        return whole_steps(self.plot_rect.width() * self.devicePixelRatioF(), _COLUMN_STEP)

    @property
    def is_loaded(self) -> bool:
        """Whether the picture covers all visible positions."""
        return covers(self._loaded, self.visible_range)

    @property
    def _loaded(self) -> tuple[float, float]:
        """The positions that were requested; within them nothing exists beyond the picture's end."""
        return (0.0, 1.0) if self.matrix is None else self.matrix.asked or self.matrix.extent

    @property
    def _whole(self) -> tuple[float, float]:
        first, last = (0.0, 1.0) if self.matrix is None else self.matrix.whole
        return first, max(last, first + 1)

    def take_theme(self) -> None:
        self._changed()

    def show_matrix(
        self,
        matrix: Matrix,
        scale: ColorScale,
        indices: Indices,
        marks: Marks,
        *,
        row_name: Callable[[int], str] | None = None,
        has_numbers: bool = False,
    ) -> None:
        """Show a matrix in these colours, with its own names of rows (or `row_name`), borders, evicted cells and, if
        wanted, numbers under the marks."""
        if self._scale is None or scale.table is not self._scale.table:
            self.image.setLookupTable(scale.table, update=False)
        self.matrix, self._scale, self._indices, self.marks = matrix, scale, indices, marks
        self._row_name, self._has_numbers = row_name or matrix.names, has_numbers
        self._fit_image()
        self._changed()
        self._tell_size()

    def _fit_image(self) -> None:
        """Make the image, with at most one row per pixel."""
        if self._indices is not None and self._scale is not None:
            room = round(self.plot_rect.height() * self.devicePixelRatioF())
            pooled = pooled_rows(self._indices, max(1, room), ZERO if self._scale.is_signed else 0)
            self.image.setImage(pooled, levels=(0, 255), autoLevels=False)

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, frame = QPainter(self), self.framed()
        painter.fillRect(event.rect(), current_theme().color("panel"))
        if self.matrix is not None and self._image is not None and self.matrix.low.size:
            self._paint_image(painter, frame, self._image, self.matrix)
            self._paint_ghosts(painter, frame, self.matrix)
            self._paint_unloaded(painter, frame)
            _paint_lines(painter, frame, self.marks.x_lines, self.matrix.borders)
            if self._has_numbers:
                self._paint_numbers(painter, frame, self.matrix)
        _paint_axes(painter, frame, self.marks.left, self._ink)
        paint_marks(painter, frame, self.marks, self.hover)
        if self.hasFocus():
            painter.setPen(QPen(current_theme().color("accent"), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(frame.plot.adjusted(-1.5, -1.5, 0.5, 0.5))

    def _paint_image(self, painter: QPainter, frame: PictureFrame, image: StretchedImage, matrix: Matrix) -> None:
        """Paint the image stretched over its positions, clipped to the picture's area."""
        rows, columns = image.image.shape
        left, right = frame.x(matrix.extent[0]), frame.x(matrix.extent[1])
        painter.save()
        painter.setClipRect(frame.plot)
        painter.translate(left, frame.plot.top())
        painter.scale(max(right - left, 1e-3) / columns, frame.plot.height() / rows)
        image.paint(painter)
        painter.restore()

    def _paint_ghosts(self, painter: QPainter, frame: PictureFrame, matrix: Matrix) -> None:
        """Paint the hatch over evicted rows; it is computed once per range, size and picture."""
        if matrix.gone is None:
            return
        if self._haze is None:
            ratio = self.devicePixelRatioF()
            size = (round(frame.plot.width() * ratio), round(frame.plot.height() * ratio))
            pixels = overlay(matrix.gone, frame.low, frame.high, *size, ghost_hatch(current_theme(), ratio))
            self._haze = QImage() if pixels is None else pixels_image(pixels, ratio)
        if not self._haze.isNull():
            painter.drawImage(frame.plot.topLeft(), self._haze)

    def _paint_unloaded(self, painter: QPainter, frame: PictureFrame) -> None:
        """Hatch the visible positions that were not loaded yet: left blank they would look like zeros."""
        for low, high in ((frame.low, self._loaded[0]), (self._loaded[1], frame.high)):
            left, right = frame.x(max(low, frame.low)), frame.x(min(high, frame.high))
            if right - left >= 1:
                place = QRectF(left, frame.plot.top(), right - left, frame.plot.height())
                painter.fillRect(place, QBrush(current_theme().color("hairline"), Qt.BrushStyle.Dense5Pattern))
                painter.setPen(current_theme().color("muted"))
                center = place.center()
                words = "not there yet"  # requested, or not computed
                if self._ink.width(words) < place.width():
                    self._ink.between(painter, words, center.x(), center.y(), left, right, place.width())

    def _paint_numbers(self, painter: QPainter, frame: PictureFrame, matrix: Matrix) -> None:
        """Write the values into the cells if these are large enough for three digits."""
        width, height = frame.cell_width * matrix.per_column, frame.plot.height() / frame.num_rows
        if width < _NUMBER_CELL or height < _NUMBER_LINE or self._indices is None or self._scale is None:
            return
        first = max(0, int((frame.low - matrix.start) // matrix.per_column))
        last = min(matrix.low.shape[1], int(-(-(frame.high - matrix.start) // matrix.per_column)))
        painter.setFont(font_fixed(9.5))
        painter.save()
        painter.setClipRect(frame.plot)
        for row, column in zip(*np.nonzero(~matrix.is_gone[:, first:last]), strict=True):
            left = frame.x(matrix.start + (first + column) * matrix.per_column)
            painter.setPen(QColor(self._scale.inks[self._indices[row, first + column]]))
            text = cell_number(float(matrix.shown[row, first + column]), width)
            painter.drawText(QRectF(left, frame.y(row), width, height), MIDDLE, text)
        painter.restore()

    def framed(self) -> PictureFrame:
        """The area, ticks, row names and note; computed once per range, size and marks."""
        if self._frame is None:
            plot, (low, high) = self.plot_rect, self.visible_range
            num_rows = 1 if self._indices is None else max(1, len(self._indices))
            names = ticks(low, high, plot.width(), _TICK_PIXELS, self._name_position)
            rows = ticks(0, num_rows, plot.height(), 14 if num_rows <= 40 else 24, self._row_name)
            note = "" if self.matrix is None else pooling_words(self.matrix.per_column)
            self._frame = PictureFrame(plot, low, high, num_rows, names, rows, note)
        return self._frame

    def _changed(self) -> None:
        self._frame = self._haze = None
        self.update()

    def _margins(self) -> tuple[int, int, int, int]:
        return self.marks.left, 7, 1, 30 if self.height() > 120 else 16

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_image()
        self._changed()
        self._tell_size()

    def _tell_size(self) -> None:
        """Emit `resized` if the area has changed. (A panel's own resize event comes before its layout has placed the
        map.)"""
        size = self.plot_rect.size()
        if size != self._announced_size:
            self._announced_size = size
            self.resized.emit()

    # ---- what is visible -----------------------------------------------------------------------------------------

    @property
    def visible_range(self) -> tuple[float, float]:
        found = None if self._range is None else self._range.within(*self._whole)
        return self._whole if found is None else found

    @property
    def is_zoomed(self) -> bool:
        return self.visible_range != self._whole

    def show_range(self, wanted: TokenRange | None) -> None:
        """Make these positions visible; None: all."""
        if wanted != self._range:
            self._range = wanted
            self._changed()

    # ---- zooming and panning -------------------------------------------------------------------------------------

    def reset_view(self) -> None:
        """Ask for all positions."""
        self.zoomed.emit(None)

    def follow_newest(self) -> None:
        """Ask to follow the last tokens: as many as are visible now, or the last 64."""
        low, high = self.visible_range
        span = high - low if self.is_zoomed else min(64.0, self._whole[1] - self._whole[0])
        self._ask(TokenRange(self._whole[1] - span, self._whole[1], follows=True))

    def zoom_to(self, position: float, span: float = 24.0) -> None:
        """Ask for `span` positions around one."""
        self._ask(TokenRange(position + 0.5 - span / 2, position + 0.5 + span / 2))

    def bring_into_sight(self, position: int) -> None:
        """Ask for as many positions as are visible, around one that is not among them."""
        low, high = self.visible_range
        if not low <= position + 0.5 < high:
            self.zoom_to(position, high - low)

    def zoom(self, factor: float, center: float) -> None:
        low, high = self.visible_range
        span = max((high - low) * factor, _LEAST_SPAN)
        share = (center - low) / (high - low)
        follows = self._range is not None and self._range.follows
        self._ask(TokenRange(center - share * span, center + (1 - share) * span, follows))

    def pan(self, by: float) -> None:
        if self.is_zoomed:
            low, high = self.visible_range
            self._ask(TokenRange(low + by, high + by))

    def _ask(self, wanted: TokenRange) -> None:
        self.zoomed.emit(wanted.moved_into(*self._whole))

    # ---- mouse and keys ------------------------------------------------------------------------------------------

    def point_at(self, pixel: QPointF) -> QPointF | None:
        """Position and row under a pixel; None outside the picture."""
        plot, (low, high) = self.plot_rect, self.visible_range
        if not plot.contains(pixel):
            return None
        x = low + (pixel.x() - plot.left()) / plot.width() * (high - low)
        num_rows = self.framed().num_rows
        y = (pixel.y() - plot.top()) / plot.height() * num_rows
        return QPointF(min(x, np.nextafter(high, low)), min(y, np.nextafter(num_rows, 0)))

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.accept()
        delta = event.angleDelta()
        low, high = self.visible_range
        if abs(delta.x()) > abs(delta.y()) or event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.pan(-(delta.x() or delta.y()) / 120 * (high - low) * 0.1)
            return
        point = self.point_at(event.position())
        self.zoom(_WHEEL_STEP ** (delta.y() / 120), point.x() if point else (low + high) / 2)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        button, is_shifted = event.button(), bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        if button == Qt.MouseButton.LeftButton or (button == Qt.MouseButton.MiddleButton and self.can_select):
            self._pressed, self._dragged_from = event.position(), self.visible_range
            self._is_selecting = self.can_select and button == Qt.MouseButton.LeftButton and not is_shifted

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._pressed is not None and self._dragged_from is not None:
            if self._is_selecting:
                self._select_to(self._pressed, event.position())
            else:
                self._pan_to(event.position().x() - self._pressed.x(), self._dragged_from)
        self.hover_at(self.point_at(event.position()))

    def _pan_to(self, moved: float, dragged_from: tuple[float, float]) -> None:
        if abs(moved) > CLICK_SLOP and self.is_zoomed:
            low, high = dragged_from
            self.pan(low - moved / self.plot_rect.width() * (high - low) - self.visible_range[0])

    def _select_to(self, pressed: QPointF, here: QPointF) -> None:
        """Emit the area between two pixels; a pixel outside the picture counts as the nearest one at its edge."""
        if (here - pressed).manhattanLength() > CLICK_SLOP:
            start, stop = self.point_at(self._inside(pressed)), self.point_at(self._inside(here))
            if start is not None and stop is not None:
                self.dragged.emit(start, stop)

    def _inside(self, pixel: QPointF) -> QPointF:
        plot = self.plot_rect
        return QPointF(min(max(pixel.x(), plot.left()), plot.right()), min(max(pixel.y(), plot.top()), plot.bottom()))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        pressed, self._pressed = self._pressed, None
        if pressed is None or (event.position() - pressed).manhattanLength() > CLICK_SLOP:
            return
        point = self.point_at(event.position())
        if point is not None and event.button() == Qt.MouseButton.LeftButton:
            self.picked.emit(point)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        if self.can_select:
            self.menu_wanted.emit(self.point_at(QPointF(event.pos())), event.globalPos())
        else:
            event.ignore()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self._pressed = None
        self.reset_view()

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.hover_at(None)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier & ~Qt.KeyboardModifier.ShiftModifier:
            event.ignore()
            return
        center = sum(self.visible_range) / 2
        match event.key():
            case Qt.Key.Key_Home:
                self.reset_view()
            case Qt.Key.Key_F:
                self.follow_newest()
            case Qt.Key.Key_Plus | Qt.Key.Key_Equal:
                self.zoom(_WHEEL_STEP, center)
            case Qt.Key.Key_Minus:
                self.zoom(1 / _WHEEL_STEP, center)
            case Qt.Key.Key_C:
                self.fit_wanted.emit()
            case _:
                event.ignore()

    def show_cursor(self, point: QPointF | None) -> None:
        """Draw the crosshair where it is in another map of the same positions and rows; emits nothing."""
        if point != self.hover:
            self.hover = point
            self.update()

    def hover_at(self, point: QPointF | None) -> None:
        if point != self.hover:
            self.show_cursor(point)
            self.hovered.emit(point)


_NUMBER_CELL, _NUMBER_LINE = 24.0, 12  # pixels for a number
_OUTLINED = 4  # an edited place of at least so many pixels has an outline


class Marks(Struct, frozen=True, eq=False):
    """What to draw over the image: `selected`, a span of positions; `selected_row`, one row in it; `area`, the
    positions and rows dragged over; `edited`, places changed by hand; `x_lines`, positions at which something begins;
    `alarms`, positions with NaN or Inf; `flags`, positions that stand out for another reason. `left`: the margin for
    the names of rows, in pixels."""

    left: int = 30
    selected: tuple[float, float] | None = None
    selected_row: int | None = None
    area: Box | None = None
    edited: tuple[Box, ...] = ()
    x_lines: tuple[int, ...] = ()
    alarms: tuple[float, ...] = ()
    flags: tuple[float, ...] = ()


class PictureFrame(Struct, frozen=True):
    """The picture's area in pixels, and the range of positions and rows that it shows."""

    plot: QRectF
    low: float
    high: float
    num_rows: int
    names: tuple[Tick, ...]
    rows: tuple[Tick, ...]
    note: str = ""  # at the right end of the axis

    def x(self, position: float) -> float:
        return self.plot.left() + (position - self.low) / (self.high - self.low) * self.plot.width()

    def y(self, row: float) -> float:
        return self.plot.top() + row / self.num_rows * self.plot.height()

    def rect(self, box: Box) -> QRectF:
        """The visible part of a box, in whole pixels."""
        left, right = round(self.x(max(box.start, self.low))), round(self.x(min(box.stop, self.high)))
        top, bottom = round(self.y(max(box.first, 0))), round(self.y(min(box.last, self.num_rows)))
        return QRectF(
            left, top, max(right - left, 2) if box.stop > self.low and box.start < self.high else 0, bottom - top
        )

    @property
    def cell_width(self) -> float:
        return self.plot.width() / (self.high - self.low)


def paint_marks(painter: QPainter, frame: PictureFrame, marks: Marks, hover: QPointF | None) -> None:
    """Paint the marks over the image, the most important last."""
    _paint_edited(painter, frame, marks.edited)
    if marks.area is not None:
        _paint_area(painter, frame, marks.area)
    if marks.selected is not None:
        _paint_selected(painter, frame, marks.selected)
    if marks.selected_row is not None:
        _paint_row(painter, frame, marks.selected_row)
    if marks.flags:
        _paint_triangles(painter, frame, marks.flags, current_theme().color("page_shared"))
    if marks.alarms:
        _paint_triangles(painter, frame, marks.alarms, QColor(loud_color(current_theme())))
    if hover is not None:
        _paint_crosshair(painter, frame, hover)


def _paint_lines(painter: QPainter, frame: PictureFrame, positions: tuple[int, ...], rows: tuple[int, ...]) -> None:
    painter.setPen(QPen(current_theme().color("text", 170), 1))
    for position in positions:
        if frame.low < position < frame.high:
            x = round(frame.x(position))
            painter.drawLine(QPointF(x, frame.plot.top()), QPointF(x, frame.plot.bottom() - 1))
    painter.setPen(QPen(current_theme().color("faint"), 1))
    for row in rows:
        y = round(frame.y(row))
        painter.drawLine(QPointF(frame.plot.left(), y), QPointF(frame.plot.right() - 1, y))


def _paint_axes(painter: QPainter, frame: PictureFrame, margin: int, ink: TextPainter) -> None:
    """Paint the row names at the left, and below the picture token texts, their positions, and tick marks."""
    painter.setPen(current_theme().color("muted"))
    top, bottom = frame.plot.top(), frame.plot.bottom()
    for tick in frame.rows:
        y = min(max(frame.y(tick.at), top + 6), bottom - 6)
        ink.between(painter, tick.text, margin - 7, y, 0, margin - 7, margin)
    names = frame.names
    spacing = (names[1].at - names[0].at) * frame.cell_width if len(names) > 1 else 120.0
    high = frame.plot.right() + 2
    free = ink.right(painter, high, bottom + 21, frame.note) - 8 if frame.note else high
    for tick in names:
        x = frame.x(tick.at)
        ink.between(painter, tick.text, x, bottom + 9, 0, high, spacing - 6)
        place = str(int(tick.at))
        if x + ink.width(place) / 2 < free:
            ink.between(painter, place, x, bottom + 21, 0, high, 60)
    painter.setPen(current_theme().color("faint"))
    painter.drawLines([QLineF(round(x), bottom + 1, round(x), bottom + 3) for x in (frame.x(t.at) for t in names)])


def _paint_selected(painter: QPainter, frame: PictureFrame, span: tuple[float, float]) -> None:
    if span[1] > frame.low and span[0] < frame.high:
        left = max(frame.x(span[0]), frame.plot.left())
        right = min(max(frame.x(span[1]), left + 3), frame.plot.right())
        inner = QRectF(round(left) - 1, frame.plot.top(), round(right - left) + 1, frame.plot.height() - 1)
        _outline(painter, inner, inner.adjusted(-1, -1, 1, 1))


def _paint_area(painter: QPainter, frame: PictureFrame, area: Box) -> None:
    """Outline the area that was dragged over."""
    place = frame.rect(area)
    if not place.isEmpty():
        _outline(painter, place.adjusted(0, 0, -1, -1), place.adjusted(-1, -1, 0, 0))


def _outline(painter: QPainter, inner: QRectF, outer: QRectF) -> None:
    """Outline what is selected: a second outline in the ground colour separates it from cells of a similar colour."""
    painter.setPen(QPen(current_theme().color("signed_middle", 200), 1))
    painter.drawRect(inner)
    painter.setPen(QPen(current_theme().color("selected"), 1))
    painter.drawRect(outer)


def _paint_edited(painter: QPainter, frame: PictureFrame, boxes: tuple[Box, ...]) -> None:
    """Outline what was edited, without covering its numbers; rows masked from attention are hatched as well. A stroke
    above the picture also marks boxes that are too narrow for an outline."""
    color = current_theme().color("edited")
    for box in boxes:
        place = frame.rect(box)
        if place.isEmpty():
            continue
        if box.is_hidden:
            painter.fillRect(place, QBrush(current_theme().color("edited", 150), Qt.BrushStyle.BDiagPattern))
        painter.fillRect(QRectF(place.left(), frame.plot.top() - 3, max(place.width(), 2.0), 2), color)
        if place.width() >= _OUTLINED:
            painter.setPen(QPen(color, 1))
            painter.drawRect(place.adjusted(0, 0, -1, -1))


def _paint_row(painter: QPainter, frame: PictureFrame, row: int) -> None:
    """Paint a wedge at either end of the selected row: a line through it would cover its values."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(current_theme().color("selected"))
    left, right, y = frame.plot.left(), frame.plot.right(), frame.y(row + 0.5)
    painter.drawPolygon(QPolygonF([QPointF(left - 6, y - 4), QPointF(left - 6, y + 4), QPointF(left, y)]))
    painter.drawPolygon(QPolygonF([QPointF(right + 1, y), QPointF(right - 6, y - 4), QPointF(right - 6, y + 4)]))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)


def _paint_triangles(painter: QPainter, frame: PictureFrame, positions: tuple[float, ...], color: QColor) -> None:
    """Paint small triangles above columns that stand out, which differ by shape and not only by colour."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(color)
    top = frame.plot.top() - 1
    for position in positions:
        if frame.low <= position <= frame.high:
            x = frame.x(position)
            painter.drawPolygon(QPolygonF([QPointF(x - 4, top - 6), QPointF(x + 4, top - 6), QPointF(x, top)]))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)


def _paint_crosshair(painter: QPainter, frame: PictureFrame, hover: QPointF) -> None:
    x, y = round(frame.x(hover.x())), round(frame.y(hover.y()))
    painter.setPen(QPen(current_theme().color("text", 130), 1, Qt.PenStyle.DotLine))
    painter.drawLine(QPointF(x, frame.plot.top()), QPointF(x, frame.plot.bottom() - 1))
    painter.drawLine(QPointF(frame.plot.left(), y), QPointF(frame.plot.right() - 1, y))


_MOST = 3  # edits of one place that are named; earlier ones are only counted


def edits_shown(models: Models, seq_id: int | None = None) -> tuple[EditedRows, ...]:
    """The rows of a sequence (None: the selected one) that were edited up to the step shown; for a fork, also those
    edited in its ancestors before it was forked."""
    now = models.selection.now
    made = {
        one.step: one.edit
        for of, tip, _ in models.timeline.lineage(now.seq_id if seq_id is None else seq_id, now.step)
        for one in models.edits.on_path(tip)
        if one.edit.seq_id == of
    }
    return edited_rows(sorted(made.items(), key=lambda one: one[0]))


def words_at(
    models: Models,
    position: int,
    layer: int | None = None,
    kv_head: int | None = None,
    tensor: str = "",
    channel: int | None = None,
    seq_id: int | None = None,
) -> str:
    """`edited: zero at step 12, mask at step 14`: the edits that affected a place of a sequence (None: the selected
    one); empty if there are none."""
    found = [
        one for one in at(edits_shown(models, seq_id), position, channel) if touches(one.rows, layer, kv_head, tensor)
    ]
    words = [f"{edit_name(one.edit).lower()} at step {thousands(one.step)}" for one in found[-_MOST:]]
    more = f", and {len(found) - _MOST} before" if len(found) > _MOST else ""
    return f"edited: {', '.join(words)}{more}" if words else ""


_ROLES = {"edit": "edited", "mode": "page_shared", "branch": "selected"}


def paint_mark(painter: QPainter, at: QPointF, kind: MarkKind) -> None:
    """Paint the symbol of a node at its point on the line; the triangle of a branch is below it."""
    theme = current_theme()
    painter.setPen(QPen(theme.color("panel"), 1))
    painter.setBrush(theme.color(_ROLES.get(kind, "muted")))
    x, y = at.x(), at.y()
    if kind == "mode":
        painter.drawRect(QRectF(x - 3.5, y - 3.5, 7, 7))
    elif kind == "edit":
        painter.drawPolygon(QPolygonF([QPointF(x, y - 5), QPointF(x + 5, y), QPointF(x, y + 5), QPointF(x - 5, y)]))
    elif kind == "branch":
        painter.drawPolygon(QPolygonF([QPointF(x - 4, y + 9), QPointF(x + 4, y + 9), QPointF(x, y + 3)]))
    else:
        painter.drawEllipse(at, 2.5, 2.5)
