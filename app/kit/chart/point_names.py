"""Names beside the points of a plot, the most important first; points at one place share a name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QFontMetricsF, QPainter

from app.draw import names
from app.kit.chart.marks import Floats, PlotFrame
from app.kit.theme import font_text


class PointNames:
    """`texts` are the names of the points; those in `first` are placed before the others and are bright, as are those
    in `marked`."""

    def __init__(
        self, x: Floats, y: Floats, texts: Sequence[str], first: Collection[int], marked: Collection[int]
    ) -> None:
        self._x, self._y, self._texts = x, y, texts
        self._first, self._marked = set(first), set(marked)
        self._font = font_text(11)

    def paint(self, painter: QPainter, frame: PlotFrame) -> None:
        rect = frame.rect
        x = np.array([frame.x_of(at) for at in self._x]) - rect.left()
        y = np.array([frame.y_of(at) for at in self._y]) - rect.top()
        groups = names.clusters(x, y, 3.0)
        texts = [self._group_name(group) for group in groups]
        metrics = QFontMetricsF(self._font)
        widths = [metrics.horizontalAdvance(text) for text in texts]
        first = [n for n, group in enumerate(groups) if self._first & set(group)]
        heads = [group[0] for group in groups]
        painter.setFont(self._font)
        for label in names.labels(x[heads], y[heads], widths, (rect.width(), rect.height()), 13, first):
            is_marked = bool(self._marked & set(groups[label.index]))
            left, middle = rect.left() + label.left, rect.top() + label.middle
            ground = QRectF(left - 2, middle - 6, widths[label.index] + 4, 12)
            painter.fillRect(ground, frame.theme.color("panel", 190))
            painter.setPen(frame.theme.color("text" if is_marked or label.index in first else "muted"))
            painter.drawText(QPointF(left, middle + metrics.capHeight() / 2), texts[label.index])

    def _group_name(self, group: tuple[int, ...]) -> str:
        text = self._texts[group[0]]
        return text if len(group) == 1 else f"{text} +{len(group) - 1}"
