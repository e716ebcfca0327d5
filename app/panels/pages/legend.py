"""The legend of the page grid: what each colour stands for and how many pages have it; and the grid's colours."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QColor, QLinearGradient, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.kit.labels import Opaque, plain_tip
from app.kit.text_lines import TextPainter
from app.kit.theme import Theme, current_theme, font_text, owner_colors
from app.panels.pages.draw import GridColors
from app.panels.pages.words import LegendKey


@lru_cache(maxsize=8)
def grid_colors(theme: Theme) -> GridColors:
    return GridColors(
        free=theme.page_free,
        used=theme.page_used,
        shared=theme.page_shared,
        cached=theme.page_cached,
        kept=theme.page_kept,
        host=theme.page_host if theme.is_dark else "#b98a3c",
        null=theme.faint,
        ink=theme.text if theme.is_dark else theme.panel,
        young=theme.accent,
        owners=owner_colors(theme),
    )


HEIGHT = 16
_SWATCH, _GAP, _BETWEEN = 9, 5, 13


class Legend(Opaque, QWidget):
    """One line of keys; those that do not fit are left out from the right."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: tuple[LegendKey, ...] = ()
        self._painter = TextPainter(font_text(11))
        self.setFixedHeight(HEIGHT)
        self.set_background()
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_keys(self, keys: tuple[LegendKey, ...]) -> None:
        """Show these keys; repaints only if they changed."""
        if keys == self._keys:
            return
        self._keys = keys
        text = ", ".join(key.text for key in keys)
        self.setAccessibleName(text)
        self.setToolTip(plain_tip(text))
        self.update()

    def minimumSizeHint(self) -> QSize:
        return QSize(1, HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        x = 0.0
        for key in self._keys:
            swatch = _SWATCH * (3 if key.end else 1)
            width = self._painter.width(key.text)
            if x + swatch + _GAP + width > self.width():
                break
            place = QRectF(x, (HEIGHT - _SWATCH) / 2, swatch, _SWATCH)
            self._paint_swatch(painter, place, key)
            painter.setPen(current_theme().color("muted"))
            self._painter.left(painter, x + swatch + _GAP, HEIGHT / 2, key.text)
            x += swatch + _GAP + width + _BETWEEN

    def _paint_swatch(self, painter: QPainter, place: QRectF, key: LegendKey) -> None:
        if not key.color:
            return
        if key.end:
            gradient = QLinearGradient(place.topLeft(), place.topRight())
            gradient.setColorAt(0, QColor(key.color))
            gradient.setColorAt(1, QColor(key.end))
            painter.fillRect(place, gradient)
        else:
            painter.fillRect(place, QColor(key.color))
