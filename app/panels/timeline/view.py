"""The line of steps: drag it to look back. Ticks show how surprising each token was, marks what was forced, edited and
done in another cache mode, where branches part, at which steps a condition held and where a run halted. What was left
behind the live step is there, dimmed: a click returns to it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QEvent, QPointF, QSize, Qt, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QHelpEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.draw.format import milliseconds, shortened, thousands, visible
from app.kit.bookmark_places import MARK_WIDTH, paint_ribbon, tip_lines
from app.kit.change_marks import paint_mark
from app.kit.labels import Opaque, plain_tip
from app.kit.pictures import argb, pixels_image, veil_image
from app.kit.reader import BOOKMARKS, EACH_STEP, SELECTION, STOPS, Reader, Source
from app.kit.text_lines import TextPainter
from app.kit.theme import current_theme, font_fixed, font_text
from app.models import Models
from app.models.branches import PathMark, beyond, path_marks
from app.panels.timeline.draw import Ticks, stamped
from app.panels.timeline.found import Found, paint_found, words_at
from engine.wire.records import StepRecord

HEIGHT = 42
SIDE = 52.0
TICK_HEIGHT = 11
FAINTEST = 0.12
LEFT_SHARE, LEAST_LEFT = 0.4, 60.0  # of the line, and in pixels: the room of what was left
_REACH, _TALL = 5, 7  # pixels of a forced token's mark, to either side of its tip and down from it


@dataclass(frozen=True)
class Shown:
    """The steps from `first` to `latest`, and which of them is looked at; `is_live`: whatever comes next."""

    first: StepRecord
    latest: StepRecord
    index: int
    step: int
    is_live: bool
    left: Left | None = None
    marks: tuple[PathMark, ...] = ()
    found: Found = field(default_factory=Found)
    noted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Left:
    """The moments behind the live one, on the branch that was left: how many, and the newest."""

    count: int
    tip: int

    @property
    def words(self) -> str:
        return f"{thousands(self.count)} more {'moment' if self.count == 1 else 'moments'} on the branch you left"


class TimelineBar(Reader[Shown], Opaque, QWidget):
    """Writes the selected step; the right end of what is not dimmed is live. Intents: `returned(step)`;
    `menu_wanted(place on the screen)`, of the step that is looked at then."""

    follows = (EACH_STEP, SELECTION, STOPS, BOOKMARKS, Source("history", ("reshaped",)))

    returned = Signal(int)
    menu_wanted = Signal(object)

    def __init__(self, models: Models, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._painter, self._small = TextPainter(font_fixed(12.0)), TextPainter(font_text(11.0))
        self._ticks = Ticks()
        self._marked = -1  # the shape of the history whose marks are kept
        self._marks: tuple[PathMark, ...] = ()
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName("Timeline of steps")
        self.set_background()
        models.timeline.filled.connect(self._on_filled)  # before the steps are read
        self.follow(models)

    def sizeHint(self) -> QSize:
        return QSize(600, HEIGHT)

    def read(self) -> Shown | str:
        timeline, step = self._models.timeline, self._models.selection.now.step
        self._ticks.take(timeline.records)
        if timeline.first is None or timeline.latest is None:
            return "No step was taken."
        last = len(timeline) - 1
        index = last if step is None else min(bisect_left(timeline.records, step, key=_step_of), last)
        history = self._models.history
        behind = beyond(history, history.live)
        left = Left(len(behind), behind[-1]) if behind else None
        if self._marked != history.shape:
            self._marked, self._marks = history.shape, path_marks(history, history.live)
        at = timeline.records[index].step
        found, noted = Found.of(self._models), self._noted()
        return Shown(timeline.first, timeline.latest, index, at, step is None, left, self._marks, found, noted)

    def _noted(self) -> tuple[int, ...]:
        """The places of steps with a bookmark, as they stand on the path."""
        records = self._models.timeline.records
        places = ((bisect_left(records, step, key=_step_of), step) for step in self._models.bookmarks.on_steps())
        return tuple(at for at, step in places if at < len(records) and records[at].step == step)

    def show_state(self, state: Shown) -> None:
        behind = f", {state.left.words}" if state.left is not None else ""
        self.setAccessibleDescription(f"step {thousands(state.step)}{behind}{state.found.words}")
        self.update()

    def show_nothing(self, why: str) -> None:
        self.setAccessibleDescription(why)
        self.update()

    def _on_filled(self, index: int) -> None:
        """The tokens of a long prompt have their surprisals now."""
        self._ticks.put(index, self._models.timeline.records[index])
        self.update()

    # ---- where things are ----------------------------------------------------------------------------------------

    def _track(self) -> tuple[float, float]:
        """The ends of the path: what was left takes its share behind it, and not more than two fifths."""
        end = max(SIDE + 1.0, self.width() - SIDE)
        left = self.state.left if self.state is not None else None
        if left is None:
            return SIDE, end
        share = min(left.count / (left.count + max(1, len(self._ticks) - 1)), LEFT_SHARE)
        return SIDE, round(end - max(LEAST_LEFT, (end - SIDE) * share))

    def _is_behind(self, x: float) -> bool:
        """Whether a place is on what was left."""
        return self.state is not None and self.state.left is not None and x > self._track()[1] + _REACH + 2

    def _x_of(self, index: int) -> float:
        left, right = self._track()
        count = len(self._ticks)
        return right if count < 2 else left + (right - left) * index / (count - 1)

    def _index_at(self, x: float) -> int:
        left, right = self._track()
        share = min(max((x - left) / (right - left), 0.0), 1.0)
        return round(share * (len(self._ticks) - 1))

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left, right = self._track()
        middle = HEIGHT / 2 - 1
        painter.setPen(QPen(current_theme().color("hairline"), 3, c=Qt.PenCapStyle.RoundCap))
        painter.drawLine(QPointF(left, middle), QPointF(right, middle))
        shown = self.state
        if shown is not None and shown.left is not None:
            self._paint_left(painter, right, middle, shown.left)
        if shown is None:
            self._paint_label(painter, right + 10, "–", Qt.AlignmentFlag.AlignLeft)
            return
        handle = self._x_of(shown.index)
        self._paint_ticks(painter, middle)
        painter.setPen(QPen(current_theme().color("accent"), 3, c=Qt.PenCapStyle.RoundCap))
        painter.drawLine(QPointF(left, middle), QPointF(handle, middle))
        self._paint_marks(painter, shown.marks, middle)
        paint_found(painter, self._models, left, right)
        for index in shown.noted:
            paint_ribbon(painter, self._x_of(index) + MARK_WIDTH / 2, 1)
        self._paint_handle(painter, QPointF(handle, middle), shown.is_live)
        self._paint_label(painter, left - 12, thousands(shown.first.step), Qt.AlignmentFlag.AlignRight)
        newest = (self._models.timeline.tip or 0) if shown.left is None else shown.left.tip
        end = right if shown.left is None else self.width() - SIDE
        self._paint_label(painter, end + 14, thousands(newest), Qt.AlignmentFlag.AlignLeft)

    def _paint_left(self, painter: QPainter, start: float, middle: float, left: Left) -> None:
        """The branch that was left: a dashed line to its newest moment, with words where they have room."""
        theme, end = current_theme(), self.width() - SIDE
        painter.setPen(QPen(theme.color("faint"), 1.5, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(start + 9, middle), QPointF(end - 5, middle))
        painter.setPen(QPen(theme.color("faint"), 1.5))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawEllipse(QPointF(end, middle), 4, 4)
        texts = (left.words, f"{thousands(left.count)} more left behind", f"+{thousands(left.count)}")
        painter.setPen(theme.color("muted"))
        fitting = self._small.fitting(end - start - 24, *texts)
        self._small.center(painter, (start + end) / 2, middle - 11, fitting)

    def _paint_marks(self, painter: QPainter, marks: tuple[PathMark, ...], middle: float) -> None:
        theme = current_theme()
        for mark in marks:
            index = bisect_right(self._models.timeline.steps, mark.step) - 1
            at = QPointF(self._x_of(max(index, 0)), middle)
            if mark.kind is not None:
                paint_mark(painter, at, mark.kind)
                continue
            painter.setPen(QPen(theme.color("muted"), 1.5))
            painter.setBrush(theme.color("ground"))
            painter.drawEllipse(at, 3, 3)

    def _paint_handle(self, painter: QPainter, center: QPointF, is_live: bool) -> None:
        color = current_theme().color("accent" if is_live else "selected")
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
            np.arange(TICK_HEIGHT, 0, -1)[:, None] <= tall, np.uint32(argb(current_theme().faint)), np.uint32(0)
        )
        painter.drawImage(QPointF(round(left), round(middle - 3 - TICK_HEIGHT)), pixels_image(pixels))
        if forced.any():
            self._paint_forced(painter, QPointF(left, middle + 7), np.flatnonzero(forced), len(forced))

    def _paint_forced(self, painter: QPainter, start: QPointF, columns: npt.NDArray[np.intp], width: int) -> None:
        """A triangle below each forced token, all of them as one image: there may be one for every pixel."""
        ratio = self.devicePixelRatioF()
        places = np.rint(columns * ratio).astype(np.intp)
        opacity = stamped(places, round(width * ratio), _triangle(ratio))
        painter.drawImage(start - QPointF(_REACH, 0), veil_image(opacity, current_theme().selected, ratio))

    def _paint_label(self, painter: QPainter, x: float, text: str, side: Qt.AlignmentFlag) -> None:
        painter.setPen(current_theme().color("muted"))
        draw = self._painter.right if side == Qt.AlignmentFlag.AlignRight else self._painter.left
        draw(painter, x, HEIGHT / 2 - 1, text)

    # ---- moving --------------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            if self._is_behind(event.position().x()) and self.state is not None and self.state.left is not None:
                self.returned.emit(self.state.left.tip)
            else:
                self._scrub(event.position().x())

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        if event.reason() == QContextMenuEvent.Reason.Mouse and not self._is_behind(event.pos().x()):
            self._scrub(event.pos().x())
        self.menu_wanted.emit(event.globalPos())

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
            text = self._tip_at(event.pos().x()) if len(self._ticks) else ""
            QToolTip.showText(event.globalPos(), plain_tip(text), self)
            return True
        return super().event(event)

    def _tip_at(self, x: float) -> str:
        if self._is_behind(x) and self.state is not None and self.state.left is not None:
            return f"{self.state.left.words}\nclick: return to its newest moment"
        return self._tip(self._models.timeline.records[self._index_at(x)])

    def _tip(self, record: StepRecord) -> str:
        part = self._models.timeline.part(self._models.selection.now.seq_id, record.step)
        texts = "" if part is None else shortened(visible("".join(part.texts[:24])[:200]), 60)
        took_ms = record.timings.total_ms  # 0 where nobody measured
        head = f"step {thousands(record.step)} · {record.phase}{f' · {milliseconds(took_ms)}' if took_ms else ''}"
        notes = tip_lines(*self._models.bookmarks.on_steps().get(record.step, ()))
        return "\n".join(line for line in (head, texts, *words_at(self._models, record.step), *notes) if line)


@lru_cache(maxsize=4)
def _triangle(ratio: float) -> npt.NDArray[np.float32]:
    """The opacity of a forced token's mark, whose tip is `_REACH` from the left."""
    image = QImage(round(2 * _REACH * ratio), round(_TALL * ratio), QImage.Format.Format_Alpha8)
    image.fill(0)
    image.setDevicePixelRatio(ratio)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(Qt.GlobalColor.black)
    corners = [QPointF(_REACH, 0), QPointF(_REACH + 4.5, _TALL), QPointF(_REACH - 4.5, _TALL)]
    painter.drawPolygon(QPolygonF(corners))
    painter.end()
    pixels = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine())
    return pixels[:, : image.width()].astype(np.float32) / np.float32(255)


def _step_of(record: StepRecord) -> int:
    return record.step
