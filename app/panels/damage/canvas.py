"""The surfaces of the damage panel: maps of errors on one scale of colours, and bars of divergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QHelpEvent, QImage, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QToolTip, QWidget

from app.draw.colormap import HIGHEST, magnitude_index, packed
from app.draw.format import brief, decimal, divergence_words
from app.kit.labels import plain_tip
from app.kit.pictures import magnitude_colors, pixels_image
from app.kit.theme import Theme, font_fixed, font_text
from app.panels.damage import draw
from app.panels.damage.draw import Bar, Cell, Grid

_TITLE, _AXIS, _GAP, _LEGEND = 15, 14, 12, 54
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
_BAR, _LEAST_BAR, _MOST_BAR = 8, 10.0, 19.0


@dataclass(frozen=True)
class Chosen:
    """What is selected: a head of a layer, and a place on the picture's axis (None: none)."""

    layer: int
    head: int
    place: int | None = None


class MapCanvas(QWidget):
    """Grids side by side. `pointed(grid, cell or None)` under the mouse, `picked(grid, cell)` on a click."""

    pointed = Signal(object, object)
    picked = Signal(object, object)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._grids: tuple[Grid, ...] = ()
        self._limit, self._most = 1.0, 0.0
        self._chosen = Chosen(0, 0)
        self._axis = ""
        self._images: tuple[QImage, ...] = ()
        self._bar = QImage()
        self.setMouseTracking(True)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setMinimumSize(60, 30)

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self._forget()

    def show_grids(self, grids: Sequence[Grid], axis: str) -> None:
        """`axis` names what the columns are."""
        self._grids, self._axis = tuple(grids), axis
        self._limit, self._most = draw.shared_limit(self._grids), draw.largest(self._grids)
        self._forget()

    def set_chosen(self, chosen: Chosen) -> None:
        if chosen != self._chosen:
            self._chosen = chosen
            self.update()

    @property
    def limit(self) -> float:
        return self._limit

    def _forget(self) -> None:
        self._images, self._bar = (), QImage()
        self.update()

    # ---- places --------------------------------------------------------------------------------------------------

    def plots(self) -> tuple[QRectF, ...]:
        """Where each picture stands."""
        count = max(1, len(self._grids))
        labels = QFontMetricsF(font_fixed(10)).horizontalAdvance("L88") + 6
        room = self.width() - labels - _LEGEND - _GAP * (count - 1)
        width = max(1, int(room / count))
        height = max(1, self.height() - _TITLE - _AXIS)
        return tuple(QRectF(int(labels) + i * (width + _GAP), _TITLE, width, height) for i in range(count))

    def _pixels(self, plot: QRectF) -> tuple[int, int]:
        ratio = self.devicePixelRatioF()
        return int(plot.width() * ratio), int(plot.height() * ratio)

    def _at(self, point: QPointF) -> tuple[Grid, Cell] | None:
        ratio = self.devicePixelRatioF()
        for shown, plot in zip(self._grids, self.plots(), strict=False):
            if plot.contains(point):
                x, y = int((point.x() - plot.left()) * ratio), int((point.y() - plot.top()) * ratio)
                cell = draw.find(shown, x, y, *self._pixels(plot))
                return (shown, cell) if cell is not None else None
        return None

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._grids:
            return
        painter = QPainter(self)
        plots, table = self.plots(), magnitude_colors(self._theme)
        if not self._images:
            ratio = self.devicePixelRatioF()
            self._images = tuple(
                pixels_image(draw.paint(shown, *self._pixels(plot), self._limit, table), ratio)
                for shown, plot in zip(self._grids, plots, strict=True)
            )
        for number, (shown, plot) in enumerate(zip(self._grids, plots, strict=True)):
            painter.drawImage(plot.topLeft(), self._images[number])
            painter.setPen(QPen(self._theme.color("hairline"), 1))
            painter.drawRect(plot.adjusted(-0.5, -0.5, 0.5, 0.5))
            self._paint_layers(painter, shown, plot, has_names=number == 0)
            self._paint_words(painter, shown, plot)
            self._paint_exact(painter, shown, plot)
            self._paint_chosen(painter, shown, plot)
        self._paint_legend(painter, plots[-1])

    def _paint_layers(self, painter: QPainter, shown: Grid, plot: QRectF, *, has_names: bool) -> None:
        ratio, last = self.devicePixelRatioF(), -99.0
        painter.setFont(font_fixed(10))
        spans = draw.layer_spans(shown, self._pixels(plot)[1])
        places = {layer: plot.top() + (start + stop) / 2 / ratio for layer, start, stop in spans}
        chosen = places.get(self._chosen.layer, -99.0)
        for layer, start, stop in spans:
            top, middle = plot.top() + start / ratio, plot.top() + (start + stop) / 2 / ratio
            is_chosen = layer == self._chosen.layer
            if start and (stop - start) / ratio >= 6:
                painter.setPen(QPen(self._theme.color("panel"), 1))
                painter.drawLine(QPointF(plot.left(), round(top)), QPointF(plot.right() - 1, round(top)))
            near = min(middle - last, abs(middle - chosen)) if not is_chosen else 99.0
            if has_names and near >= 11:
                painter.setPen(self._theme.color("text" if is_chosen else "muted"))
                painter.drawText(QRectF(0, middle - 7, plot.left() - 5, 14), _LEFT, f"L{layer}")
                last = middle

    def _paint_words(self, painter: QPainter, shown: Grid, plot: QRectF) -> None:
        painter.setFont(font_text(10.5))
        metrics = painter.fontMetrics()
        painter.setPen(self._theme.color("text"))
        title = metrics.elidedText(shown.title, Qt.TextElideMode.ElideRight, int(plot.width()))
        painter.drawText(QRectF(plot.left(), 0, plot.width(), _TITLE - 2), _LEFT, title)
        painter.setPen(self._theme.color("muted"))
        count = shown.stop or shown.values.shape[1] * shown.per_column
        line = QRectF(plot.left(), plot.bottom() + 1, plot.width(), _AXIS)
        painter.drawText(line, _LEFT, "0")
        painter.drawText(line, _RIGHT, str(count - 1))
        words = self._axis
        if shown.per_column > 1:
            words = f"{self._axis}, {shown.per_column} per column"
        if metrics.horizontalAdvance(words) + 60 < plot.width():
            painter.drawText(line, int(Qt.AlignmentFlag.AlignCenter), words)

    def _paint_exact(self, painter: QPainter, shown: Grid, plot: QRectF) -> None:
        """Why the end of a picture is blank."""
        first = draw.exact_from(shown)
        if first is None:
            return
        left = plot.left() + plot.width() * first / shown.values.shape[1]
        room = QRectF(left + 4, plot.top(), plot.right() - left - 8, plot.height())
        painter.setFont(font_text(10.5))
        painter.setPen(self._theme.color("muted"))
        for words in shown.blank_words:
            if painter.fontMetrics().horizontalAdvance(words) <= room.width():
                painter.drawText(room, int(Qt.AlignmentFlag.AlignCenter), words)
                return

    def _paint_chosen(self, painter: QPainter, shown: Grid, plot: QRectF) -> None:
        """The head as a frame across, the place as a frame down: the same one in every picture."""
        ratio = self.devicePixelRatioF()
        width, height = self._pixels(plot)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        row = draw.row_span(shown, self._chosen.layer, self._chosen.head, height)
        if row is not None:
            top, tall = plot.top() + row[0] / ratio, max((row[1] - row[0]) / ratio, 3.0)
            painter.setPen(QPen(self._theme.color("selected"), 1.2))
            painter.drawRect(QRectF(plot.left() - 0.5, top - 0.5, plot.width(), tall))
        if self._chosen.place is not None:
            column = draw.column_span(shown, self._chosen.place, width)
            if column is not None:
                left, wide = plot.left() + column[0] / ratio, max((column[1] - column[0]) / ratio, 2.0)
                painter.setPen(QPen(self._theme.color("selected", 150), 1))
                painter.drawRect(QRectF(round(left) - 0.5, plot.top() - 0.5, round(wide), plot.height()))

    def _paint_legend(self, painter: QPainter, plot: QRectF) -> None:
        """The scale that all pictures share."""
        ratio, left = self.devicePixelRatioF(), plot.right() + 9
        height = int(plot.height())
        if self._bar.isNull():
            values = np.linspace(self._limit, 0, max(2, int(height * ratio)), dtype=np.float32)
            words = packed(magnitude_colors(self._theme))[np.minimum(magnitude_index(values, self._limit), HIGHEST)]
            self._bar = pixels_image(np.repeat(words[:, None], int(7 * ratio), axis=1), ratio)
        painter.drawImage(QPointF(left, plot.top()), self._bar)
        painter.setPen(QPen(self._theme.color("hairline"), 1))
        painter.drawRect(QRectF(left - 0.5, plot.top() - 0.5, 8, height + 1))
        painter.setFont(font_fixed(9.5))
        painter.setPen(self._theme.color("muted"))
        marks = (
            ((0.0, self._limit), (0.5, self._limit / 2), (1.0, 0.0))
            if height > 60
            else ((0.0, self._limit), (1.0, 0.0))
        )
        for share, value in marks:
            y = plot.top() + share * height
            y = min(max(y, plot.top() + 5), plot.bottom() - 5)
            painter.drawText(QRectF(left + 11, y - 7, _LEGEND - 11, 14), _LEFT, short_percent(value))

    # ---- mouse ---------------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        found = self._at(event.position())
        if found is not None and event.button() == Qt.MouseButton.LeftButton:
            self.picked.emit(*found)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        found = self._at(event.position())
        self.pointed.emit(*(found or (None, None)))

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.pointed.emit(None, None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._forget()


class KlBars(QWidget):
    """KL with every layer coded, then with one alone; `picked(layer)` on a click."""

    picked = Signal(int)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._bars: tuple[Bar, ...] = ()
        self._layer = 0
        self.setMinimumSize(60, 30)
        self.setCursor(Qt.CursorShape.PointingHandCursor)

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self.update()

    def show_bars(self, bars: tuple[Bar, ...], layer: int) -> None:
        if (bars, layer) != (self._bars, self._layer):
            self._bars, self._layer = bars, layer
            self.setAccessibleName("; ".join(f"{self._name(bar)} {divergence_words(bar.kl)}" for bar in bars))
            self.update()

    def _name(self, bar: Bar) -> str:
        return "all" if bar.layer is None else f"L{bar.layer}"

    @property
    def _pitch(self) -> float:
        return min((self.height() - _TITLE) / max(1, len(self._bars)), _MOST_BAR)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(font_text(10.5))
        painter.setPen(self._theme.color("text"))
        title = "KL in nats, one layer coded"
        title = painter.fontMetrics().elidedText(title, Qt.TextElideMode.ElideRight, self.width())
        painter.drawText(QRectF(0, 0, self.width(), _TITLE - 2), _LEFT, title)
        painter.setFont(font_fixed(10))
        pitch, last = self._pitch, -99.0
        chosen = next((i for i, bar in enumerate(self._bars) if bar.layer == self._layer), -99)
        for index, bar in enumerate(self._bars):
            middle = _TITLE + (index + 0.5) * pitch
            near = min(middle - last, abs(index - chosen) * pitch) if index != chosen else 99.0
            has_words = near >= _LEAST_BAR
            if has_words:
                last = middle
            self._paint_bar(painter, bar, middle, min(pitch - 2, _BAR), has_words)

    def _paint_bar(self, painter: QPainter, bar: Bar, middle: float, thick: float, has_words: bool) -> None:
        is_chosen = bar.layer == self._layer and bar.layer is not None
        place = QRectF(28, middle - thick / 2, max(8.0, self.width() - 28 - 76), max(1.0, thick))
        painter.fillRect(place, self._theme.color("page_free"))
        role = "accent" if bar.layer is None else "selected" if is_chosen else "page_used"
        length = max(place.width() * bar.share, 1.5 if bar.kl > 0 else 0.0)
        painter.fillRect(QRectF(place.left(), place.top(), length, place.height()), self._theme.color(role))
        if has_words:
            painter.setPen(self._theme.color("text" if is_chosen or bar.layer is None else "muted"))
            painter.drawText(QRectF(0, middle - 7, 26, 14), _LEFT, self._name(bar))
            painter.setPen(self._theme.color("text"))
            number = QRectF(place.right() + 4, middle - 7, 72, 14)
            painter.drawText(number, _RIGHT, divergence_words(bar.kl).removesuffix(" nats"))

    def _bar_at(self, y: float) -> Bar | None:
        index = int((y - _TITLE) // self._pitch)
        return self._bars[index] if y >= _TITLE and 0 <= index < len(self._bars) else None

    def mousePressEvent(self, event: QMouseEvent) -> None:
        bar = self._bar_at(event.position().y())
        if bar is not None and bar.layer is not None:
            self.picked.emit(bar.layer)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent):
            bar = self._bar_at(event.pos().y())
            words = ""
            if bar is not None:
                whose = "every layer coded" if bar.layer is None else f"layer {bar.layer} alone"
                words = f"{whose}: KL {brief(bar.kl, 9)} nats"
            QToolTip.showText(event.globalPos(), plain_tip(words), self)
            return True
        return super().event(event)


def short_percent(value: float) -> str:
    """A share in few characters, for a scale."""
    return "0" if value == 0 else f"{brief(100 * value, 2)} %" if 0 < value < 0.1 else f"{decimal(100 * value, 0)} %"
