"""A heat map over tokens: an 8-bit image with thin axes, wheel zoom along the tokens, crosshair and selected column.

pyqtgraph converts the values to colours. It is imported with the first picture, because the import takes half as long
as the rest of the window's start. The widget paints directly: a graphics scene would add its own work to every frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QPointF, QRectF, QSizeF, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QContextMenuEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QWidget

from app.draw.axis import ticks
from app.draw.colormap import ZERO, ColorScale, ColorTable, Indices
from app.draw.ghost import overlay
from app.draw.grid import TokenRange, covers, pooled_rows, whole_steps
from app.draw.matrix import Matrix
from app.kit.heatmap_marks import CellNumbers, Marks, PictureFrame, paint_marks
from app.kit.pictures import ghost_hatch, pixels_image
from app.kit.provenance import pooling_words
from app.kit.text_lines import TextPainter
from app.kit.theme import Themed, current_theme, font_fixed

if TYPE_CHECKING:
    from app.kit.heatmap_image import StretchedImage

_LEAST_SPAN = 4.0
_WHEEL_STEP = 0.8
_CLICK_SLOP = 4
_COLUMN_STEP = 64
_TICK_PIXELS = 58


class HeatMap(Themed, QWidget):
    """Shows a picture over tokens; x is a position, y a row (channel or head).

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
        self._whole = (0.0, 1.0)
        self._range: TokenRange | None = None
        self._num_rows = 1
        self.can_select = False  # whether a drag selects an area
        self._is_selecting = False  # the present drag selects an area instead of panning
        self.hover: QPointF | None = None
        self._pressed: QPointF | None = None
        self._dragged_from: tuple[float, float] | None = None
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self._name_position = name_position
        self._told_size = QSizeF()
        self.marks = Marks()
        self._frame: PictureFrame | None = None
        self._haze: QImage | None = None
        self._ink = TextPainter(font_fixed(10.5))
        self._image: StretchedImage | None = None
        self._indices: Indices | None = None
        self._ground = 0  # the colour index of zero
        self.table: ColorTable | None = None
        self._extent = self._loaded = (0.0, 1.0)
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
            from app.kit.heatmap_image import StretchedImage

            self._image = StretchedImage(axisOrder="row-major", autoDownsample=False)
            if self.table is not None:
                self._image.setLookupTable(self.table, update=False)
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

    def take_theme(self) -> None:
        self._changed()

    def set_table(self, table: ColorTable) -> None:
        """Set the 256 colours of the values."""
        if table is self.table:
            return
        self.table = table
        if self._image is not None:
            self._image.setLookupTable(table)
            self.update()

    def show_picture(
        self,
        indices: Indices,
        start: float,
        stop: float,
        whole: tuple[float, float],
        marks: Marks,
        loaded: tuple[float, float] | None = None,
    ) -> None:
        """Show `[rows, columns]` over the positions `start … stop`, part of `whole`, with marks over it. `loaded`: the
        positions that were requested, if they are others; within them nothing exists beyond the picture's end."""
        self._loaded = loaded or (start, stop)
        self._extent, self._num_rows, self.marks = (start, stop), max(1, indices.shape[0]), marks
        self._whole = (whole[0], max(whole[1], whole[0] + 1))
        self._indices = indices
        self._fit_image()
        self._changed()
        self._tell_size()

    def _fit_image(self) -> None:
        """Make the image, with at most one row per pixel."""
        if self._indices is not None:
            room = round(self.plot_rect.height() * self.devicePixelRatioF())
            pooled = pooled_rows(self._indices, max(1, room), self._ground)
            self.image.setImage(pooled, levels=(0, 255), autoLevels=False)

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
        wanted, numbers among the marks."""
        stop = matrix.start + indices.shape[1] * matrix.per_column
        numbers = CellNumbers(matrix.shown, indices, scale.inks, matrix.start, matrix.per_column)
        of_matrix = replace(
            marks,
            y_lines=matrix.borders,
            row_name=row_name or matrix.names,
            ghosts=matrix.gone,
            note=pooling_words(matrix.per_column),
            numbers=numbers if has_numbers else None,
        )
        self.set_table(scale.table)
        self._ground = ZERO if scale.is_signed else 0
        self.show_picture(indices, matrix.start, stop, matrix.whole, of_matrix, matrix.asked)

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, theme = QPainter(self), current_theme()
        painter.fillRect(event.rect(), theme.color("panel"))
        frame = self.framed()
        if self._image is not None and self._image.image is not None and self._image.image.size:
            self._paint_image(painter, frame, self._image)
            self._paint_ghosts(painter, frame)
            self._paint_unloaded(painter, frame)
        paint_marks(painter, frame, self.marks, theme, self._ink, self.hover, self.hasFocus())

    def _paint_image(self, painter: QPainter, frame: PictureFrame, image: StretchedImage) -> None:
        """Paint the image stretched over its positions, clipped to the picture's area."""
        rows, columns = image.image.shape
        left, right = frame.x(self._extent[0]), frame.x(self._extent[1])
        painter.save()
        painter.setClipRect(frame.plot)
        painter.translate(left, frame.plot.top())
        painter.scale(max(right - left, 1e-3) / columns, frame.plot.height() / rows)
        image.paint(painter)
        painter.restore()

    def _paint_ghosts(self, painter: QPainter, frame: PictureFrame) -> None:
        """Paint the hatch over evicted rows; it is computed once per range, size and picture."""
        ghosts = self.marks.ghosts
        if ghosts is None:
            return
        if self._haze is None:
            ratio = self.devicePixelRatioF()
            size = (round(frame.plot.width() * ratio), round(frame.plot.height() * ratio))
            pixels = overlay(ghosts, frame.low, frame.high, *size, ghost_hatch(current_theme(), ratio))
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

    def framed(self) -> PictureFrame:
        """The area, ticks and row names; computed once per range, size and marks."""
        if self._frame is None:
            plot, (low, high) = self.plot_rect, self.visible_range
            names = ticks(low, high, plot.width(), _TICK_PIXELS, self._name_position)
            rows = ticks(0, self._num_rows, plot.height(), 14 if self._num_rows <= 40 else 24, self.marks.row_name)
            self._frame = PictureFrame(plot, low, high, self._num_rows, names, rows)
        return self._frame

    def _changed(self) -> None:
        self._frame = self._haze = None
        self.update()

    def _margins(self) -> tuple[int, int, int, int]:
        return self.marks.left, 7, self.marks.right, 30 if self.height() > 120 else 16

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_image()
        self._changed()
        self._tell_size()

    def _tell_size(self) -> None:
        """Emit `resized` if the area has changed. (A panel's own resize event comes before its layout has placed the
        map.)"""
        size = self.plot_rect.size()
        if size != self._told_size:
            self._told_size = size
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
        y = (pixel.y() - plot.top()) / plot.height() * self._num_rows
        return QPointF(min(x, np.nextafter(high, low)), min(y, np.nextafter(self._num_rows, 0)))

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
        if abs(moved) > _CLICK_SLOP and self.is_zoomed:
            low, high = dragged_from
            self.pan(low - moved / self.plot_rect.width() * (high - low) - self.visible_range[0])

    def _select_to(self, pressed: QPointF, here: QPointF) -> None:
        """Emit the area between two pixels; a pixel outside the picture counts as the nearest one at its edge."""
        if (here - pressed).manhattanLength() > _CLICK_SLOP:
            start, stop = self.point_at(self._inside(pressed)), self.point_at(self._inside(here))
            if start is not None and stop is not None:
                self.dragged.emit(start, stop)

    def _inside(self, pixel: QPointF) -> QPointF:
        plot = self.plot_rect
        return QPointF(min(max(pixel.x(), plot.left()), plot.right()), min(max(pixel.y(), plot.top()), plot.bottom()))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        pressed, self._pressed = self._pressed, None
        if pressed is None or (event.position() - pressed).manhattanLength() > _CLICK_SLOP:
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
