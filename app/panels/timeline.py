"""The timeline: drag it to look back. Ticks show each token's surprisal; marks show forced tokens, edits, changes of
the cache mode, where other branches begin, at which steps a condition or a breakpoint held and where a run
halted.

The branch that was left after the live step is dimmed; a click shows its steps. If the live step can continue instead,
a place ahead of it can be chosen to run to."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QImage, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.draw.format import milliseconds, shortened, thousands, visible
from app.kit.heatmap import paint_mark
from app.kit.painting import TextPainter, argb, pixels_image, veil_image
from app.kit.reader import BOOKMARKS, BREAKPOINTS, EACH_STEP, SELECTION, STATUS, Reader, SignalSource
from app.kit.theme import current_theme, font_fixed, font_text
from app.kit.widgets import Opaque, TellsPlaces
from app.kit.words import MARK_WIDTH, node_lines, paint_ribbon, tip_lines
from app.models import Models
from app.models.sequence_status import can_go_on
from app.models.timeline import FULL_SURPRISAL, PathMark, path_marks, steps_ahead
from engine.counted import counted
from engine.wire.records import StepRecord

MOST = 16384  # blocks: an even number, and several for every pixel of a wide screen


class StepTicks:
    """Tick height and forced tokens of the steps of a path, in at most `most` blocks of equally many steps. Adding
    steps costs O(new steps); drawing does not depend on the length of the history."""

    def __init__(self, most: int = MOST) -> None:
        self._count = 0
        self._per_block = 1
        self._last: tuple[int, StepRecord | None] | None = None
        self._heights = np.zeros(most, np.float32)
        self._forced = np.zeros(most, np.bool_)

    def __len__(self) -> int:
        return self._count

    def follow(self, steps: Sequence[int], record_of: Callable[[int], StepRecord | None]) -> None:
        """Add the steps that are new, with the records of their steps; all are read again if the path is another
        one."""
        if self._count > len(steps) or (self._count and not self._is_last(steps[self._count - 1], record_of)):
            self._clear()
        for index in range(self._count, len(steps)):
            if index // self._per_block >= len(self._heights):
                self._join_blocks()
            if (record := record_of(steps[index])) is not None:
                self._enter(index, record)
        self._count = len(steps)
        self._last = (steps[-1], record_of(steps[-1])) if steps else None

    def _is_last(self, step: int, record_of: Callable[[int], StepRecord | None]) -> bool:
        return self._last is not None and self._last[0] == step and self._last[1] is record_of(step)

    def put(self, index: int, record: StepRecord) -> None:
        """Replace the record of a step by one with more surprisals."""
        if index < self._count:
            self._enter(index, record)
        if index == self._count - 1:
            self._last = record.step, record

    def columns(self, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """For every pixel column the highest tick, and whether a token was forced there."""
        heights, forced = np.zeros(width, dtype=np.float32), np.zeros(width, dtype=bool)
        if not self._count:
            return heights, forced
        firsts = np.arange(0, self._count, self._per_block)
        middles = (firsts + np.minimum(firsts + self._per_block, self._count) - 1) / 2
        places = np.round(middles * (width - 1) / max(1, self._count - 1)).astype(np.intp)
        np.maximum.at(heights, places, self._heights[: len(firsts)])
        forced[places[self._forced[: len(firsts)]]] = True
        return heights, forced

    def _enter(self, index: int, record: StepRecord) -> None:
        height, is_forced = _tick(record)
        block = index // self._per_block
        self._heights[block] = max(self._heights[block], height)
        self._forced[block] |= is_forced

    def _join_blocks(self) -> None:
        """Join pairs of blocks, each keeping the greater height."""
        for array in (self._heights, self._forced):
            half = len(array) // 2
            array[:half] = np.maximum(array[0 : 2 * half : 2], array[1 : 2 * half : 2])
            array[half:] = 0
        self._per_block *= 2

    def _clear(self) -> None:
        self._count, self._per_block = 0, 1
        self._heights[:] = 0
        self._forced[:] = False


def stamped(places: npt.NDArray[np.intp], width: int, stamp: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The opacity, `[height, width + stamp's width - 1]`, of a stamp painted at each of some columns of `width`,
    overlapping as a painter would."""
    height, across = stamp.shape
    clear = np.ones((height, width + across - 1), dtype=np.float32)
    for shift in range(across):
        clear[:, places + shift] *= 1 - stamp[:, shift, None]
    return 1 - clear


