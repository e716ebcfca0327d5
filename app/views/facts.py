"""Lines of `name … number`, some with a small picture: the ledger and the inspector are made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from app.draw.spark import Spark, spark
from app.theme import Theme, font_fixed, font_text
from app.views.labels import Ground
from app.views.pictures import argb, loud_color, pixels_image

PITCH = 19
_SPARK_HEIGHT = 14
_ASIDE, _ASIDE_RIGHT = 172, 96
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)


@dataclass(frozen=True)
class Fact:
    """One line. `aside` stands in a quiet column of its own before the text.

    `bars` are drawn as a spark of `color`, `strip` as a row of pixels `0xAARRGGBB`; both stand left of the text.
    """

    label: str
    text: str = ""
    aside: str = ""
    role: str = "text"
    indent: int = 0
    bars: tuple[float, ...] | None = None
    marked: int | None = None
    color: str = "accent"
    strip: tuple[int, ...] | None = None
    has_rule: bool = False


class Facts(Ground, QWidget):
    """Paints the lines, and hands them to screen readers and the clipboard as text."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._palette_of: Theme | None = None
        self._facts: tuple[Fact, ...] = ()
        self._text_font, self._label_font = font_fixed(11.5), font_text(12)
        self.num_paints = 0

    def show_facts(self, theme: Theme, facts: tuple[Fact, ...]) -> None:
        """Repaints only when a line is another one."""
        if theme is self._theme and facts == self._facts:
            return
        old, self._theme, self._facts = self._facts, theme, facts
        self.setAccessibleDescription(self.text())
        if len(facts) != len(old) or theme is not self._palette_of:
            self._palette_of = theme
            self.set_ground(theme)
            self.setMinimumHeight(PITCH * len(facts))
            self.updateGeometry()
            self.update()
            return
        for index in (i for i, pair in enumerate(zip(facts, old, strict=True)) if pair[0] != pair[1]):
            self.update(0, index * PITCH, self.width(), PITCH)

    def text(self) -> str:
        """All lines as plain text."""
        return "\n".join(f"{'  ' * fact.indent}{fact.label}\t{fact.text}".rstrip() for fact in self._facts)

    def sizeHint(self) -> QSize:
        return QSize(220, PITCH * len(self._facts))

    def paintEvent(self, event: QPaintEvent) -> None:
        self.num_paints += 1
        painter = QPainter(self)
        self.fill_ground(painter)
        metrics = QFontMetricsF(self._text_font)
        has_aside = self.width() >= _ASIDE + 124
        changed = event.region()
        for index, fact in enumerate(self._facts):
            if not changed.intersects(QRect(0, index * PITCH, self.width(), PITCH)):
                continue
            row = QRectF(0, index * PITCH, self.width(), PITCH)
            if fact.has_rule:
                painter.setPen(QPen(self._theme.color("hairline"), 1))
                painter.drawLine(row.topLeft() + QPointF(0, 0.5), row.topRight() + QPointF(0, 0.5))
            painter.setFont(self._text_font)
            text_width, shown = metrics.horizontalAdvance(fact.text), fact.text
            if text_width > row.width() * 0.72:
                text_width = row.width() * 0.72
                shown = metrics.elidedText(fact.text, Qt.TextElideMode.ElideMiddle, text_width + 1)
            painter.setPen(self._theme.color(fact.role))
            painter.drawText(row, _RIGHT, shown)
            if fact.aside and has_aside:
                text_width = _ASIDE
                painter.setPen(self._theme.color("muted"))
                painter.drawText(row.adjusted(0, 0, -_ASIDE_RIGHT, 0), _RIGHT, fact.aside)
            free = QRectF(row.left() + 10 * fact.indent, row.top(), row.width() - text_width - 8, PITCH)
            self._paint_label(painter, free, fact)

    def _paint_label(self, painter: QPainter, free: QRectF, fact: Fact) -> None:
        painter.setFont(self._label_font)
        painter.setPen(self._theme.color("muted" if fact.role != "bad" else "bad"))
        metrics = painter.fontMetrics()
        label_width, shown = metrics.horizontalAdvance(fact.label) + 1.0, fact.label
        if label_width > free.width():
            label_width = free.width()
            shown = metrics.elidedText(fact.label, Qt.TextElideMode.ElideRight, int(label_width) + 1)
        painter.drawText(free, _LEFT, shown)
        left = max(free.left() + label_width + 10, free.right() * 0.42)
        place = QRectF(left, free.top() + (PITCH - _SPARK_HEIGHT) / 2, free.right() - left - 2, _SPARK_HEIGHT)
        if place.width() < 16:
            return
        if fact.bars is not None:
            self._paint_bars(painter, place, fact)
        if fact.strip:
            painter.drawImage(place, pixels_image(np.array([fact.strip], dtype=np.uint32)))

    def _paint_bars(self, painter: QPainter, place: QRectF, fact: Fact) -> None:
        ratio = self.devicePixelRatioF()
        width, height = int(place.width() * ratio), int(place.height() * ratio)
        drawn: Spark = spark(fact.bars or (), width, height, gap=max(1, round(ratio)), marked=fact.marked)
        colors = [0, *(argb(c) for c in self._colors(fact.color))]
        painter.drawImage(place.topLeft(), pixels_image(np.array(colors, dtype=np.uint32)[drawn.codes], ratio))

    def _colors(self, role: str) -> tuple[str, str, str]:
        return getattr(self._theme, role), self._theme.selected, loud_color(self._theme)
