"""A heat map over tokens: an 8-bit image with thin axes, wheel zoom along the tokens, crosshair and selected column.

pyqtgraph converts the values to colours. It is imported with the first picture, because the import takes half as long
as the rest of the window's start. The widget paints directly: a graphics scene would add its own work to every frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QRectF, QSizeF, Qt, Signal
from PySide6.QtGui import QBrush, QImage, QPainter, QPaintEvent, QResizeEvent

from app.draw.axis import ticks
from app.draw.colormap import ColorTable, Indices
from app.draw.ghost import overlay
from app.draw.grid import covers, whole_steps
from app.kit.heatmap_marks import Marks, PictureFrame, paint_marks
from app.kit.pictures import ghost_hatch, pixels_image
from app.kit.text_lines import TextPainter
from app.kit.theme import Themed, current_theme, font_fixed
from app.kit.token_explorer import TokenExplorer

if TYPE_CHECKING:
    from app.kit.heatmap_image import StretchedImage

_COLUMN_STEP = 64
_TICK_PIXELS = 58


class HeatMap(Themed, TokenExplorer):
    """Shows a picture; x is a position, y a row (channel or head). Signal: `resized()`, the picture's area has another
    size."""

    resized = Signal()

    def __init__(self, name_position: Callable[[int], str]) -> None:
        super().__init__()
        self._name_position = name_position
        self._told_size = QSizeF()
        self._marks = Marks()
        self._frame: PictureFrame | None = None
        self._haze: QImage | None = None
        self._ink = TextPainter(font_fixed(10.5))
        self._image: StretchedImage | None = None
        self._table: ColorTable | None = None
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
            if self._table is not None:
                self._image.setLookupTable(self._table, update=False)
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
        if table is self._table:
            return
        self._table = table
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
        self._extent, self._num_rows, self._marks = (start, stop), max(1, indices.shape[0]), marks
        self._whole = (whole[0], max(whole[1], whole[0] + 1))
        self.image.setImage(indices, levels=(0, 255), autoLevels=False)
        self._changed()
        self._tell_size()

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, theme = QPainter(self), current_theme()
        painter.fillRect(event.rect(), theme.color("panel"))
        frame = self._framed()
        if self._image is not None and self._image.image is not None and self._image.image.size:
            self._paint_image(painter, frame, self._image)
            self._paint_ghosts(painter, frame)
            self._paint_unloaded(painter, frame)
        paint_marks(painter, frame, self._marks, theme, self._ink, self._hover, self.hasFocus())

    def _paint_image(self, painter: QPainter, frame: PictureFrame, image: StretchedImage) -> None:
        """Paint the image stretched over its positions, clipped to the picture's area."""
        rows, columns = image.image.shape
        left, right = frame.x(self._extent[0]), frame.x(self._extent[1])
        painter.save()
        painter.setClipRect(frame.plot)
        painter.translate(left, frame.plot.top())
        painter.scale(max(right - left, 1e-3) / columns, (frame.y(rows) - frame.plot.top()) / rows)
        image.paint(painter)
        painter.restore()

    def _paint_ghosts(self, painter: QPainter, frame: PictureFrame) -> None:
        """Paint the hatch over dropped rows; it is computed once per range, size and picture."""
        ghosts = self._marks.ghosts
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

    def _framed(self) -> PictureFrame:
        """The area, ticks and row names; computed once per range, size and marks."""
        if self._frame is None:
            plot, (low, high) = self.plot_rect, self.visible_range
            names = ticks(low, high, plot.width(), _TICK_PIXELS, self._name_position)
            rows = ticks(0, self._num_rows, plot.height(), 14 if self._num_rows <= 40 else 24, self._marks.row_name)
            self._frame = PictureFrame(plot, low, high, self._num_rows, names, rows)
        return self._frame

    def _changed(self) -> None:
        self._frame = self._haze = None
        self.update()

    def _margins(self) -> tuple[int, int, int, int]:
        return self._marks.left, 7, self._marks.right, 30 if self.height() > 120 else 16

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._changed()
        self._tell_size()

    def _tell_size(self) -> None:
        """Emit `resized` if the area has changed. (A panel's own resize event comes before its layout has placed the
        map.)"""
        size = self.plot_rect.size()
        if size != self._told_size:
            self._told_size = size
            self.resized.emit()