def _tick(record: StepRecord) -> tuple[float, bool]:
    """A step's tick: its height, from the greatest surprisal, and whether a token was forced."""
    surprises = [s for part in record.sequences for s in part.surprisal if s is not None]
    is_forced = any(part.forced and part.phase == "decode" for part in record.sequences)
    return min(1.0, max(surprises, default=0.0) / FULL_SURPRISAL), is_forced


# ---- what is painted -------------------------------------------------------------------------------------------------


SIDE = 52.0
LEFT_SHARE, LEAST_LEFT = 0.4, 60.0  # space of the branch that was left: at most this part of the line, least pixels
AHEAD_SHARE, LEAST_AHEAD, MOST_AHEAD = 0.12, 56.0, 150.0  # space of future steps: part of the line, limits in pixels
LEAST_STEPS = 16  # at least so many future steps can be chosen
HANDLE = 7.0


class TimelineTrack(Struct, frozen=True):
    """A line `width` pixels wide for the `count` steps of the path; after it there is space for `num_left` steps that
    were left, or if it `goes_on` for future steps."""

    width: float
    count: int
    num_left: int = 0
    goes_on: bool = False

    @property
    def start(self) -> float:
        return SIDE

    @property
    def end(self) -> float:
        """The x of the end of the whole line."""
        return max(SIDE + 1.0, self.width - SIDE)

    @property
    def tip(self) -> float:
        """The x of the path's newest step; steps that were left have their share of the line after it, at most two
        fifths."""
        room = self.end - self.start
        if self.num_left:
            share = min(self.num_left / (self.num_left + max(1, self.count - 1)), LEFT_SHARE)
            return round(self.end - max(LEAST_LEFT, room * share))
        if self.goes_on:
            return round(self.end - min(max(LEAST_AHEAD, room * AHEAD_SHARE), MOST_AHEAD))
        return self.end

    def x_of(self, index: float) -> float:
        """The x of a step of the path."""
        return self.tip if self.count < 2 else self.start + (self.tip - self.start) * index / (self.count - 1)

    def index_at(self, x: float) -> int:
        """The index of the path's step nearest to `x`."""
        share = min(max((x - self.start) / max(1.0, self.tip - self.start), 0.0), 1.0)
        return round(share * max(0, self.count - 1))

    def _behind(self, x: float) -> float | None:
        """How many pixels `x` is beyond the newest step; None if it is not."""
        return x - self.tip if x > self.tip + HANDLE and (self.num_left or self.goes_on) else None

    def left_at(self, x: float) -> int | None:
        """The index of the nearest step that was left; None if there is none at `x`."""
        far = self._behind(x)
        if far is None or not self.num_left:
            return None
        return min(max(round(far / (self.end - self.tip) * self.num_left), 1), self.num_left) - 1

    def x_of_left(self, index: int) -> float:
        return self.tip + (self.end - self.tip) * (index + 1) / max(1, self.num_left)

    @property
    def num_ahead(self) -> int:
        """How many future steps have space, as wide as past ones, and at least LEAST_STEPS."""
        if self.num_left or not self.goes_on:
            return 0
        pitch = (self.tip - self.start) / max(1, self.count - 1)
        return max(LEAST_STEPS, round((self.end - self.tip) / pitch))

    def ahead_at(self, x: float) -> int:
        """How many steps `x` is ahead of the newest step; 0 if it is not."""
        far = self._behind(x)
        if far is None or not self.num_ahead:
            return 0
        return min(max(round(far / (self.end - self.tip) * self.num_ahead), 1), self.num_ahead)

    def x_of_ahead(self, num_steps: int) -> float:
        return self.tip + (self.end - self.tip) * min(num_steps / max(1, self.num_ahead), 1.0)


