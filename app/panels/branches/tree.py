"""The canvas of the history tree: a row for each branch and along it a place for each step; mouse and keys select one,
make it live, or name its branch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFont,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QLineEdit

from app.draw.edited import ORDER, MarkKind, kind_of
from app.draw.format import byte_size, thousands
from app.kit import words
from app.kit.heatmap import paint_mark
from app.kit.painting import TextPainter
from app.kit.theme import Themed, current_theme, font_fixed, font_text, owner_color
from app.kit.widgets import TellsPlaces
from app.kit.words import MARK_WIDTH, branch_name, node_lines, paint_ribbon
from app.models import Models
from app.models.timeline import branch_text
from engine.history.tree import Branch, TreeShape
from engine.wire.tree import KeptStateBytes

LEAST_GAP = 7.0  # least distance of two marks in pixels


class BranchRow(Struct, frozen=True):
    """A branch in its row. It begins at `parent_row` (None: at the root), after the step at depth `joint`; its own
    steps have the depths `start` + 1 … `end`. `joint` equals `start` unless the parent branch itself has no row.
    `num_hidden` branches below it are hidden because it is folded."""

    branch: Branch
    row: int
    parent_row: int | None
    start: int
    end: int
    joint: int = -1
    num_hidden: int = 0
    is_folded: bool = False


def branch_rows(tree: TreeShape) -> tuple[BranchRow, ...]:
    """A row for every branch. Branches that begin later have rows nearer to their parent's, so that no lines cross."""
    begun: dict[int | None, list[tuple[int, int]]] = {}  # (index in the parent, first node negated) by the parent
    for branch in tree.branches():
        parent, index = branch.parent, -1
        if parent is not None:
            index, parent = tree.index_of(parent), tree.branch_of(parent).first
        begun.setdefault(parent, []).append((index, -branch.first))
    rows: list[BranchRow] = []
    # the last of the list is next: the branch that begins last, or of several the oldest
    waiting: list[tuple[int, int | None, int]] = [(-first, None, 0) for _, first in sorted(begun.get(None, ()))]
    while waiting:
        first, parent_row, start = waiting.pop()
        row, branch = len(rows), tree.branch(first)
        rows.append(BranchRow(branch, row, parent_row, start, start + branch.num_nodes, start))
        waiting += [(-child, row, start + index + 1) for index, child in sorted(begun.get(first, ()))]
    return tuple(rows)


def with_rows(
    rows: Sequence[BranchRow], folded: Collection[int], always: Collection[int], wanted: Collection[int] | None
) -> tuple[BranchRow, ...]:
    """The rows that are visible: not those of branches below a `folded` one, nor those not `wanted` (None: all are),
    but always those in `always`. Branches are given by their first steps."""
    found: list[BranchRow] = []
    shown: dict[int, int] = {}  # original row -> visible row
    inside: dict[int, int | None] = {}  # original row -> the folded branch that contains it
    hidden: dict[int, int] = {}
    for row in rows:
        first, parent = row.branch.first, row.parent_row
        above = None if parent is None else rows[parent]
        inside[row.row] = None
        if above is not None:
            outer = inside[above.row]  # of nested folds the outermost counts
            inside[row.row] = above.branch.first if outer is None and above.branch.first in folded else outer
        is_in = first in always or (inside[row.row] is None and (wanted is None or first in wanted))
        if not is_in:
            if (fold := inside[row.row]) is not None:
                hidden[fold] = hidden.get(fold, 0) + 1
            continue
        joint = row.start
        while above is not None and above.row not in shown:
            joint, above = above.start, None if above.parent_row is None else rows[above.parent_row]
        shown[row.row] = len(found)
        parent_row = None if above is None else shown[above.row]
        found.append(replace(row, row=len(found), parent_row=parent_row, joint=joint, is_folded=first in folded))
    return tuple(replace(row, num_hidden=hidden.get(row.branch.first, 0)) for row in found)


class DepthAxis(Struct, frozen=True):
    """Depths on a horizontal axis: the root is at 0, the first step at 1."""

    left: float
    right: float
    deepest: int

    def x_of(self, depth: float) -> float:
        return self.left + (self.right - self.left) * (max(depth, 1) - 1) / (max(self.deepest, 2) - 1)

    def depth_at(self, x: float) -> int:
        share = (x - self.left) / max(1.0, self.right - self.left)
        return round(1 + share * (max(self.deepest, 2) - 1))


