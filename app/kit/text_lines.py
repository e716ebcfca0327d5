"""Lines of text in one font at the least cost: of all that a painter does, shaping text takes the longest."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QFont, QFontMetricsF, QPainter, QStaticText, QTransform

_MOST_KEPT = 2048


class TextPainter:
    """Draws lines of text in one font.

    Every text is laid out once: words and tokens come again and again, and a laid out text is drawn in a quarter of
    the time, without handing the interpreter to the engine's thread in between.

    Lines are placed by their middle, and by their left end, right end or middle along; all in logical pixels.
    """

    def __init__(self, font: QFont) -> None:
        self.font = font
        self._metrics = QFontMetricsF(font)
        self._kept: dict[str, tuple[QStaticText, float, float]] = {}

    def width(self, text: str) -> float:
        """How wide a line is."""
        return self._laid(text)[1]

    def elided(self, text: str, room: float) -> str:
        """The text, or as much of it as fits."""
        return text if self.width(text) <= room else self._metrics.elidedText(text, Qt.TextElideMode.ElideRight, room)

    def fitting(self, room: float, *texts: str) -> str:
        """The first of some texts, from long to short, that fits; else as much as fits of the shortest."""
        given = [text for text in texts if text]
        return next((t for t in given if self.width(t) <= room), self.elided(given[-1], room) if given else "")

    def left(self, painter: QPainter, x: float, middle: float, text: str) -> float:
        """Draw from `x` on; where it ends."""
        laid, width, half = self._laid(text)
        painter.setFont(self.font)
        painter.drawStaticText(QPointF(x, middle - half), laid)
        return x + width

    def right(self, painter: QPainter, x: float, middle: float, text: str) -> float:
        """Draw up to `x`; where it begins."""
        begin = x - self._laid(text)[1]
        self.left(painter, begin, middle, text)
        return begin

    def center(self, painter: QPainter, x: float, middle: float, text: str) -> None:
        """Draw around `x`."""
        self.left(painter, x - self._laid(text)[1] / 2, middle, text)

    def between(
        self, painter: QPainter, text: str, x: float, middle: float, low: float, high: float, room: float
    ) -> None:
        """Draw around `x` what fits into `room`, kept between `low` and `high`."""
        shown = self.elided(text, room)
        width = self.width(shown)
        self.left(painter, min(max(x - width / 2, low), high - width), middle, shown)

    def _laid(self, text: str) -> tuple[QStaticText, float, float]:
        """The text with its width and half its height."""
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
