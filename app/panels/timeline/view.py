"""The line of steps: drag it to look back. Ticks show how surprising each token was, marks what was forced."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QEvent, QPointF, QSize, Qt
from PySide6.QtGui import QHelpEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.draw.format import milliseconds, shortened, thousands, visible
from app.kit.labels import Ground, plain_tip
from app.kit.pictures import argb, pixels_image
from app.kit.text_lines import TextPainter
from app.kit.theme import Theme, font_fixed
from app.models import Models
from engine.wire.records import StepRecord

HEIGHT = 42
SIDE = 52.0
TICK_HEIGHT = 11
FULL_SURPRISAL = 8.0
FAINTEST = 0.12


class TimelineBar(Ground, QWidget):
    """Writes the selected step; the right end is live."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._theme = theme
        self._ink = TextPainter(font_fixed(12.0))
        self._ticks = _Ticks()
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName("Timeline of steps")
        self.set_ground(theme)
        models.timeline.appended.connect(self._on_appended)
        models.timeline.reset.connect(self._on_reset)
        models.selection.changed.connect(self._refresh)
        self._refresh()

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self.set_ground(theme)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(600, HEIGHT)

    def _on_appended(self) -> None:
        self._ticks.extend(self._models.timeline.records)
        self._refresh()

    def _on_reset(self) -> None:
        self._ticks = _Ticks()
        self._ticks.extend(self._models.timeline.records)
        self._refresh()

    def _refresh(self) -> None:
        record = self._models.timeline.at(self._models.selection.now.step)
        self.setAccessibleDescription("" if record is None else f"step {thousands(record.step)}")
        self.update()

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last step that are drawn; only where there are any."""
        records = self._models.timeline.records
        return records[0].step, records[len(self._ticks) - 1].step

    # ---- where things are ----------------------------------------------------------------------------------------

    def _track(self) -> tuple[float, float]:
        return SIDE, max(SIDE + 1.0, self.width() - SIDE)

    def _x_of(self, index: int) -> float:
        left, right = self._track()
        count = len(self._ticks)
        return right if count < 2 else left + (right - left) * index / (count - 1)

    def _index_at(self, x: float) -> int:
        left, right = self._track()
        share = min(max((x - left) / (right - left), 0.0), 1.0)
        return round(share * (len(self._ticks) - 1))

    def _shown_index(self) -> int:
        step = self._models.selection.now.step
        last = len(self._ticks) - 1
        if step is None:
            return last
        return min(bisect_left(self._models.timeline.records, step, key=_step_of), last)

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_ground(painter)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left, right = self._track()
        middle = HEIGHT / 2 - 1
        painter.setPen(QPen(self._theme.color("hairline"), 3, c=Qt.PenCapStyle.RoundCap))
        painter.drawLine(QPointF(left, middle), QPointF(right, middle))
        if not len(self._ticks):
            self._paint_label(painter, right + 10, "–", Qt.AlignmentFlag.AlignLeft)
            return
        is_live = self._models.selection.now.step is None
        handle = self._x_of(self._shown_index())
        self._paint_ticks(painter, middle)
        painter.setPen(QPen(self._theme.color("accent"), 3, c=Qt.PenCapStyle.RoundCap))
        painter.drawLine(QPointF(left, middle), QPointF(handle, middle))
        self._paint_handle(painter, QPointF(handle, middle), is_live)
        first, last = self.ends
        self._paint_label(painter, left - 12, thousands(first), Qt.AlignmentFlag.AlignRight)
        self._paint_label(painter, right + 14, thousands(last), Qt.AlignmentFlag.AlignLeft)

    def _paint_handle(self, painter: QPainter, center: QPointF, is_live: bool) -> None:
        color = self._theme.color("accent" if is_live else "selected")
        if self.hasFocus():
            painter.setPen(QPen(color, 1.5))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawEllipse(center, 10, 10)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color)
        painter.drawEllipse(center, 6.5, 6.5)

    def _paint_ticks(self, painter: QPainter, middle: float) -> None:
        """One tick per pixel at most: the most surprising token of that pixel, so that an outlier never vanishes."""
        left, right = self._track()
        columns, forced = self._ticks.columns(round(right - left) + 1)
        tall = np.where(columns > FAINTEST, np.rint(columns * TICK_HEIGHT), 0)
        pixels = np.where(
            np.arange(TICK_HEIGHT, 0, -1)[:, None] <= tall, np.uint32(argb(self._theme.faint)), np.uint32(0)
        )
        painter.drawImage(QPointF(round(left), round(middle - 3 - TICK_HEIGHT)), pixels_image(pixels))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._theme.color("selected"))
        top = middle + 7
        for x in (left + column for column in np.flatnonzero(forced).tolist()):
            painter.drawPolygon(QPolygonF([QPointF(x, top), QPointF(x + 4.5, top + 7), QPointF(x - 4.5, top + 7)]))

    def _paint_label(self, painter: QPainter, x: float, text: str, side: Qt.AlignmentFlag) -> None:
        painter.setPen(self._theme.color("muted"))
        draw = self._ink.right if side == Qt.AlignmentFlag.AlignRight else self._ink.left
        draw(painter, x, HEIGHT / 2 - 1, text)

    # ---- moving --------------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self._scrub(event.position().x())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if event.buttons() & Qt.MouseButton.LeftButton:
            self._scrub(event.position().x())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        leaps = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1, Qt.Key.Key_PageUp: -8, Qt.Key.Key_PageDown: 8}
        leap = leaps.get(Qt.Key(event.key()))
        if leap is None:
            super().keyPressEvent(event)
            return
        timeline, selection = self._models.timeline, self._models.selection
        selection.update(step=timeline.neighbour(selection.now.step, leap))

    def _scrub(self, x: float) -> None:
        if len(self._ticks) < 2:
            return
        index = self._index_at(x)
        is_last = index == len(self._ticks) - 1
        self._models.selection.update(step=None if is_last else self._models.timeline.records[index].step)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            text = self._tip(self._models.timeline.records[self._index_at(event.pos().x())]) if len(self._ticks) else ""
            QToolTip.showText(event.globalPos(), plain_tip(text), self)
            return True
        return super().event(event)

    def _tip(self, record: StepRecord) -> str:
        part = self._models.timeline.part(self._models.selection.now.seq_id, record.step)
        texts = "" if part is None else shortened(visible("".join(part.texts[:24])[:200]), 60)
        head = f"step {thousands(record.step)} · {record.phase} · {milliseconds(record.timings.total_ms)}"
        return f"{head}\n{texts}"


class _Ticks:
    """Height and forcedness of every step, in arrays that grow by doubling: an append costs what is new."""

    def __init__(self) -> None:
        self._count = 0
        self._heights = np.zeros(256, dtype=np.float32)
        self._forced = np.zeros(256, dtype=bool)

    def __len__(self) -> int:
        return self._count

    def extend(self, records: Sequence[StepRecord]) -> None:
        """Take the records that are not in yet."""
        while len(records) > len(self._heights):
            self._heights = np.concatenate([self._heights, np.zeros_like(self._heights)])
            self._forced = np.concatenate([self._forced, np.zeros_like(self._forced)])
        for index in range(self._count, len(records)):
            self._heights[index], self._forced[index] = _tick(records[index])
        self._count = len(records)

    def columns(self, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """The highest tick of every pixel column, and whether a token was forced there."""
        heights, forced = np.zeros(width, dtype=np.float32), np.zeros(width, dtype=bool)
        places = np.round(np.linspace(0, width - 1, self._count)).astype(np.intp)
        np.maximum.at(heights, places, self._heights[: self._count])
        forced[places[self._forced[: self._count]]] = True
        return heights, forced


def _tick(record: StepRecord) -> tuple[float, bool]:
    """Height from the most surprising token of a step, and whether a token was forced."""
    surprises = [s for part in record.sequences for s in part.surprisal if s is not None]
    is_forced = any(part.forced and part.phase == "decode" for part in record.sequences)
    return min(1.0, max(surprises, default=0.0) / FULL_SURPRISAL), is_forced


def _step_of(record: StepRecord) -> int:
    return record.step
