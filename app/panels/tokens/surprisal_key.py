"""What the colours of the tokens mean: from no surprise to one in a thousand."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.kit.labels import Opaque
from app.kit.text_lines import TextPainter
from app.kit.theme import Theme, current_theme, font_text

# A surprisal of this many nats has the full colour; e^-7 is one in a thousand.
FULL_SURPRISAL = 7.0
LEAST = 0.35
# How much of the colour covers the ground: with more of it the text on top has less than 4.5 : 1 in the dark theme.
FAINTEST, STRONGEST = 0.08, 0.46
BARS, BAR_WIDTH, BAR_HEIGHT, GAP = 7, 5, 10, 5


def surprisal_color(theme: Theme, surprisal: float | None) -> QColor | None:
    """The ground of a token of that surprisal in nats; None where it has none."""
    if surprisal is None or surprisal < LEAST:
        return None
    share = min(1.0, surprisal / FULL_SURPRISAL)
    return theme.color("signed_positive", round((FAINTEST + (STRONGEST - FAINTEST) * share) * 255))


class SurprisalKey(Opaque, QWidget):
    """A ramp between its two numbers, for the strip of a panel."""

    def __init__(self) -> None:
        super().__init__()
        self._painter = TextPainter(font_text(10.5))
        self._words = ("0", f"{FULL_SURPRISAL:g}+ nats")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setToolTip("Surprisal of a token: minus the logarithm of the probability that it had")
        self.setAccessibleName(f"Colours of surprisal, from 0 to {FULL_SURPRISAL:g} nats and more")
        self.set_background("title_strip")

    def sizeHint(self) -> QSize:
        words = sum(self._painter.width(word) for word in self._words)
        return QSize(round(words) + BARS * BAR_WIDTH + 2 * GAP, 16)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        painter.setPen(current_theme().color("muted"))
        middle = self.height() / 2
        self._painter.left(painter, 0, middle, self._words[0])
        left = self._painter.width(self._words[0]) + GAP
        painter.setPen(Qt.PenStyle.NoPen)
        for bar in range(BARS):
            color = surprisal_color(current_theme(), FULL_SURPRISAL * (bar + 0.5) / BARS)
            if color is not None:
                painter.fillRect(QRectF(left + bar * BAR_WIDTH, middle - BAR_HEIGHT / 2, BAR_WIDTH, BAR_HEIGHT), color)
        painter.setPen(current_theme().color("muted"))
        self._painter.left(painter, left + BARS * BAR_WIDTH + GAP, middle, self._words[1])
