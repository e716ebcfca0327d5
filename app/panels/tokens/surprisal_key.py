"""The legend of the token colours: from no surprisal to that of one in a thousand."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.kit.labels import Opaque
from app.kit.text_lines import TextPainter
from app.kit.theme import Theme, current_theme, font_text

# The surprisal in nats of the strongest colour; e^-7 is one in a thousand.
FULL_SURPRISAL = 7.0
LEAST = 0.35
# Opacity of the colour over the background: more would leave less than 4.5 : 1 contrast to the text in the dark theme.
FAINTEST, STRONGEST = 0.08, 0.46
BARS, BAR_WIDTH, BAR_HEIGHT, GAP = 7, 5, 10, 5


def surprisal_color(theme: Theme, surprisal: float | None) -> QColor | None:
    """The background colour for a surprisal in nats; None if it is unknown or too small."""
    if surprisal is None or surprisal < LEAST:
        return None
    share = min(1.0, surprisal / FULL_SURPRISAL)
    return theme.color("signed_positive", round((FAINTEST + (STRONGEST - FAINTEST) * share) * 255))


class SurprisalKey(Opaque, QWidget):
    """A colour gradient between two numbers, for a panel's title strip."""

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