class Left(Struct, frozen=True):
    """The steps after the live one, on the branch that was left: how many, and the newest."""

    count: int
    tip: int

    @property
    def words(self) -> str:
        return f"{counted(self.count, 'more step')} on the branch you left"


class TimelineState(Struct, frozen=True):
    """A path of `count` steps from `first` to `tip`, with its newest record `latest`; the step shown, `step` at
    `index`, and whether that is the live one (`is_live`). `live_index`: on the path of another branch, where the live
    step is or its path leaves this one; None on the live path. `ahead` steps are chosen to be run. `held`: the query
    and each enabled breakpoint, with the number of steps at which it held, and how many halts are known."""

    first: int
    tip: int
    latest: StepRecord
    count: int
    index: int
    step: int
    is_live: bool
    live_index: int | None = None
    left: Left | None = None
    goes_on: bool = False
    ahead: int = 0
    pointed_ahead: int = 0
    marks: tuple[PathMark, ...] = ()
    held: tuple[tuple[str, int], ...] = (("", 0),)
    noted: tuple[int, ...] = ()

    @property
    def newest(self) -> int:
        """The number at the end of the line."""
        return self.tip if self.left is None else self.left.tip

    @property
    def words(self) -> str:
        """For a screen reader."""
        behind = f", {self.left.words}" if self.left is not None else ""
        elsewhere = ", on another branch" if self.live_index is not None and self.index > self.live_index else ""
        ahead = (
            f", {counted(self.ahead, 'step')} ahead {'is' if self.ahead == 1 else 'are'} chosen" if self.ahead else ""
        )
        query, num_found = self.held[0]
        found = f", {thousands(num_found)} found" if query else ""
        return f"step {thousands(self.step)}{elsewhere}{behind}{ahead}{found}"


FOUND = QRectF(-1, 1, 2, 5)
HALT = QRectF(-2.5, 1, 5, 5)


def paint_found(painter: QPainter, models: Models, left: float, right: float) -> None:
    """Paint a bar above each step found, and a red block where a breakpoint held or a run halted, on a line of steps
    from `left` to `right`; at most one for each condition and pixel."""
    breakpoints, on_path, theme = models.breakpoints, models.timeline.nodes, current_theme()
    found = breakpoints.queried.matches if breakpoints.queried else ()
    halts = (*(search.matches for _, search in breakpoints.halting), sorted(breakpoints.hits))
    for steps, mark, role in ((found, FOUND, "accent"), *((steps, HALT, "bad") for steps in halts)):
        color = theme.color(role)
        for x in marked_pixels(steps, on_path, left, right):
            painter.fillRect(mark.translated(x, 0), color)


def marked_pixels(steps: Sequence[int], on_path: Sequence[int], left: float, right: float) -> Iterator[int]:
    """The pixels of the ascending `steps`, on a line that the steps `on_path` share evenly. Examines one step per
    pixel, however many there are."""
    last, at = max(1, len(on_path) - 1), 0
    while at < len(steps):
        index = bisect_left(on_path, steps[at])
        if index == len(on_path):
            return
        if on_path[index] != steps[at]:  # a step of another branch
            at += 1
            continue
        x = round(left + (right - left) * index / last) if len(on_path) > 1 else round(right)
        yield x
        beside = max(index + 1, math.ceil((x + 0.5 - left) * last / (right - left)))  # first step on another pixel
        if beside >= len(on_path):
            return
        at = bisect_left(steps, on_path[beside], at + 1)


