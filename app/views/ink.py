"""Lines of text in one font at the least cost: of all that a painter does, shaping text takes the longest."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QFont, QFontMetricsF, QPainter, QStaticText, QTransform

_MOST_KEPT = 1024


class Ink:
    """Words that come again and again are laid out once; in a fixed face the width of plain text is only counted.

    Lines are placed by their middle, and by their left end, right end or middle along; all in logical pixels.
    """

    def __init__(self, font: QFont) -> None:
        self.font = font
        self._metrics = QFontMetricsF(font)
        self._cell = self._metrics.horizontalAdvance("0") if font.fixedPitch() else 0.0
        self._ascent, self._height = self._metrics.ascent(), self._metrics.height()
        self._kept: dict[str, tuple[QStaticText, float]] = {}

    def width(self, text: str) -> float:
        """How wide a line is."""
        if self._cell and text.isascii():
            return len(text) * self._cell
        return self._laid(text)[1]

    def elided(self, text: str, room: float, mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight) -> str:
        """The text, or as much of it as fits."""
        return text if self.width(text) <= room else self._metrics.elidedText(text, mode, room)

    def left(self, painter: QPainter, x: float, middle: float, text: str) -> float:
        """Draw from `x` on; where it ends."""
        painter.setFont(self.font)
        if self._cell and text.isascii():
            painter.drawText(QPointF(x, middle - self._height / 2 + self._ascent), text)
            return x + len(text) * self._cell
        laid, width = self._laid(text)
        painter.drawStaticText(QPointF(x, middle - self._height / 2), laid)
        return x + width

    def right(self, painter: QPainter, x: float, middle: float, text: str) -> float:
        """Draw up to `x`; where it begins."""
        begin = x - self.width(text)
        self.left(painter, begin, middle, text)
        return begin

    def center(self, painter: QPainter, x: float, middle: float, text: str) -> None:
        """Draw around `x`."""
        self.left(painter, x - self.width(text) / 2, middle, text)

    def _laid(self, text: str) -> tuple[QStaticText, float]:
        laid = self._kept.get(text)
        if laid is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            static = QStaticText(text)
            static.setTextFormat(Qt.TextFormat.PlainText)
            static.prepare(QTransform(), self.font)
            laid = self._kept[text] = (static, self._metrics.horizontalAdvance(text))
        return laid