RowMark = tuple[float, MarkKind]  # a mark for a change, at a place along a row


def thinned(marks: Sequence[RowMark]) -> list[RowMark]:
    """As many marks as fit beside each other, the more important ones first; sorted by place."""
    kept: list[RowMark] = []
    for kind in ORDER:
        for mark in (mark for mark in marks if mark[1] == kind):
            place = bisect_left(kept, mark[0], key=itemgetter(0))
            if all(abs(other[0] - mark[0]) >= LEAST_GAP for other in kept[max(0, place - 1) : place + 1]):
                kept.insert(place, mark)
    return kept


# ---- the canvas ------------------------------------------------------------------------------------------------------


ROW = 24
INSET = 12.0  # pixels between the ends of the axis and the first and last step
STEPS_WIDTH, OWN_WIDTH, BYTES_WIDTH, TEXT_SHARE = 46, 76, 168, 0.42
ROOM_FOR_STEPS, ROOM_FOR_OWN, ROOM_FOR_BYTES = 360, 430, 700


class Drawn(Struct, frozen=True):
    """A version of the tree, its live and selected step, the sequence whose text is shown, and the memory of kept
    steps."""

    version: int
    live: int | None
    viewed: int | None
    seq_id: int
    path: frozenset[int] = frozenset()  # first steps of the branches on the live path
    kept: tuple[KeptStateBytes, ...] = ()
    bookmarked: frozenset[int] = frozenset()
    origins: tuple[tuple[int, int], ...] = ()  # (live sequence, step that it was forked from)
    why_not: str = ""  # why no step can be made live; empty if one can
    kept_words: str = ""  # the memory for kept steps, and its limit

    @property
    def num_bytes(self) -> Mapping[int, KeptStateBytes]:
        """The kept memory, by step."""
        return {held.step: held for held in self.kept}


NOTHING = Drawn(-1, None, None, 0)


def size_words(held: KeptStateBytes | None, *, is_whole: bool = False) -> str:
    """`1.2 MiB + 3 MiB shared`: the memory for the newest step of a branch, in addition to the live one's; None: not
    kept."""
    if held is None:
        return "let go: computed again when it is gone to" if is_whole else "by replay"
    own, shared = byte_size(held.private), byte_size(held.shared)
    if is_whole:
        return f"kept as it stood: {own} of its own, {shared} shared with others"
    return f"{own} + {shared} shared" if held.shared else own


class NameLine(QLineEdit):
    """A line edit that consumes Enter and Esc, which the tree behind it would also handle. Signal: `left()` with
    Esc."""

    left = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.left.emit()
        else:
            super().keyPressEvent(event)
        event.accept()


