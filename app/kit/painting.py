"""What painters share: lines of text in one font, pixel arrays as Qt images, and the colour tables of a theme."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetricsF, QImage, QPainter, QStaticText, QTransform

from app.draw.colormap import ColorScale, ColorTable, contrast_text, magnitude_table, rgb, signed_table
from app.draw.ghost import Hatch, lines
from app.kit.theme import Theme

_MOST_KEPT = 2048
# How `QPainter.drawText` places a line in a rectangle.
LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
MIDDLE = int(Qt.AlignmentFlag.AlignCenter)
CLICK_SLOP = 4  # pixels by which the mouse may move in a click


class TextPainter:
    """Draws lines of text in one font.

    Each text is laid out once and cached: words and tokens repeat, and drawing a laid out text takes a quarter of the
    time.

    Lines are placed by their vertical middle, and horizontally by their left end, right end or centre; in logical
    pixels.
    """

    def __init__(self, font: QFont) -> None:
        self.font = font
        self._metrics = QFontMetricsF(font)
        self._kept: dict[str, tuple[QStaticText, float, float]] = {}

    def width(self, text: str) -> float:
        """The width of a line."""
        return self._laid(text)[1]

    def elided(self, text: str, room: float) -> str:
        """The text, elided to fit into `room` pixels."""
        return text if self.width(text) <= room else self._metrics.elidedText(text, Qt.TextElideMode.ElideRight, room)

    def fitting(self, room: float, *texts: str) -> str:
        """The first of some texts, ordered from long to short, that fits; else the last one, elided."""
        given = [text for text in texts if text]
        return next((t for t in given if self.width(t) <= room), self.elided(given[-1], room) if given else "")

    def left(self, painter: QPainter, x: float, middle: float, text: str) -> float:
        """Draw a text beginning at `x`; returns where it ends."""
        laid, width, half = self._laid(text)
        painter.setFont(self.font)
        painter.drawStaticText(QPointF(x, middle - half), laid)
        return x + width

    def right(self, painter: QPainter, x: float, middle: float, text: str) -> float:
        """Draw a text ending at `x`; returns where it begins."""
        begin = x - self._laid(text)[1]
        self.left(painter, begin, middle, text)
        return begin

    def center(self, painter: QPainter, x: float, middle: float, text: str) -> None:
        """Draw a text centred at `x`."""
        self.left(painter, x - self._laid(text)[1] / 2, middle, text)

    def between(
        self, painter: QPainter, text: str, x: float, middle: float, low: float, high: float, room: float
    ) -> None:
        """Draw a text centred at `x`, elided to `room` and kept between `low` and `high`."""
        shown = self.elided(text, room)
        width = self.width(shown)
        self.left(painter, min(max(x - width / 2, low), high - width), middle, shown)

    def _laid(self, text: str) -> tuple[QStaticText, float, float]:
        """The laid out text with its width and half its height."""
        laid = self._kept.get(text)
        if laid is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            static = QStaticText(text)
            static.setTextFormat(Qt.TextFormat.PlainText)
            static.prepare(QTransform(), self.font)
            size = static.size()
            laid = self._kept[text] = (static, size.width(), size.height() / 2)
        return laid


LOUD = {True: "#ff2fd0", False: "#d400a8"}  # NaN and Inf: magenta, which no colour map and no other role uses


@lru_cache(maxsize=8)
def signed_colors(theme: Theme) -> ColorTable:
    return signed_table(theme.signed_negative, theme.signed_middle, theme.signed_positive, loud_color(theme))


@lru_cache(maxsize=8)
def magnitude_colors(theme: Theme) -> ColorTable:
    top = "#eaf5ff" if theme.is_dark else "#062a52"
    return magnitude_table(theme.signed_middle, theme.accent, top, loud_color(theme))


@lru_cache(maxsize=8)
def color_scale(theme: Theme, *, is_signed: bool) -> ColorScale:
    """The colours of numbers of either sign, or of magnitudes."""
    table = signed_colors(theme) if is_signed else magnitude_colors(theme)
    return ColorScale(table, is_signed, tuple(contrast_text(table)))


def loud_color(theme: Theme) -> str:
    """The colour of NaN and Inf."""
    return LOUD[theme.is_dark]


@lru_cache(maxsize=16)
def ghost_hatch(theme: Theme, ratio: float) -> Hatch:
    """The hatch of a evicted row: thin lines on the panel's background."""
    line = "#414952" if theme.is_dark else "#c2c9d1"
    return Hatch(argb(line), argb(theme.panel), round(5 * ratio))


def ghost_brush(theme: Theme, ratio: float) -> QBrush:
    """The same hatch as a brush, with a transparent ground and stronger lines, to paint over colours and text."""
    pitch = ghost_hatch(theme, ratio).pitch
    is_line = lines(pitch, pitch, 0, 0, pitch)
    return QBrush(pixels_image(np.where(is_line, np.uint32(argb(theme.faint)), np.uint32(0)), ratio))


@lru_cache(maxsize=64)
def argb(color: str) -> int:
    """`#rrggbb` as the 0xAARRGGBB word that `pixels_image` takes."""
    return QColor(color).rgba()


def pixels_image(pixels: npt.NDArray[np.uint32], ratio: float = 1.0) -> QImage:
    """0xAARRGGBB words with premultiplied alpha as an image that owns its memory."""
    height, width = pixels.shape
    flat = np.ascontiguousarray(pixels)
    image = QImage(flat.data, width, height, 4 * width, QImage.Format.Format_ARGB32_Premultiplied).copy()
    image.setDevicePixelRatio(ratio)
    return image


def veil_image(opacity: npt.NDArray[np.float32], color: str, ratio: float) -> QImage:
    """One colour with the opacity `[height, width]` (0 … 1), as an image that owns its memory."""
    shares = np.rint(opacity * 255).astype(np.uint32)
    red, green, blue = ((shares * part + 127) // 255 for part in rgb(color))
    return pixels_image((shares << 24 | red << 16 | green << 8 | blue).astype(np.uint32), ratio)
