"""Grids of values by layer and head, side by side with one colour scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFontMetricsF, QImage, QPainter, QPen, QResizeEvent

from app.draw import grid as draw
from app.draw.colormap import HIGHEST, magnitude_index, packed
from app.draw.format import brief, decimal
from app.draw.grid import GridCell, ValueGrid
from app.kit.chart.surface import Surface
from app.kit.pictures import magnitude_colors, pixels_image
from app.kit.text_lines import LEFT, MIDDLE, RIGHT
from app.kit.theme import Theme, font_fixed, font_text

_TITLE, _AXIS, _GAP, _SCALE = 15, 14, 12, 60

FoundCell = tuple[ValueGrid, GridCell]


class ChosenHead(Struct, frozen=True):
    """The selection: a head of a layer, and a place on the pictures' axis (None: none)."""

    layer: int
    head: int
    place: int | None = None


class GridMaps(Surface):
    """Draws several grids. An item is (grid, cell). All share one colour scale, drawn at the right."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._grids: tuple[ValueGrid, ...] = ()
        self.limit = 1.0
        self._chosen = ChosenHead(0, 0)
        self._axis = ""
        self._images: tuple[QImage, ...] = ()
        self._images_theme: Theme | None = None

    def show_grids(self, grids: Sequence[ValueGrid], axis: str, chosen: ChosenHead) -> None:
        """Show these grids; `axis` is the name of the columns."""
        self._grids, self._axis, self._chosen = tuple(grids), axis, chosen
        self.limit = draw.shared_limit(self._grids)
        self._images = ()
        self.update()

    # ---- places --------------------------------------------------------------------------------------------------

    def plots(self) -> tuple[QRectF, ...]:
        """The area of each picture."""
        count = max(1, len(self._grids))
        names = QFontMetricsF(font_fixed(10)).horizontalAdvance("L88") + 6
        width = max(1, int((self.width() - names - _SCALE - _GAP * (count - 1)) / count))
        height = max(1, self.height() - _TITLE - _AXIS)
        return tuple(QRectF(int(names) + i * (width + _GAP), _TITLE, width, height) for i in range(count))

    def _pixels(self, plot: QRectF) -> tuple[int, int]:
        ratio = self.devicePixelRatioF()
        return int(plot.width() * ratio), int(plot.height() * ratio)

    def item_at(self, place: QPointF) -> FoundCell | None:
        ratio = self.devicePixelRatioF()
        for shown, plot in zip(self._grids, self.plots(), strict=False):
            if plot.contains(place):
                x, y = int((place.x() - plot.left()) * ratio), int((place.y() - plot.top()) * ratio)
                cell = draw.find(shown, x, y, *self._pixels(plot))
                return (shown, cell) if cell is not None else None
        return None

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._images = ()

    # ---- painting ------------------------------------------------------------------------------------------------

    def paint(self, painter: QPainter, theme: Theme) -> None:
        if not self._grids:
            return
        plots = self.plots()
        if not self._images or theme is not self._images_theme:
            table, ratio = magnitude_colors(theme), self.devicePixelRatioF()
            self._images_theme = theme
            self._images = tuple(
                pixels_image(draw.paint(shown, *self._pixels(plot), self.limit, table), ratio)
                for shown, plot in zip(self._grids, plots, strict=True)
            )
        for number, (shown, plot) in enumerate(zip(self._grids, plots, strict=True)):
            painter.drawImage(plot.topLeft(), self._images[number])
            painter.setPen(QPen(theme.color("hairline"), 1))
            painter.drawRect(plot.adjusted(-0.5, -0.5, 0.5, 0.5))
            self._paint_layers(painter, theme, shown, plot, has_names=number == 0)
            self._paint_words(painter, theme, shown, plot)
            self._paint_chosen(painter, theme, shown, plot)
            self._paint_exact(painter, theme, shown, plot)
        self._paint_scale(painter, theme, plots[-1])

    def _paint_layers(
        self, painter: QPainter, theme: Theme, shown: ValueGrid, plot: QRectF, *, has_names: bool
    ) -> None:
        ratio, last = self.devicePixelRatioF(), -99.0
        painter.setFont(font_fixed(10))
        spans = draw.layer_spans(shown, self._pixels(plot)[1])
        places = {layer: plot.top() + (start + stop) / 2 / ratio for layer, start, stop in spans}
        chosen = places.get(self._chosen.layer, -99.0)
        for layer, start, stop in spans:
            top, middle = plot.top() + start / ratio, places[layer]
            is_chosen = layer == self._chosen.layer
            if start and (stop - start) / ratio >= 6:
                painter.setPen(QPen(theme.color("panel"), 1))
                painter.drawLine(QPointF(plot.left(), round(top)), QPointF(plot.right() - 1, round(top)))
            near = min(middle - last, abs(middle - chosen)) if not is_chosen else 99.0
            if has_names and near >= 11:
                painter.setPen(theme.color("text" if is_chosen else "muted"))
                painter.drawText(QRectF(0, middle - 7, plot.left() - 5, 14), LEFT, f"L{layer}")
                last = middle

    def _paint_words(self, painter: QPainter, theme: Theme, shown: ValueGrid, plot: QRectF) -> None:
        painter.setFont(font_text(10.5))
        metrics = painter.fontMetrics()
        painter.setPen(theme.color("text"))
        title = metrics.elidedText(shown.title, Qt.TextElideMode.ElideRight, int(plot.width()))
        painter.drawText(QRectF(plot.left(), 0, plot.width(), _TITLE - 2), LEFT, title)
        painter.setPen(theme.color("muted"))
        count = shown.stop or shown.values.shape[1] * shown.per_column
        line = QRectF(plot.left(), plot.bottom() + 1, plot.width(), _AXIS)
        painter.drawText(line, LEFT, "0")
        painter.drawText(line, RIGHT, str(count - 1))
        words = f"{self._axis}, {shown.per_column} per column" if shown.per_column > 1 else self._axis
        if metrics.horizontalAdvance(words) + 60 < plot.width():
            painter.drawText(line, MIDDLE, words)

    def _paint_exact(self, painter: QPainter, theme: Theme, shown: ValueGrid, plot: QRectF) -> None:
        """Write why the end of a picture is blank, on a background of its own, as the selection's frame may cross
        it."""
        first = draw.exact_from(shown)
        if first is None:
            return
        left = plot.left() + plot.width() * first / shown.values.shape[1]
        room = QRectF(left + 4, plot.top(), plot.right() - left - 8, plot.height())
        painter.setFont(font_text(10.5))
        painter.setPen(theme.color("muted"))
        for words in shown.blank_words:
            width = painter.fontMetrics().horizontalAdvance(words)
            if width <= room.width():
                middle = room.center()
                painter.fillRect(
                    QRectF(middle.x() - width / 2 - 4, middle.y() - 8, width + 8, 16), theme.color("panel")
                )
                painter.drawText(room, MIDDLE, words)
                return

    def _paint_chosen(self, painter: QPainter, theme: Theme, shown: ValueGrid, plot: QRectF) -> None:
        """Frame the selected head across and the selected place down, the same in every picture."""
        ratio = self.devicePixelRatioF()
        width, height = self._pixels(plot)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        row = draw.row_span(shown, self._chosen.layer, self._chosen.head, height)
        if row is not None:
            top, tall = plot.top() + row[0] / ratio, max((row[1] - row[0]) / ratio, 3.0)
            painter.setPen(QPen(theme.color("selected"), 1.2))
            painter.drawRect(QRectF(plot.left() - 0.5, top - 0.5, plot.width(), tall))
        column = draw.column_span(shown, self._chosen.place, width) if self._chosen.place is not None else None
        if column is not None:
            left, wide = plot.left() + column[0] / ratio, max((column[1] - column[0]) / ratio, 2.0)
            painter.setPen(QPen(theme.color("selected", 150), 1))
            painter.drawRect(QRectF(round(left) - 0.5, plot.top() - 0.5, round(wide), plot.height()))

    def _paint_scale(self, painter: QPainter, theme: Theme, plot: QRectF) -> None:
        """Paint the colour scale of all pictures."""
        ratio, left, height = self.devicePixelRatioF(), plot.right() + 9, int(plot.height())
        values = np.linspace(self.limit, 0, max(2, int(height * ratio)), dtype=np.float32)
        words = packed(magnitude_colors(theme))[np.minimum(magnitude_index(values, self.limit), HIGHEST)]
        painter.drawImage(QPointF(left, plot.top()), pixels_image(np.repeat(words[:, None], int(7 * ratio), 1), ratio))
        painter.setPen(QPen(theme.color("hairline"), 1))
        painter.drawRect(QRectF(left - 0.5, plot.top() - 0.5, 8, height + 1))
        painter.setFont(font_fixed(9.5))
        painter.setPen(theme.color("muted"))
        for share in (0.0, 0.5, 1.0) if height > 60 else (0.0, 1.0):
            y = min(max(plot.top() + share * height, plot.top() + 5), plot.bottom() - 5)
            painter.drawText(QRectF(left + 11, y - 7, _SCALE - 11, 14), LEFT, short_percent(self.limit * (1 - share)))


def short_percent(value: float) -> str:
    """A fraction as a short percentage, for a scale."""
    return "0" if value == 0 else f"{brief(100 * value, 2)} %" if 0 < value < 0.1 else f"{decimal(100 * value, 0)} %"
