"""A grid of layers and kv heads that shows which heads dropped a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPen
from PySide6.QtWidgets import QSizePolicy

from app.draw.format import counted
from app.kit.chart.surface import Surface
from app.kit.theme import Theme, font_fixed
from app.models.eviction_log import HELD

_LABEL, _HEAD = 26, 15
_MOST_CELL, _LEAST_CELL = 22.0, 4.0

LayerHead = tuple[int, int]


class HeadGrid(Surface):
    """Items are `(layer, kv_head)`. A cell has the warning colour where that head dropped the row."""

    def __init__(self) -> None:
        super().__init__("Which heads let it go")
        self._layers: tuple[int, ...] = ()
        self._steps: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._selected: LayerHead = (0, 0)
        self._is_certain = True
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Expanding)
        self.can_be_walked()

    def show_heads(
        self, layers: tuple[int, ...], steps: npt.NDArray[np.int64], selected: LayerHead, *, is_certain: bool
    ) -> None:
        """`steps` `[L, H_kv]`: the step that dropped the row, or HELD; unless `is_certain`, HELD means unknown."""
        is_resized = steps.shape != self._steps.shape
        self._layers, self._steps, self._selected, self._is_certain = layers, steps, selected, is_certain
        gone = int((steps != HELD).sum())
        self.setAccessibleDescription(f"gone from {gone} of {counted(steps.size, 'head')}")
        if is_resized:
            self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        heads = self._steps.shape[1] if self._steps.size else 4
        return QSize(_LABEL + int(min(heads * _MOST_CELL, 200)), 100)

    # ---- items ---------------------------------------------------------------------------------------------------

    def cell_of(self, layer: int, head: int) -> QRectF:
        """The rectangle of a head."""
        wide, high = self._cell_size()
        return QRectF(_LABEL + head * wide, _HEAD + self._layers.index(layer) * high, wide, high)

    def _cell_size(self) -> tuple[float, float]:
        layers, heads = self._steps.shape
        wide, high = (self.width() - _LABEL) / max(1, heads), (self.height() - _HEAD) / max(1, layers)
        return min(_MOST_CELL, max(_LEAST_CELL, wide)), min(_MOST_CELL, max(_LEAST_CELL, high))

    def item_at(self, place: QPointF) -> LayerHead | None:
        if not self._steps.size:
            return None
        wide, high = self._cell_size()
        head, row = int((place.x() - _LABEL) // wide), int((place.y() - _HEAD) // high)
        is_there = 0 <= row < len(self._layers) and 0 <= head < self._steps.shape[1]
        return (self._layers[row], head) if is_there else None

    def items(self) -> Sequence[LayerHead]:
        return [(layer, head) for layer in self._layers for head in range(self._steps.shape[1])]

    def words(self, item: LayerHead) -> str:
        layer, head = item
        step = int(self._steps[self._layers.index(layer), head])
        held = "held" if self._is_certain else "not known: no recorded step dropped it"
        return f"layer {layer}, kv head {head}: {held if step == HELD else f'dropped at step {step}'}"

    # ---- painting ------------------------------------------------------------------------------------------------

    def paint(self, painter: QPainter, theme: Theme) -> None:
        if not self._steps.size:
            return
        self._paint_names(painter, theme)
        for layer, head in self.items():
            place = self.cell_of(layer, head)
            gap = 2.0 if min(place.width(), place.height()) > 8 else 1.0
            self._paint_cell(painter, theme, place.adjusted(0, 0, -gap, -gap), (layer, head))

    def _paint_names(self, painter: QPainter, theme: Theme) -> None:
        wide, high = self._cell_size()
        painter.setFont(font_fixed(10))
        painter.setPen(theme.color("muted"))
        painter.drawText(QRectF(0, 0, _LABEL, _HEAD), int(Qt.AlignmentFlag.AlignLeft), "head")
        for head in range(0, self._steps.shape[1], max(1, int(np.ceil(16 / wide)))):
            place = QRectF(_LABEL + head * wide, 0, wide, _HEAD)
            painter.drawText(place, int(Qt.AlignmentFlag.AlignHCenter), str(head))
        for row in range(0, len(self._layers), max(1, int(np.ceil(12 / high)))):
            place = QRectF(0, _HEAD + row * high, _LABEL - 5, high)
            align = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            painter.drawText(place, align, f"L{self._layers[row]}")

    def _paint_cell(self, painter: QPainter, theme: Theme, cell: QRectF, item: LayerHead) -> None:
        """A filled cell: held or dropped; a hollow one: unknown."""
        step = int(self._steps[self._layers.index(item[0]), item[1]])
        if step == HELD and not self._is_certain:
            painter.setPen(QPen(theme.color("faint"), 1, Qt.PenStyle.DotLine))
            painter.drawRect(cell.adjusted(0.5, 0.5, -0.5, -0.5))
        else:
            painter.fillRect(cell, theme.color("page_used" if step == HELD else "warning"))
        if step != HELD and cell.width() >= 14 and cell.height() >= 10:  # a cross, so that it is not only the colour
            painter.setPen(QPen(theme.color("panel"), 1.3))
            for slope in (3, -3):
                painter.drawLine(cell.center() - QPointF(3, slope), cell.center() + QPointF(3, slope))
        if item in (self._selected, self.pointed_item):
            painter.setPen(QPen(theme.color("selected" if item == self._selected else "text"), 1.5))
            painter.drawRect(cell.adjusted(-0.5, -0.5, 0.5, 0.5))