def words_at(models: Models, step: int) -> list[str]:
    """What held at a step, and what a run was halted by there."""
    breakpoints = models.breakpoints
    verdict = breakpoints.queried.verdicts.get(step) if breakpoints.queried is not None else None
    words = [f"found: {breakpoints.query} · {verdict.value}"] if verdict is not None else []
    if (hit := breakpoints.hits.get(step)) is not None:
        words.append(f"halted: {hit.condition} · {hit.value}")
    for text, search in breakpoints.halting:
        if (verdict := search.verdicts.get(step)) is not None and (hit is None or hit.condition != text):
            words.append(f"breakpoint: {text} · {verdict.value}")
    return words


HEIGHT = 42
MIDDLE = HEIGHT / 2 - 1
TICK_HEIGHT = 11
FAINTEST = 0.12
_REACH, _TALL = 5, 7  # pixels of a forced token's mark: to either side of its tip, and down from it


class TimelinePicture:
    """Paints a state of the timeline on a track."""

    def __init__(self, models: Models, ticks: StepTicks) -> None:
        self._models, self._ticks = models, ticks
        self._number, self._small = TextPainter(font_fixed(12.0)), TextPainter(font_text(11.0))

    def paint(self, painter: QPainter, track: TimelineTrack, shown: TimelineState | None, *, has_focus: bool) -> None:
        """Paint everything; a bare line if no step was taken yet."""
        theme = current_theme()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(theme.color("hairline"), 3, c=Qt.PenCapStyle.RoundCap))
        painter.drawLine(QPointF(track.start, MIDDLE), QPointF(track.tip, MIDDLE))
        if shown is None:
            return
        self._paint_behind(painter, track, shown)
        handle = track.x_of(shown.index)
        self._paint_ticks(painter, track)
        self._paint_way(painter, track, shown, handle)
        paint_found(painter, self._models, track.start, track.tip)
        for index in shown.noted:
            paint_ribbon(painter, track.x_of(index) + MARK_WIDTH / 2, 1)
        self._paint_handle(painter, QPointF(handle, MIDDLE), is_live=shown.is_live, has_focus=has_focus)
        self._paint_marks(painter, track, shown.marks)
        if shown.live_index is not None:
            self._paint_live(painter, QPointF(track.x_of(shown.live_index), MIDDLE))
        painter.setPen(theme.color("muted"))
        self._number.right(painter, track.start - 12, MIDDLE, thousands(shown.first))
        ends = f"+{thousands(track.num_ahead)}" if track.num_ahead else thousands(shown.newest)
        left = min(track.end + 14, track.width - 4 - self._number.width(ends))
        # a number too wide for the space beside the handle is written above it
        self._number.left(painter, left, MIDDLE if left > track.end + 10 else MIDDLE - 13, ends)

    def _paint_way(self, painter: QPainter, track: TimelineTrack, shown: TimelineState, handle: float) -> None:
        """Paint the line up to the step shown; the part beyond the live path, on another branch, has another colour."""
        theme = current_theme()
        end = handle if shown.live_index is None else min(handle, track.x_of(shown.live_index))
        painter.setPen(QPen(theme.color("accent"), 3, c=Qt.PenCapStyle.RoundCap))
        painter.drawLine(QPointF(track.start, MIDDLE), QPointF(end, MIDDLE))
        if handle > end:
            painter.setPen(QPen(theme.color("selected"), 3, c=Qt.PenCapStyle.RoundCap))
            painter.drawLine(QPointF(end, MIDDLE), QPointF(handle, MIDDLE))

    def _paint_behind(self, painter: QPainter, track: TimelineTrack, shown: TimelineState) -> None:
        """Paint what follows the live step: the branch that was left, as a dashed line with a description if it fits;
        or a dotted line for future steps, with the chosen place."""
        theme, start, end = current_theme(), track.tip, track.end
        if (left := shown.left) is not None:
            painter.setPen(QPen(theme.color("faint"), 1.5, Qt.PenStyle.DashLine))
            painter.drawLine(QPointF(start + 9, MIDDLE), QPointF(end - 5, MIDDLE))
            painter.setPen(QPen(theme.color("faint"), 1.5))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawEllipse(QPointF(end, MIDDLE), 4, 4)
            texts = (left.words, f"{thousands(left.count)} more left behind", f"+{thousands(left.count)}")
            painter.setPen(theme.color("muted"))
            fitting = self._small.fitting(end - start - 24, *texts)
            self._small.center(painter, (start + end) / 2, MIDDLE - 11, fitting)
        elif track.num_ahead:
            painter.setPen(QPen(theme.color("hairline"), 2, Qt.PenStyle.DotLine))
            painter.drawLine(QPointF(start + 10, MIDDLE), QPointF(end, MIDDLE))
            self._paint_ahead(painter, track, shown)

    def _paint_ahead(self, painter: QPainter, track: TimelineTrack, shown: TimelineState) -> None:
        """Mark the place ahead that is chosen as the end of a run, or pointed at."""
        theme = current_theme()
        for num_steps, role in ((shown.pointed_ahead, "muted"), (shown.ahead, "selected")):
            if num_steps:
                at = QPointF(track.x_of_ahead(num_steps), MIDDLE)
                painter.setPen(QPen(theme.color(role), 1.5))
                painter.setBrush(theme.color("ground"))
                painter.drawEllipse(at, 5, 5)
                self._small.center(painter, at.x(), MIDDLE - 13, f"+{thousands(num_steps)}")

    def _paint_marks(self, painter: QPainter, track: TimelineTrack, marks: tuple[PathMark, ...]) -> None:
        theme = current_theme()
        for mark in marks:
            index = self._models.timeline.node_index(mark.step)
            at = QPointF(track.x_of(index or 0), MIDDLE)
            if mark.kind is not None:
                paint_mark(painter, at, mark.kind)
                continue
            painter.setPen(QPen(theme.color("muted"), 1.5))
            painter.setBrush(theme.color("ground"))
            painter.drawEllipse(at, 3, 3)

    def _paint_live(self, painter: QPainter, at: QPointF) -> None:
        """Mark the live step, or where its path leaves the one shown."""
        painter.setPen(QPen(current_theme().color("accent"), 2))
        painter.setBrush(current_theme().color("ground"))
        painter.drawEllipse(at, 4.5, 4.5)

    def _paint_handle(self, painter: QPainter, center: QPointF, *, is_live: bool, has_focus: bool) -> None:
        color = current_theme().color("accent" if is_live else "selected")
        if has_focus:
            painter.setPen(QPen(color, 1.5))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawEllipse(center, 10, 10)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color)
        painter.drawEllipse(center, 6.5, 6.5)

    def _paint_ticks(self, painter: QPainter, track: TimelineTrack) -> None:
        """Paint at most one tick per pixel, for the most surprising token there, so that outliers remain visible."""
        left, right = track.start, track.tip
        columns, forced = self._ticks.columns(round(right - left) + 1)
        tall = np.where(columns > FAINTEST, np.rint(columns * TICK_HEIGHT), 0)
        pixels = np.where(
            np.arange(TICK_HEIGHT, 0, -1)[:, None] <= tall, np.uint32(argb(current_theme().faint)), np.uint32(0)
        )
        painter.drawImage(QPointF(round(left), round(MIDDLE - 3 - TICK_HEIGHT)), pixels_image(pixels))
        if forced.any():
            self._paint_forced(painter, QPointF(left, MIDDLE + 7), np.flatnonzero(forced), len(forced))

    def _paint_forced(self, painter: QPainter, start: QPointF, columns: npt.NDArray[np.intp], width: int) -> None:
        """Paint a triangle below each forced token, all as one image, as there may be one per pixel."""
        ratio = painter.device().devicePixelRatio()
        places = np.rint(columns * ratio).astype(np.intp)
        opacity = stamped(places, round(width * ratio), _triangle(ratio))
        painter.drawImage(start - QPointF(_REACH, 0), veil_image(opacity, current_theme().selected, ratio))


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


