"""The picture of a history tree: a row a branch, a line as long as it has moments, what was done on it, its text and
its size. Only what is on the screen is painted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from PySide6.QtCore import QPointF, QRectF, QSizeF, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPainterPath, QPen, QPolygonF

from app.draw.change_marks import kind_of
from app.draw.format import byte_size, thousands
from app.kit import branch_words
from app.kit.change_marks import paint_mark
from app.kit.owner_colors import owner_color
from app.kit.text_lines import TextPainter
from app.kit.theme import current_theme, font_fixed, font_text
from app.models import Branch, Models
from app.panels.branches.draw import Axis, BranchRow, Line, Mark, branch_rows, thinned
from engine.wire.tree import BranchBytes

ROW = 24
INSET = 12.0  # of the first and the last moment from the ends of the lines
STEPS_WIDTH, OWN_WIDTH, BYTES_WIDTH, TEXT_SHARE = 46, 76, 168, 0.42
ROOM_FOR_STEPS, ROOM_FOR_OWN, ROOM_FOR_BYTES = 360, 430, 700


@dataclass(frozen=True)
class Drawn:
    """The tree in one version, the moments that are live and looked at, whose text is shown, and what the tips take."""

    version: int
    live: int | None
    looked_at: int | None
    seq_id: int
    path: frozenset[int] = frozenset()  # the branches that the live path goes through
    kept: tuple[BranchBytes, ...] = ()
    bookmarked: frozenset[int] = frozenset()
    origins: tuple[tuple[int, int], ...] = ()  # live sequences that were forked, and the moments that they came from

    @property
    def num_bytes(self) -> Mapping[int, BranchBytes]:
        """What is kept of moments, by step."""
        return {held.step: held for held in self.kept}


NOTHING = Drawn(-1, None, None, 0)


class TreePicture:
    """Rows of branches in a frame of `size`, whose upper `scrolled` pixels are above it. `picked` are moments that are
    chosen beside the one that is looked at, `hovered` is the row under the mouse; `has_keys`: keys move the choice."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.drawn = NOTHING
        self.rows: tuple[BranchRow, ...] = ()
        self._row_of: dict[int, int] = {}
        self._shape = -1
        self.picked: tuple[int, ...] = ()
        self.hovered = -1
        self.has_keys = False
        self.size = QSizeF(1, 1)
        self.scrolled = 0
        self._text, self._bold = TextPainter(font_text(12)), TextPainter(font_text(12, QFont.Weight.DemiBold))
        self._fixed = TextPainter(font_fixed(11.5))

    def take(self, drawn: Drawn) -> None:
        """Another tree, or other moments of it."""
        history = self._models.history
        if self._shape != history.shape:
            self._shape = history.shape
            self.rows = branch_rows(map(self._line, history.branches()))
            self._row_of = {row.branch.first: row.row for row in self.rows}
        elif self.drawn.version != drawn.version and drawn.live is not None:
            self._grow(history.branch_of(drawn.live))
        self.picked = tuple(step for step in self.picked if step in history)
        self.drawn = drawn

    def _grow(self, branch: Branch) -> None:
        """The live branch has more moments, and nothing else is different."""
        number = self._row_of[branch.first]
        row = self.rows[number]
        grown = replace(row, branch=self._line(branch), end=row.start + branch.num_nodes)
        self.rows = (*self.rows[:number], grown, *self.rows[number + 1 :])

    def _line(self, branch: Branch) -> Line:
        history, parent = self._models.history, branch.parent
        if parent is None:
            return Line(branch.first, branch.tip, branch.num_nodes)
        parent_first, index = history.branch_of(parent).first, history.index_of(parent)
        return Line(branch.first, branch.tip, branch.num_nodes, parent, parent_first, index)

    @property
    def step(self) -> int | None:
        """The moment that is looked at, else the live one."""
        asked = (self.drawn.looked_at, self.drawn.live)
        return next((step for step in asked if step in self._models.history), None)

    @property
    def height(self) -> int:
        return len(self.rows) * ROW

    # ---- where things are ----------------------------------------------------------------------------------------

    @property
    def _axis(self) -> Axis:
        deepest = max((row.end for row in self.rows), default=1)
        return Axis(INSET, max(INSET + 1, self._text_left() - 22), deepest)

    def _text_left(self) -> float:
        return self.size.width() - self._sizes_width() - self.size.width() * TEXT_SHARE

    def _sizes_width(self) -> float:
        return (STEPS_WIDTH if self.size.width() >= ROOM_FOR_STEPS else 0) + self._bytes_width()

    def _bytes_width(self) -> float:
        """Where there is little room what is shared is told by the tool tip alone."""
        if not self.drawn.kept or self.size.width() < ROOM_FOR_OWN:
            return 0
        return BYTES_WIDTH if self.size.width() >= ROOM_FOR_BYTES else OWN_WIDTH

    def _top(self, row: int) -> float:
        return row * ROW - self.scrolled

    def text_cell(self, row: int) -> QRectF:
        left = self._text_left()
        return QRectF(left, self._top(row), self.size.width() - self._sizes_width() - left, ROW)

    def place_of(self, step: int) -> tuple[BranchRow, float]:
        history = self._models.history
        row = self.rows[self._row_of[history.branch_of(step).first]]
        return row, self._axis.x_of(row.start + history.index_of(step) + 1)

    def step_at(self, point: QPointF) -> int | None:
        """The moment under a point: of the words of a branch its newest; None where there is no branch."""
        number = int((point.y() + self.scrolled) // ROW)
        if not 0 <= number < len(self.rows):
            return None
        row = self.rows[number]
        if point.x() >= self._text_left() - 8:
            return row.branch.tip
        depth = self._axis.depth_at(point.x())
        return self._models.history.node_at(row.branch.first, depth - row.start - 1)

    def point_of(self, step: int) -> QPointF:
        """Where a moment stands on the screen."""
        row, x = self.place_of(step)
        return QPointF(x, self._top(row.row) + ROW / 2)

    # ---- painting ------------------------------------------------------------------------------------------------

    def paint(self, painter: QPainter) -> None:
        """All that is in the frame."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        first, last = self.scrolled // ROW, (self.scrolled + int(self.size.height())) // ROW
        shown = self.rows[first : last + 1]
        for row in shown:
            self._paint_ground(painter, row)
        for row in self.rows[first:]:  # a line may come from above the frame and end below it
            if row.parent_row is not None and row.parent_row <= last:
                self._paint_parting(painter, row)
        for row in shown:
            self._paint_line(painter, row)
            self._paint_marks(painter, row)
            self._paint_words(painter, row)
        for row in shown:
            self._paint_moments(painter, row)

    def _paint_ground(self, painter: QPainter, row: BranchRow) -> None:
        is_chosen = self.step in self._models.history and self.place_of(self.step or 0)[0] is row
        is_picked = any(self.place_of(step)[0] is row for step in self.picked)
        if not is_chosen and not is_picked and row.row != self.hovered:
            return
        ground = QRectF(0, self._top(row.row), self.size.width(), ROW)
        theme = current_theme()
        painter.fillRect(ground, theme.color("selected", 38) if is_picked else theme.color("title_strip"))
        if is_chosen and self.has_keys:
            painter.setPen(QPen(current_theme().color("accent"), 1))
            painter.drawRect(ground.adjusted(0.5, 0.5, -0.5, -0.5))

    def _pen(self, is_live: bool) -> QPen:
        theme = current_theme()
        return QPen(theme.color("accent" if is_live else "faint"), 2.0 if is_live else 1.5)

    def _paint_parting(self, painter: QPainter, row: BranchRow) -> None:
        """Down from the moment after which a branch begins, and into its row."""
        assert row.parent_row is not None
        axis, middle = self._axis, self._top(row.row) + ROW / 2
        x, top = axis.x_of(row.start), self._top(row.parent_row) + ROW / 2
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
        """How deep the live path goes along a row."""
        shared = self._models.history.common_ancestor(row.branch.tip, self.drawn.live)
        return row.end if shared is None else row.start + self._models.history.index_of(shared) + 1

    def _paint_marks(self, painter: QPainter, row: BranchRow) -> None:
        history, axis = self._models.history, self._axis
        found: list[Mark] = []
        for step in history.changed_of(row.branch.first):
            if (kind := kind_of(history.changes(step))) is not None:
                found.append(Mark(axis.x_of(row.start + history.index_of(step) + 1), kind))
        middle = self._top(row.row) + ROW / 2
        for mark in thinned(found):
            paint_mark(painter, QPointF(mark.x, middle), mark.kind)
        for step in self.drawn.bookmarked:
            if step in history and history.branch_of(step).first == row.branch.first:
                self._paint_bookmark(painter, self.point_of(step))

    def _paint_bookmark(self, painter: QPainter, at: QPointF) -> None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_theme().color("warning"))
        x, y = at.x(), at.y()
        corners = ((-3, -11), (3, -11), (3, -3), (0, -6), (-3, -3))
        painter.drawPolygon(QPolygonF([QPointF(x + dx, y + dy) for dx, dy in corners]))

    def _paint_moments(self, painter: QPainter, row: BranchRow) -> None:
        """The end of the branch, and the moments that are live, looked at and picked."""
        theme, history = current_theme(), self._models.history
        tip = QPointF(self._axis.x_of(row.end), self._top(row.row) + ROW / 2)
        painter.setPen(QPen(theme.color("muted"), 1.5))
        is_gone = bool(self.drawn.num_bytes) and self._is_let_go(row)
        painter.setBrush(theme.color("panel" if is_gone else "muted"))
        painter.drawEllipse(tip, 3, 3)
        live = self.drawn.live
        if live is not None and live in history and history.branch_of(live).first == row.branch.first:
            painter.setPen(QPen(theme.color("panel"), 1.5))
            painter.setBrush(theme.color("accent"))
            painter.drawEllipse(self.point_of(live), 5.5, 5.5)
        for step in (self.drawn.looked_at, *self.picked):
            if step is not None and step in history and history.branch_of(step).first == row.branch.first:
                painter.setPen(QPen(theme.color("selected"), 2.0))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawEllipse(self.point_of(step), 6.5, 6.5)

        for seq_id, step in self.drawn.origins:
            if step in history and history.branch_of(step).first == row.branch.first:
                self._paint_origin(painter, self.point_of(step), seq_id)

    def _paint_origin(self, painter: QPainter, at: QPointF, seq_id: int) -> None:
        """A sequence that runs now came from here: a piece in its colour, below the line as a bookmark is above."""
        painter.setPen(QPen(current_theme().color("panel"), 1))
        painter.setBrush(QColor(owner_color(current_theme(), seq_id)))
        painter.drawRect(QRectF(at.x() - 3.5, at.y() + 4.5, 7, 7))

    def _is_let_go(self, row: BranchRow) -> bool:
        """Whether the newest moment of a branch has to be computed again when it is gone to."""
        history, tip = self._models.history, row.branch.tip
        came_on = bool(history.children_of(tip)) or history.is_on_path(tip, self.drawn.live)
        return not came_on and tip not in self.drawn.num_bytes

    def _paint_words(self, painter: QPainter, row: BranchRow) -> None:
        theme, cell = current_theme(), self.text_cell(row.row)
        middle, first = cell.center().y(), row.branch.first
        x, end = cell.left(), cell.right() - 10
        if name := self._models.history.name(first):
            painter.setPen(theme.color("text"))
            x = self._bold.left(painter, x, middle, self._bold.elided(name, end - x)) + 10
        if end - x > 30:
            painter.setPen(theme.color("text" if first in self.drawn.path and not name else "muted"))
            line = branch_words.text_line(self._models, first, int((end - x) / 6) + 4)
            self._fixed.left(painter, x, middle, self._fixed.elided(line, end - x))
        right = self.size.width() - 8.0
        painter.setPen(theme.color("muted"))
        if (width := self._bytes_width()) > 0:
            held = self.drawn.num_bytes.get(row.branch.tip)
            told = size_words(held) if held is not None or self._is_let_go(row) else ""
            self._text.right(painter, right, middle, told if width == BYTES_WIDTH else told.split(" + ")[0])
            right -= width
        if self.size.width() >= ROOM_FOR_STEPS:
            self._fixed.right(painter, right, middle, thousands(row.branch.num_nodes))


def size_words(held: BranchBytes | None, *, is_whole: bool = False) -> str:
    """`1.2 MiB + 3 MiB shared`: what the newest moment of a branch holds beside the live one; None: it is not kept."""
    if held is None:
        return "let go: computed again when it is gone to" if is_whole else "by replay"
    own, shared = byte_size(held.private), byte_size(held.shared)
    if is_whole:
        return f"kept as it stood: {own} of its own, {shared} shared with others"
    return f"{own} + {shared} shared" if held.shared else own
