"""The timeline: drag it to look back. Ticks show each token's surprisal; marks show forced tokens, edits, changes of
the cache mode, where other branches begin, at which steps a condition or a stop held and where a run halted.

The branch that was left after the live node is dimmed; a click shows its steps. If the live node can continue instead,
a place ahead of it can be chosen to run to.
"""

from __future__ import annotations

from bisect import bisect_left

from PySide6.QtCore import QEvent, QPoint, QSize, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.draw.format import milliseconds, shortened, thousands, visible
from app.kit.reader import BOOKMARKS, BREAKPOINTS, EACH_STEP, SELECTION, STATUS, Reader, SignalSource
from app.kit.widgets import Opaque, TellsPlaces
from app.kit.words import node_lines, tip_lines
from app.models import Models
from app.models.sequence_status import can_go_on
from app.models.timeline import PathMark, path_marks, steps_ahead
from app.panels.timeline.draw import StepTicks
from app.panels.timeline.picture import (
    HEIGHT,
    FoundSteps,
    Left,
    TimelinePicture,
    TimelineState,
    TimelineTrack,
    words_at,
)
from engine.counted import counted
from engine.wire.records import StepRecord


class TimelineBar(Reader[TimelineState], TellsPlaces, Opaque, QWidget):
    """Writes the selected step; the newest node of the path is the live one. Signals: `ran_here()`, run to the chosen
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
        nodes = timeline.nodes
        self._ticks.take(nodes, timeline.record)
        if not nodes or timeline.latest is None:
            return "No step was taken."
        last = len(nodes) - 1
        index = last if now.step is None else min(bisect_left(nodes, now.step), last)
        behind = steps_ahead(history, history.live) if timeline.is_of_live else ()
        left = Left(len(behind), behind[-1]) if behind else None
        goes_on = timeline.is_of_live and left is None and can_go_on(self._models)
        if self._marked != (history.shape, nodes[-1]):
            self._marked, self.marks = (history.shape, nodes[-1]), path_marks(history, nodes[-1])
        return TimelineState(
            nodes[0], nodes[-1], timeline.latest, len(nodes), index, nodes[index], now.step is None,
            self._live_index(), left, goes_on, now.ahead, self._pointed_ahead if goes_on else 0, self.marks,
            FoundSteps.of(self._models), self._noted(),
        )  # fmt: skip

    def _live_index(self) -> int | None:
        timeline, history = self._models.timeline, self._models.history
        if timeline.is_of_live:
            return None
        common = history.common_ancestor(timeline.tip, history.live)
        return None if common is None else timeline.node_index(common)

    def _noted(self) -> tuple[int, ...]:
        """The indices on the path of nodes with a bookmark."""
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
        """Select the node at `x`, of the path or of the branch that was left, or choose a place ahead."""
        behind, selection = self._left_at(x), self._models.selection
        if behind is not None:
            selection.update(step=behind)
        elif num_steps := self.track.ahead_at(x):
            selection.update(step=None, ahead=num_steps)
        else:
            self._scrub(x)

    def _scrub(self, x: float) -> None:
        nodes = self._models.timeline.nodes
        if nodes:
            self._models.selection.update(step=nodes[self.track.index_at(x)], ahead=0)

    def _left_at(self, x: float) -> int | None:
        """The node at `x` on the branch that was left; None if there is none."""
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

    def _tip_of(self, node: int) -> str:
        record = self._models.history.record(node) or self._models.timeline.record(node)
        if record is None:
            notes = tip_lines(*self._models.bookmarks.on_steps().get(node, ()))
            return "\n".join((*node_lines(self._models, node), *notes))
        return self._tip(record)

    def _tip(self, record: StepRecord) -> str:
        part = self._models.timeline.part(self._models.selection.now.seq_id, record.step)
        part = part if part is not None else next(iter(record.sequences), None)
        texts = "" if part is None else shortened(visible("".join(part.texts[:24])[:200]), 60)
        took_ms = record.timings.total_ms  # 0: not measured
        head = f"step {thousands(record.step)} · {record.phase}{f' · {milliseconds(took_ms)}' if took_ms else ''}"
        notes = tip_lines(*self._models.bookmarks.on_steps().get(record.step, ()))
        return "\n".join(line for line in (head, texts, *words_at(self._models, record.step), *notes) if line)
