"""Bytes against what they cost: one mark a cache mode, and the front of those that no other mode beats."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QFontMetricsF, QPainter

from app.draw import names
from app.draw.axis import ByteTicks
from app.draw.format import byte_size
from app.kit.chart.marks import Band, Chart, Curve, Dots, Frame, Mark, Painted
from app.kit.theme import font_text
from app.panels.sweep import draw
from app.panels.sweep.draw import Cloud

_DOT, _RING = 8.0, 15.0
_MARGIN, _FLOOR = 0.45, -0.06


def sweep_chart(cloud: Cloud, labels: dict[str, str], marked: str, rests_on: str) -> Chart:
    """`labels` are what the modes are called; the `marked` one has a ring. `rests_on` says how much was measured."""
    marks: list[Mark] = [
        Band(_FLOOR, 0.045, "good"),
        Curve(*draw.steps_of(cloud), "selected", 1.3),
        _dots(cloud, cloud.is_lossless, "good", "panel"),
        _dots(cloud, ~cloud.is_lossless, "accent", "accent"),
        Painted(_Names(cloud, labels, marked).paint),
    ]
    ringed = np.array([name == marked for name in cloud.names], dtype=np.bool_)
    marks.append(Dots(cloud.x[ringed], cloud.y[ringed], "text", size=_RING))
    low, high = (float(cloud.x.min()), float(cloud.x.max())) if len(cloud.x) else (0.0, 1.0)
    return Chart(
        tuple(marks),
        np.column_stack([cloud.x, cloud.y]),
        ((low - _MARGIN, high + _MARGIN), (_FLOOR, 1.03)),
        ByteTicks(_size_name),
        cloud.scale,
        "mean KL in nats, by KV bytes",
        f"— best for its bytes, over {rests_on}",
        reach=9.0,
        can_zoom_y=True,
    )


def _dots(cloud: Cloud, which: np.ndarray, role: str, fill: str) -> Dots:
    return Dots(cloud.x[which], cloud.y[which], role, size=_DOT, fill=fill)


def _size_name(num_bytes: int) -> str:
    return byte_size(num_bytes).replace(".0 ", " ")


class _Names:
    """The modes' names beside their marks, those of the front first; marks on each other share one."""

    def __init__(self, cloud: Cloud, labels: dict[str, str], marked: str) -> None:
        self._cloud, self._labels, self._marked = cloud, labels, marked
        self._font = font_text(11)

    def paint(self, painter: QPainter, frame: Frame) -> None:
        cloud, rect = self._cloud, frame.rect
        x = np.array([frame.x_of(at) for at in cloud.x]) - rect.left()
        y = np.array([frame.y_of(at) for at in cloud.y]) - rect.top()
        groups = names.clusters(x, y, 3.0)
        texts = [self._group_name(group) for group in groups]
        metrics = QFontMetricsF(self._font)
        widths = [metrics.horizontalAdvance(text) for text in texts]
        first = [n for n, group in enumerate(groups) if set(group) & set(cloud.front)]
        heads = [group[0] for group in groups]
        painter.setFont(self._font)
        for label in names.labels(x[heads], y[heads], widths, (rect.width(), rect.height()), 13, first):
            is_marked = any(cloud.names[i] == self._marked for i in groups[label.index])
            left, middle = rect.left() + label.left, rect.top() + label.middle
            ground = QRectF(left - 2, middle - 6, widths[label.index] + 4, 12)
            painter.fillRect(ground, frame.theme.color("panel", 190))
            painter.setPen(frame.theme.color("text" if is_marked or label.index in first else "muted"))
            painter.drawText(QPointF(left, middle + metrics.capHeight() / 2), texts[label.index])

    def _group_name(self, group: tuple[int, ...]) -> str:
        name = self._cloud.names[group[0]]
        text = self._labels.get(name, name)
        return text if len(group) == 1 else f"{text} +{len(group) - 1}"
