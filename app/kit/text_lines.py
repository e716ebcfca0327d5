"""Fast drawing of lines of text in one font: shaping text is the most expensive part of painting."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QFont, QFontMetricsF, QPainter, QStaticText, QTransform

_MOST_KEPT = 2048
# How `QPainter.drawText` places a line in a rectangle.
LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
MIDDLE = int(Qt.AlignmentFlag.AlignCenter)


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