class TreeCanvas(Themed, TellsPlaces, QAbstractScrollArea):
    """Signals: `chosen(step)`, a step was clicked or reached by keys; `picked()`, several steps are marked with
    Ctrl+click; `opened(step)`, make it live; `named(first, name)`, a branch was named; `dismissed()` with Esc."""

    chosen = Signal(int)
    picked = Signal()
    opened = Signal(int)
    named = Signal(int, str)
    dismissed = Signal()

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self.drawn = NOTHING
        self.rows: tuple[BranchRow, ...] = ()
        self._all_rows: tuple[BranchRow, ...] = ()
        self.folded: set[int] = set()  # first steps of branches whose sub-branches are hidden
        self.sought = ""  # only branches whose name or text contains this have a row
        self._row_of: dict[int, int] = {}
        self._shape = -1
        self.marked: tuple[int, ...] = ()
        self._hovered = -1
        self._text, self._bold = TextPainter(font_text(12)), TextPainter(font_text(12, QFont.Weight.DemiBold))
        self._fixed = TextPainter(font_fixed(11.5))
        self.name_line = NameLine(self.viewport())
        self.name_line.setAccessibleName("Name of the branch")
        self.name_line.setPlaceholderText("Name, Enter keeps it")
        self.name_line.setMaxLength(80)
        self.name_line.hide()
        self.name_line.editingFinished.connect(self._on_named)
        self.name_line.left.connect(self._leave_name)
        self._named_first = -1
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMinimumSize(1, 1)
        self.setAccessibleName("Branches of the history")
        self.viewport().setMouseTracking(True)
        self.verticalScrollBar().setSingleStep(ROW)

    # ---- what to show --------------------------------------------------------------------------------------------

    def show_tree(self, drawn: Drawn) -> None:
        """Show a tree; scrolls to the live or selected step if one of these changed."""
        old = self.drawn
        self._follow(drawn)
        self._fit()
        if (old.live, old.viewed) != (drawn.live, drawn.viewed):
            self._reveal()
        self.viewport().update()

    def drop_picked(self) -> None:
        """Unmark the steps that were marked with Ctrl+click."""
        if self.marked:
            self.marked = ()
            self.viewport().update()

    def begin_naming(self) -> None:
        """Let the user type the name of the selected branch in its row."""
        if (step := self.step) is None:
            return
        self._reveal()
        row, _ = self.place_of(step)
        self._named_first = row.branch.first
        self.name_line.setGeometry(self.text_cell(row.row).adjusted(-6, 1, 0, -1).toRect())
        self.name_line.setText(self._models.history.name(row.branch.first))
        self.name_line.show()
        self.name_line.selectAll()
        self.name_line.setFocus()

    def _on_named(self) -> None:
        if self.name_line.isVisible():
            name = " ".join(self.name_line.text().split())
            self._leave_name()
            self.named.emit(self._named_first, name)

    def _leave_name(self) -> None:
        self.name_line.hide()
        self.setFocus()

    def _fit(self) -> None:
        bar, viewport = self.verticalScrollBar(), self.viewport()
        bar.setPageStep(viewport.height())
        bar.setRange(0, max(0, len(self.rows) * ROW - viewport.height()))

    def _reveal(self) -> None:
        if (step := self.step) is None:
            return
        bar, top, room = self.verticalScrollBar(), self.place_of(step)[0].row * ROW, self.viewport().height()
        if not bar.value() <= top <= bar.value() + room - ROW:
            bar.setValue(top - max(0, (room - ROW) // 2))

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.name_line.hide()
        self._fit()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.name_line.hide()
        self.viewport().update()

    def take_theme(self) -> None:
        self.viewport().update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.fillRect(event.rect(), current_theme().color("panel"))
        self._paint(painter)

    # ---- rows ----------------------------------------------------------------------------------------------------

    @property
    def _room(self) -> QSize:
        return self.viewport().size()

    @property
    def _scrolled(self) -> int:
        return self.verticalScrollBar().value()

    def _follow(self, drawn: Drawn) -> None:
        """Follow a new version of the tree, or another live or selected step."""
        history = self._models.history
        if self._shape != history.shape:
            self._shape = history.shape
            self._all_rows = branch_rows(history)
            self.folded &= {row.branch.first for row in self._all_rows}
            self.drawn = drawn
            self.choose_rows()
        elif self.drawn.version != drawn.version and drawn.live is not None:
            self._grow(history.branch_of(drawn.live))
        self.marked = tuple(step for step in self.marked if step in history)
        was_at, self.drawn = self.drawn.viewed, drawn
        if was_at != drawn.viewed and len(self.rows) < len(self._all_rows):
            self.choose_rows()

    @property
    def num_branches(self) -> int:
        """The number of all branches, visible or not."""
        return len(self._all_rows)

    def choose_rows(self) -> None:
        """Decide which branches have a row; those of the live path and of the selected step always do."""
        always, viewed = set(self.drawn.path), self.drawn.viewed
        if viewed is not None:
            always.add(self._models.history.branch_of(viewed).first)
        wanted = None
        if self.sought:
            wanted = {row.branch.first for row in self._all_rows if self._has_words(row.branch.first)}
        self.rows = with_rows(self._all_rows, self.folded, always, wanted)
        self._row_of = {row.branch.first: row.row for row in self.rows}

    def _has_words(self, first: int) -> bool:
        history = self._models.history
        words = history.name(first) + "\n" + branch_text(history, first, self.drawn.seq_id)
        return self.sought.casefold() in words.casefold()

    def has_fold(self, row: BranchRow) -> bool:
        """Whether a branch has sub-branches, so that it can be folded."""
        return row.is_folded or any(other.parent_row == row.row for other in self.rows[row.row + 1 : row.row + 2])

    def fold_at(self, point: QPointF) -> int | None:
        """The branch whose fold sign is at a point; None if there is none."""
        row = self._row_under(point.y())
        if row is None or not self.has_fold(row):
            return None
        left = self._text_left()
        return row.branch.first if left - 20 <= point.x() < left else None

    def _row_under(self, y: float) -> BranchRow | None:
        """The row at a height; the live one may be pinned to an edge."""
        if (pinned := self.pinned) is not None and self._pinned_top <= y < self._pinned_top + ROW:
            return pinned
        number = int((y + self._scrolled) // ROW)
        return self.rows[number] if 0 <= number < len(self.rows) else None

    @property
    def pinned(self) -> BranchRow | None:
        """The row of the live branch, if it is scrolled out of sight."""
        live, history = self.drawn.live, self._models.history
        if live is None or live not in history or self._room.height() < 4 * ROW:
            return None
        row = self.rows[self._row_of[history.branch_of(live).first]]
        top = self._top(row.row)
        return row if top < -ROW / 2 or top > self._room.height() - ROW / 2 else None

    @property
    def _pinned_top(self) -> float:
        """The y of the pinned row: at the edge beyond which its own place is."""
        pinned = self.pinned
        return 0.0 if pinned is not None and self._top(pinned.row) < 0 else self._room.height() - ROW

    def _grow(self, branch: Branch) -> None:
        """Extend the row of the live branch, when nothing else has changed."""

        def grown(row: BranchRow) -> BranchRow:
            is_it = row.branch.first == branch.first
            return replace(row, branch=branch, end=row.start + branch.num_nodes) if is_it else row

        self.rows, self._all_rows = tuple(map(grown, self.rows)), tuple(map(grown, self._all_rows))

    @property
    def step(self) -> int | None:
        """The selected step, else the live one."""
        asked = (self.drawn.viewed, self.drawn.live)
        return next((step for step in asked if step in self._models.history), None)

    # ---- places --------------------------------------------------------------------------------------------------

    @property
    def _axis(self) -> DepthAxis:
        deepest = max((row.end for row in self.rows), default=1)
        return DepthAxis(INSET, max(INSET + 1, self._text_left() - 22), deepest)

    def _text_left(self) -> float:
        return self._room.width() - self._sizes_width() - self._room.width() * TEXT_SHARE

    def _sizes_width(self) -> float:
        return (STEPS_WIDTH if self._room.width() >= ROOM_FOR_STEPS else 0) + self._bytes_width()

    def _bytes_width(self) -> float:
        """The width of the sizes; where it is narrow, shared bytes are only in the tool tip."""
        if not self.drawn.kept or self._room.width() < ROOM_FOR_OWN:
            return 0
        return BYTES_WIDTH if self._room.width() >= ROOM_FOR_BYTES else OWN_WIDTH

    def _top(self, row: int) -> float:
        return row * ROW - self._scrolled

    def text_cell(self, row: int) -> QRectF:
        left = self._text_left()
        return QRectF(left, self._top(row), self._room.width() - self._sizes_width() - left, ROW)

    def place_of(self, step: int) -> tuple[BranchRow, float]:
        """(row, x) of a step; if its branch is hidden, of the step where it leaves a visible one."""
        history = self._models.history
        while (first := history.branch_of(step).first) not in self._row_of:
            parent = history.branch(first).parent
            if parent is None:
                return self.rows[0], self._axis.x_of(0)
            step = parent
        row = self.rows[self._row_of[first]]
        return row, self._axis.x_of(row.start + history.index_of(step) + 1)

    def step_at(self, point: QPointF) -> int | None:
        """The step at a point; in a branch's text its newest step; None if there is no row."""
        row = self._row_under(point.y())
        if row is None:
            return None
        if point.x() >= self._text_left() - 8:
            return row.branch.tip
        depth = self._axis.depth_at(point.x())
        return self._models.history.node_at(row.branch.first, depth - row.start - 1)

    def point_of(self, step: int) -> QPointF:
        """The point of a step on the screen."""
        row, x = self.place_of(step)
        return QPointF(x, self._top(row.row) + ROW / 2)

    # ---- painting ------------------------------------------------------------------------------------------------

    def _paint(self, painter: QPainter) -> None:
        """Paint everything that is visible."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        first, last = self._scrolled // ROW, (self._scrolled + int(self._room.height())) // ROW
        shown = self.rows[first : last + 1]
        for row in shown:
            self._paint_ground(painter, row)
        for row in self.rows[first:]:  # a line to a later row may begin above the visible part
            if row.parent_row is not None and row.parent_row <= last:
                self._paint_parting(painter, row)
        self._paint_rows(painter, shown)
        self._paint_pinned(painter)

    def _paint_rows(self, painter: QPainter, rows: Sequence[BranchRow]) -> None:
        for row in rows:
            self._paint_line(painter, row)
            self._paint_words(painter, row)
        for row in rows:
            self._paint_steps(painter, row)
            self._paint_marks(painter, row)  # painted last, as an edit may be the live step

    def _paint_pinned(self, painter: QPainter) -> None:
        """Paint the live branch at the upper or lower edge, if its row is scrolled away."""
        row, top = self.pinned, self._pinned_top
        if row is None:
            return
        theme = current_theme()
        painter.fillRect(QRectF(0, top, self._room.width(), ROW), theme.color("title_strip"))
        painter.setPen(QPen(theme.color("hairline"), 1))
        edge = top + ROW if top == 0 else top
        painter.drawLine(QPointF(0, edge), QPointF(self._room.width(), edge))
        painter.save()
        painter.translate(0, round(top) - self._top(row.row))
        self._paint_rows(painter, (row,))
        painter.restore()

    def _paint_ground(self, painter: QPainter, row: BranchRow) -> None:
        is_chosen = self.step in self._models.history and self.place_of(self.step or 0)[0] is row
        is_picked = any(self.place_of(step)[0] is row for step in self.marked)
        if not is_chosen and not is_picked and row.row != self._hovered:
            return
        ground = QRectF(0, self._top(row.row), self._room.width(), ROW)
        theme = current_theme()
        painter.fillRect(ground, theme.color("selected", 38) if is_picked else theme.color("title_strip"))
        if is_chosen and self.hasFocus():
            painter.setPen(QPen(current_theme().color("accent"), 1))
            painter.drawRect(ground.adjusted(0.5, 0.5, -0.5, -0.5))

    def _pen(self, is_live: bool) -> QPen:
        theme = current_theme()
        return QPen(theme.color("accent" if is_live else "faint"), 2.0 if is_live else 1.5)

    def _paint_parting(self, painter: QPainter, row: BranchRow) -> None:
        """Paint the line from the step after which a branch begins to the branch's row."""
        assert row.parent_row is not None
        axis, middle = self._axis, self._top(row.row) + ROW / 2
        x, top = axis.x_of(row.joint), self._top(row.parent_row) + ROW / 2
        start = axis.x_of(row.start + 1)
        bend = min(7.0, max(2.0, start - x))
        path = QPainterPath(QPointF(x, top))
        path.lineTo(x, middle - bend)
        path.quadTo(x, middle, x + bend, middle)
        path.lineTo(max(start, x + bend), middle)
        painter.setPen(self._pen(row.branch.first in self.drawn.path))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPath(path)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_theme().color("accent" if self._is_live_at(row) else "muted"))
        painter.drawEllipse(QPointF(x, top), 2.5, 2.5)

    def _is_live_at(self, row: BranchRow) -> bool:
        parent = row.branch.parent
        return parent is not None and self._models.history.is_on_path(parent, self.drawn.live)

    def _paint_line(self, painter: QPainter, row: BranchRow) -> None:
        axis, middle = self._axis, self._top(row.row) + ROW / 2
        left, right = axis.x_of(row.start + 1), axis.x_of(row.end)
        painter.setPen(self._pen(False))
        painter.drawLine(QPointF(left, middle), QPointF(right, middle))
        if row.branch.first not in self.drawn.path:
            return
        painter.setPen(self._pen(True))
        painter.drawLine(QPointF(left, middle), QPointF(axis.x_of(self._live_end(row)), middle))

    def _live_end(self, row: BranchRow) -> int:
        """The depth up to which the live path goes along a row."""
        shared = self._models.history.common_ancestor(row.branch.tip, self.drawn.live)
        return row.end if shared is None else row.start + self._models.history.index_of(shared) + 1

    def _paint_marks(self, painter: QPainter, row: BranchRow) -> None:
        history, axis = self._models.history, self._axis
        found: list[RowMark] = []
        for step in history.changed_of(row.branch.first):
            if (kind := kind_of(history.changes(step))) is not None:
                found.append((axis.x_of(row.start + history.index_of(step) + 1), kind))
        middle = self._top(row.row) + ROW / 2
        for x, kind in thinned(found):
            paint_mark(painter, QPointF(x, middle), kind)
        for step in self._on(row, self.drawn.bookmarked):
            at = self.point_of(step)
            paint_ribbon(painter, at.x() + MARK_WIDTH / 2, at.y() - 12)

    def _on(self, row: BranchRow, steps: Iterable[int | None]) -> list[int]:
        """Those of some steps that are there still, and on the branch of a row."""
        history, first = self._models.history, row.branch.first
        there = (step for step in steps if step is not None and step in history)
        return [step for step in there if history.branch_of(step).first == first]

    def _paint_steps(self, painter: QPainter, row: BranchRow) -> None:
        """Paint the end of the branch, and the live, selected and marked steps."""
        theme = current_theme()
        tip = QPointF(self._axis.x_of(row.end), self._top(row.row) + ROW / 2)
        painter.setPen(QPen(theme.color("muted"), 1.5))
        is_gone = bool(self.drawn.num_bytes) and self._is_let_go(row)
        painter.setBrush(theme.color("panel" if is_gone else "muted"))
        painter.drawEllipse(tip, 3, 3)
        for live in self._on(row, (self.drawn.live,)):
            painter.setPen(QPen(theme.color("panel"), 1.5))
            painter.setBrush(theme.color("accent"))
            painter.drawEllipse(self.point_of(live), 5.5, 5.5)
        for step in self._on(row, (self.drawn.viewed, *self.marked)):
            painter.setPen(QPen(theme.color("selected"), 2.0))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawEllipse(self.point_of(step), 6.5, 6.5)
        for seq_id, origin in self.drawn.origins:
            for step in self._on(row, (origin,)):
                self._paint_origin(painter, self.point_of(step), seq_id)

    def _paint_origin(self, painter: QPainter, at: QPointF, seq_id: int) -> None:
        """Mark where a running sequence was forked from: a square in its colour, below the line (bookmarks are
        above)."""
        painter.setPen(QPen(current_theme().color("panel"), 1))
        painter.setBrush(QColor(owner_color(current_theme(), seq_id)))
        painter.drawRect(QRectF(at.x() - 3.5, at.y() + 4.5, 7, 7))

    def _is_let_go(self, row: BranchRow) -> bool:
        """Whether the state of a branch's newest step is not kept, so that going there recomputes it."""
        history, tip = self._models.history, row.branch.tip
        came_on = bool(history.children_of(tip)) or history.is_on_path(tip, self.drawn.live)
        return not came_on and tip not in self.drawn.num_bytes

    def _paint_words(self, painter: QPainter, row: BranchRow) -> None:
        theme, cell = current_theme(), self.text_cell(row.row)
        middle, first = cell.center().y(), row.branch.first
        x, end = cell.left(), cell.right() - 10
        if self.has_fold(row):
            painter.setPen(theme.color("muted"))
            self._text.center(painter, x - 11, middle, "▸" if row.is_folded else "▾")
        if row.num_hidden:
            painter.setPen(theme.color("muted"))
            x = self._text.left(painter, x, middle, f"+{thousands(row.num_hidden)}") + 8
        if name := self._models.history.name(first):
            painter.setPen(theme.color("text"))
            x = self._bold.left(painter, x, middle, self._bold.elided(name, (end - x) / 2)) + 10
        if end - x > 30:
            painter.setPen(theme.color("text" if first in self.drawn.path and not name else "muted"))
            line = words.text_line(self._models, first, int((end - x) / 6) + 4)
            self._fixed.left(painter, x, middle, self._fixed.elided(line, end - x))
        right = self._room.width() - 8.0
        painter.setPen(theme.color("muted"))
        if (width := self._bytes_width()) > 0:
            held = self.drawn.num_bytes.get(row.branch.tip)
            size = size_words(held) if held is not None or self._is_let_go(row) else ""
            self._text.right(painter, right, middle, size if width == BYTES_WIDTH else size.split(" + ")[0])
            right -= width
        if self._room.width() >= ROOM_FOR_STEPS:
            self._fixed.right(painter, right, middle, thousands(row.branch.num_nodes))

    # ---- mouse and keys ------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        step, button = self.step_at(event.position()), event.button()
        if button == Qt.MouseButton.LeftButton and (first := self.fold_at(event.position())) is not None:
            self._fold(first)
            return
        if step is None or button not in (Qt.MouseButton.LeftButton, Qt.MouseButton.RightButton):
            return
        if button == Qt.MouseButton.LeftButton and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self._pick(step)
        elif button == Qt.MouseButton.LeftButton or step not in self.marked:
            self.chosen.emit(step)

    def _fold(self, first: int) -> None:
        """Hide the rows of the branches below a branch, or show them again."""
        self.folded ^= {first}
        self.choose_rows()
        self._fit()
        self.viewport().update()

    def seek(self, text: str) -> None:
        """Show only the live path, the selected branch and those whose name or text contains `text`; all if it is
        empty."""
        self.sought = text.strip()
        self.choose_rows()
        self._fit()
        self._reveal()
        self.viewport().update()

    def _pick(self, step: int) -> None:
        """Mark one more step, or unmark it; the selected step is marked first."""
        now, viewed = self.marked, self.drawn.viewed
        if not now and viewed is not None and viewed != step:
            now = (viewed,)
        self.marked = tuple(each for each in now if each != step) if step in now else (*now, step)
        self.viewport().update()
        self.picked.emit()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        step = self.step_at(event.position())
        if step is None or event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            return
        if event.button() == Qt.MouseButton.LeftButton and self.fold_at(event.position()) is None:
            self.opened.emit(step)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._hover(int((event.position().y() + self.verticalScrollBar().value()) // ROW))

    def leaveEvent(self, event: QEvent) -> None:
        self._hover(-1)

    def _hover(self, row: int) -> None:
        if row != self._hovered:
            self._hovered = row
            self.viewport().update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step, key = self.step, Qt.Key(event.key())
        if key == Qt.Key.Key_Escape:
            self.dismissed.emit()
        elif step is not None and key == Qt.Key.Key_Space and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self._pick(step)
        elif step is not None and key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.opened.emit(step)
        elif step is not None and key in (Qt.Key.Key_Minus, Qt.Key.Key_Plus):
            row = self.place_of(step)[0]
            if self.has_fold(row) and row.is_folded == (key == Qt.Key.Key_Plus):
                self._fold(row.branch.first)
        elif step is not None and (there := self._beside(step, key)) is not None:
            self.chosen.emit(there)
        else:
            super().keyPressEvent(event)

    def _beside(self, step: int, key: Qt.Key) -> int | None:
        """The step that a key leads to; None for any other key."""
        history, row = self._models.history, self.place_of(step)[0]
        index = history.index_of(step)
        match key:
            case Qt.Key.Key_Left:
                parent = history.parent_of(step)
                return step if parent is None else parent
            case Qt.Key.Key_Right:
                return history.node_at(row.branch.first, index + 1)
            case Qt.Key.Key_Home:
                return row.branch.first
            case Qt.Key.Key_End:
                return row.branch.tip
            case Qt.Key.Key_Up | Qt.Key.Key_Down:
                number = row.row + (1 if key == Qt.Key.Key_Down else -1)
                other = self.rows[min(max(number, 0), len(self.rows) - 1)]
                return history.node_at(other.branch.first, row.start + index - other.start)
        return None

    def tip_at(self, place: QPoint) -> str:
        if (step := self.step_at(QPointF(place))) is None:
            return ""
        branch = self._models.history.branch_of(step)
        lines = [branch_name(self._models, branch.first), *node_lines(self._models, step)]
        held = self.drawn.num_bytes.get(branch.tip)
        if held is not None or (self.drawn.num_bytes and branch.tip != self._models.history.live):
            lines.append(size_words(held, is_whole=True))
        return "\n".join([*lines, "click: look · double click or Enter: go on from there · Ctrl+click: choose several"])

    def focusInEvent(self, event: QFocusEvent) -> None:
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self.viewport().update()
