"""Zooming, panning, pointing and selecting in a picture over tokens, with mouse, wheel and keys."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QKeyEvent, QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QWidget

from app.draw.grid import TokenRange

_LEAST_SPAN = 4.0
_WHEEL_STEP = 0.8
_CLICK_SLOP = 4


class TokenExplorer(QWidget):
    """A widget over positions (x) and rows (y), which the subclass paints in `plot_rect`.

    Signals, in these units: `hovered(point or None)`, `picked(point)`, `dragged(from, to)`, `menu_wanted(point, point
    on the screen)`. A drag pans; if areas can be selected it selects, and pans with Shift or the middle button.
    `zoomed(TokenRange or None)` asks for other visible positions, None for all; whoever keeps the range answers with
    `show_range`. `fit_wanted()` asks for other colour limits.
    """

    hovered = Signal(object)
    picked = Signal(object)
    dragged = Signal(object, object)
    menu_wanted = Signal(object, object)
    zoomed = Signal(object)
    fit_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._whole = (0.0, 1.0)
        self._range: TokenRange | None = None
        self._num_rows = 1
        self._can_select = False
        self._is_selecting = False  # the present drag selects an area instead of panning
        self._hover: QPointF | None = None
        self._pressed: QPointF | None = None
        self._dragged_from: tuple[float, float] | None = None
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    @property
    def plot_rect(self) -> QRectF:
        """The picture's area in the widget's pixels."""
        raise NotImplementedError

    def _changed(self) -> None:
        """Called when other positions are visible."""
        raise NotImplementedError

    # ---- what is visible -----------------------------------------------------------------------------------------

    @property
    def visible_range(self) -> tuple[float, float]:
        found = None if self._range is None else self._range.within(*self._whole)
        return self._whole if found is None else found

    @property
    def hover(self) -> QPointF | None:
        """The point under the mouse, in positions and rows; None if it is elsewhere."""
        return self._hover

    @property
    def is_zoomed(self) -> bool:
        return self.visible_range != self._whole

    def set_can_select(self, can_select: bool) -> None:
        """Set whether a drag selects an area."""
        self._can_select = can_select

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
        if button == Qt.MouseButton.LeftButton or (button == Qt.MouseButton.MiddleButton and self._can_select):
            self._pressed, self._dragged_from = event.position(), self.visible_range
            self._is_selecting = self._can_select and button == Qt.MouseButton.LeftButton and not is_shifted

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._pressed is not None and self._dragged_from is not None:
            if self._is_selecting:
                self._select_to(self._pressed, event.position())
            else:
                self._pan_to(event.position().x() - self._pressed.x(), self._dragged_from)
        self._hover_at(self.point_at(event.position()))

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
        if self._can_select:
            self.menu_wanted.emit(self.point_at(QPointF(event.pos())), event.globalPos())
        else:
            event.ignore()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self._pressed = None
        self.reset_view()

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._hover_at(None)

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
        if point != self._hover:
            self._hover = point
            self.update()

    def _hover_at(self, point: QPointF | None) -> None:
        if point != self._hover:
            self.show_cursor(point)
            self.hovered.emit(point)