# ---- the bar ---------------------------------------------------------------------------------------------------------


class TimelineBar(Reader[TimelineState], TellsPlaces, Opaque, QWidget):
    """Writes the selected step; the newest step of the path is the live one. Signals: `ran_here()`, run to the chosen
    place; `menu_wanted(point on the screen)`, for that place or the step shown."""

    follows = (EACH_STEP, SELECTION, STATUS, BREAKPOINTS, BOOKMARKS, SignalSource("history", ("reshaped",)))

    ran_here = Signal()
    menu_wanted = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._ticks = StepTicks()
        self._picture = TimelinePicture(models, self._ticks)
        self._marked: tuple[int, int | None] = (-1, None)  # the history's shape and the tip that `_marks` belong to
        self.marks: tuple[PathMark, ...] = ()
        self._pointed_ahead = 0
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setMouseTracking(True)
        self.setAccessibleName("Timeline of steps")
        self.set_background()
        models.timeline.filled.connect(self._on_filled)  # connected first, so that ticks are updated before `read`
        self.follow(models)

    def sizeHint(self) -> QSize:
        return QSize(600, HEIGHT)

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> TimelineState | str:
        timeline, history, now = self._models.timeline, self._models.history, self._models.selection.now
        steps = timeline.nodes
        self._ticks.follow(steps, timeline.record)
        if not steps or timeline.latest is None:
            return "No step was taken."
        last = len(steps) - 1
        index = last if now.step is None else min(bisect_left(steps, now.step), last)
        behind = steps_ahead(history, history.live) if timeline.is_of_live else ()
        left = Left(len(behind), behind[-1]) if behind else None
        goes_on = timeline.is_of_live and left is None and can_go_on(self._models)
        if self._marked != (history.shape, steps[-1]):
            self._marked, self.marks = (history.shape, steps[-1]), path_marks(history, steps[-1])
        return TimelineState(
            steps[0], steps[-1], timeline.latest, len(steps), index, steps[index], now.step is None,
            self._live_index(), left, goes_on, now.ahead, self._pointed_ahead if goes_on else 0, self.marks,
            self._held(), self._noted(),
        )  # fmt: skip

    def _live_index(self) -> int | None:
        timeline, history = self._models.timeline, self._models.history
        if timeline.is_of_live:
            return None
        common = history.common_ancestor(timeline.tip, history.live)
        return None if common is None else timeline.node_index(common)

    def _held(self) -> tuple[tuple[str, int], ...]:
        breakpoints = self._models.breakpoints
        found = breakpoints.queried.matches if breakpoints.queried else ()
        halting = ((text, len(search.matches)) for text, search in breakpoints.halting)
        return (breakpoints.query, len(found)), *halting, ("", len(breakpoints.hits))

    def _noted(self) -> tuple[int, ...]:
        """The indices on the path of steps with a bookmark."""
        places = map(self._models.timeline.node_index, self._models.bookmarks.on_steps())
        return tuple(at for at in places if at is not None)

    def show_state(self, state: TimelineState) -> None:
        self.setAccessibleDescription(state.words)
        self.update()

    def show_nothing(self, why: str) -> None:
        self.setAccessibleDescription(why)
        self.update()

    def _on_filled(self, index: int) -> None:
        """Update the tick of a step whose record has got its surprisals."""
        record = self._models.timeline.records[index]
        self._ticks.put(self._models.timeline.node_index(record.step) or 0, record)
        self.update()

    @property
    def track(self) -> TimelineTrack:
        """The present track."""
        left = self.state.left if self.state is not None else None
        goes_on = self.state is not None and self.state.goes_on
        return TimelineTrack(self.width(), len(self._ticks), left.count if left is not None else 0, goes_on)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        self._picture.paint(painter, self.track, self.state, has_focus=self.hasFocus())

    # ---- moving --------------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self._choose(event.position().x())

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Run to a place ahead. On the path a double click does nothing: its first click has selected the step."""
        if event.button() == Qt.MouseButton.LeftButton and self.track.ahead_at(event.position().x()):
            self._choose(event.position().x())
            self.ran_here.emit()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        if event.reason() == QContextMenuEvent.Reason.Mouse:
            self._choose(event.pos().x())
        self.menu_wanted.emit(event.globalPos())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        x = event.position().x()
        if event.buttons() & Qt.MouseButton.LeftButton:
            if not self._models.selection.now.ahead:
                self._scrub(x)
            elif self.track.ahead_at(x):
                self._choose(x)
        else:
            self._point(self.track.ahead_at(x))

    def leaveEvent(self, event: QEvent) -> None:
        self._point(0)

    def _point(self, num_steps: int) -> None:
        if num_steps != self._pointed_ahead:
            self._pointed_ahead = num_steps
            self.refresh()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        leaps = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1, Qt.Key.Key_PageUp: -8, Qt.Key.Key_PageDown: 8}
        leap = leaps.get(Qt.Key(event.key()))
        if leap is None:
            super().keyPressEvent(event)
            return
        timeline, selection = self._models.timeline, self._models.selection
        selection.update(step=timeline.neighbour(selection.now.step, leap))

    def _choose(self, x: float) -> None:
        """Select the step at `x`, of the path or of the branch that was left, or choose a place ahead."""
        behind, selection = self._left_at(x), self._models.selection
        if behind is not None:
            selection.update(step=behind)
        elif num_steps := self.track.ahead_at(x):
            selection.update(step=None, ahead=num_steps)
        else:
            self._scrub(x)

    def _scrub(self, x: float) -> None:
        steps = self._models.timeline.nodes
        if steps:
            self._models.selection.update(step=steps[self.track.index_at(x)], ahead=0)

    def _left_at(self, x: float) -> int | None:
        """The step at `x` on the branch that was left; None if there is none."""
        index, history = self.track.left_at(x), self._models.history
        behind = steps_ahead(history, history.live) if index is not None else ()
        return behind[index] if index is not None and index < len(behind) else None

    # ---- tips ----------------------------------------------------------------------------------------------------

    def tip_at(self, place: QPoint) -> str:
        x = place.x()
        if not len(self._ticks):
            return ""
        if (behind := self._left_at(x)) is not None and self.state is not None and self.state.left is not None:
            return f"{self._tip_of(behind)}\n{self.state.left.words}: click looks at it"
        if num_steps := self.track.ahead_at(x):
            ahead = f"{counted(num_steps, 'step')} ahead of the live step"
            return f"{ahead}\nDouble click runs to here, the right button offers more"
        return self._tip_of(self._models.timeline.nodes[self.track.index_at(x)])

    def _tip_of(self, step: int) -> str:
        record = self._models.history.record(step) or self._models.timeline.record(step)
        notes = tip_lines(*self._models.bookmarks.on_steps().get(step, ()))
        if record is None:
            return "\n".join((*node_lines(self._models, step), *notes))
        part = self._models.timeline.part(self._models.selection.now.seq_id, record.step)
        part = part if part is not None else next(iter(record.sequences), None)
        texts = "" if part is None else shortened(visible("".join(part.texts[:24])[:200]), 60)
        took_ms = record.timings.total_ms  # 0: not measured
        head = f"step {thousands(record.step)} · {record.phase}{f' · {milliseconds(took_ms)}' if took_ms else ''}"
        return "\n".join(line for line in (head, texts, *words_at(self._models, record.step), *notes) if line)
