"""Two small pictures of a drop: which heads let a row go, and the scores of those that went and those that stayed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QHelpEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.draw.format import brief
from app.kit.labels import plain_tip
from app.kit.plotting import paint_words
from app.kit.theme import Theme, font_fixed, font_text
from app.panels.evicted import draw
from app.panels.evicted.draw import HELD, Drop, Ranks

_LABEL, _HEAD = 26, 15
_MOST_CELL, _LEAST_CELL = 22.0, 4.0
_DOT = 5.0


class HeadGrid(QWidget):
    """Layers down, kv heads across. `picked(layer, kv_head)`. A cell is filled where that head let the row go."""

    picked = Signal(int, int)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._layers: tuple[int, ...] = ()
        self._steps: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._selected = (0, 0)
        self._is_certain = True
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(60, 40)
        self.setAccessibleName("Which heads let it go")

    def show_heads(
        self,
        theme: Theme,
        layers: tuple[int, ...],
        steps: npt.NDArray[np.int64],
        selected: tuple[int, int],
        is_certain: bool,
    ) -> None:
        """`steps` `[L, H_kv]`: the step that dropped it, or HELD; unless `is_certain` that is not known."""
        self._is_certain = is_certain
        resized = steps.shape != self._steps.shape
        self._theme, self._layers, self._steps, self._selected = theme, layers, steps, selected
        self.setAccessibleDescription(self._describe())
        if resized:
            self.updateGeometry()
        self.update()

    def _describe(self) -> str:
        gone = int((self._steps != HELD).sum())
        return f"gone from {gone} of {self._steps.size} heads"

    def _held_words(self) -> str:
        return "held" if self._is_certain else "not known: no recorded step dropped it"

    def sizeHint(self) -> QSize:
        heads = self._steps.shape[1] if self._steps.size else 4
        return QSize(_LABEL + int(min(heads * _MOST_CELL, 200)), 100)

    def _cell(self) -> tuple[float, float]:
        layers, heads = self._steps.shape
        room = QRectF(_LABEL, _HEAD, self.width() - _LABEL, self.height() - _HEAD)
        return (
            min(_MOST_CELL, max(_LEAST_CELL, room.width() / max(1, heads))),
            min(_MOST_CELL, max(_LEAST_CELL, room.height() / max(1, layers))),
        )

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._steps.size:
            return
        painter = QPainter(self)
        wide, high = self._cell()
        gap = 2.0 if min(wide, high) > 8 else 1.0
        painter.setFont(font_fixed(10))
        muted = self._theme.color("muted")
        every_layer, every_head = max(1, int(np.ceil(12 / high))), max(1, int(np.ceil(16 / wide)))
        painter.setPen(muted)
        painter.drawText(QRectF(0, 0, _LABEL, _HEAD), int(Qt.AlignmentFlag.AlignLeft), "head")
        for head in range(0, self._steps.shape[1], every_head):
            place = QRectF(_LABEL + head * wide, 0, wide, _HEAD)
            painter.drawText(place, int(Qt.AlignmentFlag.AlignHCenter), str(head))
        for row, layer in enumerate(self._layers):
            if row % every_layer == 0:
                painter.setPen(muted)
                place = QRectF(0, _HEAD + row * high, _LABEL - 5, high)
                painter.drawText(place, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), f"L{layer}")
            for head, step in enumerate(self._steps[row]):
                cell = QRectF(_LABEL + head * wide, _HEAD + row * high, wide - gap, high - gap)
                self._paint_cell(painter, cell, int(step))
                if step != HELD and wide >= 16 and high >= 12:  # not by its colour alone
                    painter.setPen(QPen(self._theme.color("panel"), 1.3))
                    middle = cell.center()
                    painter.drawLine(middle - QPointF(3, 3), middle + QPointF(3, 3))
                    painter.drawLine(middle - QPointF(3, -3), middle + QPointF(3, -3))
                if (layer, head) == self._selected:
                    painter.setPen(QPen(self._theme.color("selected"), 1.5))
                    painter.drawRect(cell.adjusted(-0.5, -0.5, 0.5, 0.5))

    def _paint_cell(self, painter: QPainter, cell: QRectF, step: int) -> None:
        """Filled where the head holds the row or a step dropped it; hollow where nobody can say."""
        if step == HELD and not self._is_certain:
            painter.setPen(QPen(self._theme.color("faint"), 1, Qt.PenStyle.DotLine))
            painter.drawRect(cell.adjusted(0.5, 0.5, -0.5, -0.5))
            return
        painter.fillRect(cell, self._theme.color("page_used" if step == HELD else "warning"))

    def _at(self, x: float, y: float) -> tuple[int, int] | None:
        if not self._steps.size:
            return None
        wide, high = self._cell()
        head, row = int((x - _LABEL) // wide), int((y - _HEAD) // high)
        if 0 <= row < len(self._layers) and 0 <= head < self._steps.shape[1]:
            return row, head
        return None

    def mousePressEvent(self, event: QMouseEvent) -> None:
        place = self._at(event.position().x(), event.position().y())
        if place is not None:
            self.picked.emit(self._layers[place[0]], place[1])

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent):
            place = self._at(event.pos().x(), event.pos().y())
            if place is not None:
                step = int(self._steps[place])
                what = self._held_words() if step == HELD else f"dropped at step {step}"
                words = f"layer {self._layers[place[0]]}, kv head {place[1]}: {what}"
                QToolTip.showText(event.globalPos(), plain_tip(words), self)
            return True
        return super().event(event)


class RankCanvas(QWidget):
    """One head's drop on a line of scores. `picked(position)` a row that went, `pointed(position or None)`."""

    picked = Signal(int)
    pointed = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._drop: Drop | None = None
        self._position: int | None = None
        self._words = ""
        self._ranks: Ranks | None = None
        self.setMouseTracking(True)
        self.setMinimumSize(80, 56)
        self.setAccessibleName("Scores of rows that went and rows that stayed")

    def show_drop(self, theme: Theme, drop: Drop | None, position: int | None, words: str) -> None:
        """`position` is marked among those that went; `words` stand below."""
        if drop is not self._drop:
            self._ranks = None
        self._theme, self._drop, self._position, self._words = theme, drop, position, words
        self.setAccessibleDescription(words)
        self.update()

    def _line(self) -> QRectF:
        """The room above the axis."""
        return QRectF(8, 16, max(1, self.width() - 16), max(1, self.height() - 16 - 31))

    def _drawn(self) -> Ranks:
        assert self._drop is not None
        if self._ranks is None:
            self._ranks = draw.ranks(self._drop.eviction, self._line().width(), _DOT + 1)
        return self._ranks

    def _place(self, index: int) -> QPointF:
        """Stacks that are higher than the room are pressed together."""
        found, line = self._drawn(), self._line()
        most = max(1, int(found.victim_heights.max(initial=0)))
        pitch = min(_DOT + 1, (line.height() / 2 - _DOT) / most)
        y = line.bottom() - _DOT - int(found.victim_heights[index]) * max(pitch, 0.2)
        return QPointF(line.left() + float(found.victims[index]) * line.width(), y)

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._drop is None:
            return
        painter = QPainter(self)
        found, line = self._drawn(), self._line()
        painter.setPen(QPen(self._theme.color("hairline"), 1))
        y = round(line.bottom()) + 0.5
        painter.drawLine(QPointF(line.left(), y), QPointF(line.right(), y))
        if found.border is not None:
            self._paint_border(painter, line, line.left() + found.border * line.width())
        self._paint_sides(painter, line, found)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_survivors(painter, line, found)
        self._paint_victims(painter, found)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        painter.setFont(font_fixed(10))
        painter.setPen(self._theme.color("muted"))
        ends = QRectF(line.left(), line.bottom() + 2, line.width(), 13)
        painter.drawText(ends, int(Qt.AlignmentFlag.AlignLeft), brief(found.low))
        painter.drawText(ends, int(Qt.AlignmentFlag.AlignRight), brief(found.high))
        painter.drawText(ends, int(Qt.AlignmentFlag.AlignHCenter), "score")
        room = QRectF(0, self.height() - 15, self.width(), 14)
        paint_words(painter, self._theme, room, "", "", self._words)

    def _paint_sides(self, painter: QPainter, line: QRectF, found: Ranks) -> None:
        """What the dots and the strokes are, where there is room to say it."""
        painter.setFont(font_text(10.5))
        painter.setPen(self._theme.color("muted"))
        edge = line.left() + (found.border if found.border is not None else 1.0) * line.width()
        went, stayed = "● went", "| stayed"
        metrics = painter.fontMetrics()
        if metrics.horizontalAdvance(went) + 8 < edge - line.left():
            painter.drawText(QRectF(line.left() - 2, line.top() + 2, 80, 14), int(Qt.AlignmentFlag.AlignLeft), went)
        if found.survivors.size and metrics.horizontalAdvance(stayed) + 8 < line.right() - edge:
            place = QRectF(line.right() - 80, line.bottom() - 18, 80, 14)
            painter.drawText(place, int(Qt.AlignmentFlag.AlignRight), stayed)

    def _paint_border(self, painter: QPainter, line: QRectF, x: float) -> None:
        painter.fillRect(
            QRectF(line.left() - 6, line.top(), x - line.left() + 6, line.height()), self._theme.color("warning", 22)
        )
        painter.setPen(QPen(self._theme.color("muted"), 1, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(round(x) + 0.5, line.top()), QPointF(round(x) + 0.5, line.bottom()))
        painter.setFont(font_text(10.5))
        width = painter.fontMetrics().horizontalAdvance("lowest kept") + 8
        left = min(max(x - width / 2, 0.0), self.width() - width)
        painter.setPen(self._theme.color("muted"))
        painter.drawText(QRectF(left, 0, width, 14), int(Qt.AlignmentFlag.AlignHCenter), "lowest kept")

    def _paint_survivors(self, painter: QPainter, line: QRectF, found: Ranks) -> None:
        """Where they are many, 17 of them evenly spaced in rank: dense where the scores are."""
        painter.setPen(QPen(self._theme.color("page_used", 190), 2))
        for x in found.survivors:
            at = line.left() + float(x) * line.width()
            painter.drawLine(QPointF(at, line.top() + 4), QPointF(at, line.bottom() - 1))

    def _paint_victims(self, painter: QPainter, found: Ranks) -> None:
        assert self._drop is not None
        positions = self._drop.eviction.positions
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._theme.color("warning"))
        for index in range(len(found.victims)):
            painter.drawEllipse(self._place(index), _DOT / 2, _DOT / 2)
        for chosen in np.flatnonzero(positions == self._position) if self._position is not None else ():
            painter.setBrush(self._theme.color("selected"))
            painter.setPen(QPen(self._theme.color("text"), 1.2))
            painter.drawEllipse(self._place(int(chosen)), _DOT / 2 + 1.6, _DOT / 2 + 1.6)

    def _at(self, event: QMouseEvent) -> int | None:
        if self._drop is None:
            return None
        places = [self._place(index) for index in range(len(self._drop.eviction.positions))]
        away = [(place - event.position()).manhattanLength() for place in places]
        if not away or min(away) > 9:
            return None
        return int(self._drop.eviction.positions[away.index(min(away))])

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self.pointed.emit(self._at(event))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        position = self._at(event)
        if position is not None:
            self.picked.emit(position)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.pointed.emit(None)
