"""A few numbers beside each other, each under its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetricsF, QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.kit.labels import plain_tip
from app.kit.theme import current_theme, font_fixed, font_text

HEIGHT = 31
_GAP = 10.0
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)


@dataclass(frozen=True)
class Reading:
    """A number with its name, its short name for narrow places, the colour role of the number and what it means."""

    name: str
    short: str
    value: str
    tip: str = ""
    role: str = "text"


class FactStrip(QWidget):
    """Columns as wide as what they hold; where room is scarce the names are short."""

    def __init__(self) -> None:
        super().__init__()
        self._facts: tuple[Reading, ...] = ()
        self._is_faded = False
        self._names, self._numbers = font_text(10.5), font_fixed(12)
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_facts(self, facts: Sequence[Reading], *, is_faded: bool = False) -> None:
        if (tuple(facts), is_faded) != (self._facts, self._is_faded):
            self._facts, self._is_faded = tuple(facts), is_faded
            self.setAccessibleName(", ".join(f"{fact.name} {fact.value}" for fact in self._facts))
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(200, HEIGHT)

    def _placed(self) -> list[tuple[QRectF, Reading, str]]:
        """Where each stands; what is left of the width goes between them evenly."""
        if not self._facts:
            return []
        names, numbers = QFontMetricsF(self._names), QFontMetricsF(self._numbers)
        for is_short in (False, True):
            labels = [fact.short if is_short else fact.name for fact in self._facts]
            widths = [
                max(names.horizontalAdvance(label), numbers.horizontalAdvance(fact.value)) + 1
                for label, fact in zip(labels, self._facts, strict=True)
            ]
            free = self.width() - sum(widths) - _GAP * (len(widths) - 1)
            if free >= 0:
                break
        more = max(0.0, free) / len(widths)
        x, placed = 0.0, []
        for width, fact, label in zip(widths, self._facts, labels, strict=True):
            placed.append((QRectF(x, 0, width, HEIGHT), fact, label))
            x += width + _GAP + more
        return placed

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setOpacity(0.55 if self._is_faded else 1.0)
        for place, fact, label in self._placed():
            painter.setFont(self._names)
            painter.setPen(current_theme().color("muted"))
            painter.drawText(QRectF(place.left(), 0, place.width(), 14), _LEFT, label)
            painter.setFont(self._numbers)
            painter.setPen(current_theme().color(fact.role))
            painter.drawText(QRectF(place.left(), 14, place.width(), 17), _LEFT, fact.value)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent):
            tip = next((fact.tip for place, fact, _ in self._placed() if place.contains(event.pos())), "")
            QToolTip.showText(event.globalPos(), plain_tip(tip), self)
            return True
        return super().event(event)
