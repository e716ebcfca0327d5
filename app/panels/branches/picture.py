"""Paints the history tree: a row per branch with a line of its nodes, marks of changes, its text and its size. Only the
visible rows are painted."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPainterPath, QPen, QPolygonF

from app.draw.change_marks import kind_of
from app.draw.format import byte_size, thousands
from app.kit import moment_words
from app.kit.edit_marks import paint_mark
from app.kit.text_lines import TextPainter
from app.kit.theme import current_theme, font_fixed, font_text, owner_color
from app.models import Models
from app.panels.branches.draw import BranchRow, RowMark, thinned
from app.panels.branches.tree_rows import BYTES_WIDTH, ROOM_FOR_STEPS, ROW, TreeRows
from engine.wire.tree import BranchBytes


class TreePicture(TreeRows):
    """Paints the visible part of the tree."""

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._text, self._bold = TextPainter(font_text(12)), TextPainter(font_text(12, QFont.Weight.DemiBold))
        self._fixed = TextPainter(font_fixed(11.5))

    # ---- painting ------------------------------------------------------------------------------------------------

    def paint(self, painter: QPainter) -> None:
        """Paint everything that is visible."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        first, last = self.scrolled // ROW, (self.scrolled + int(self.size.height())) // ROW
        shown = self.rows[first : last + 1]
        for row in shown:
            self._paint_ground(painter, row)
        for row in self.rows[first:]:  # a line to a later row may begin above the visible part
            if row.parent_row is not None and row.parent_row <= last:
                self._paint_parting(painter, row)
        for row in shown:
            self._paint_line(painter, row)
            self._paint_words(painter, row)
        for row in shown:
            self._paint_moments(painter, row)
            self._paint_marks(painter, row)  # painted last, as an edit may be the live node
        self._paint_pinned(painter)

    def _paint_pinned(self, painter: QPainter) -> None:
        """Paint the live branch at the upper or lower edge, if its row is scrolled away."""
        row, top = self.pinned, self._pinned_top
        if row is None:
            return
        theme, scrolled = current_theme(), self.scrolled
        painter.fillRect(QRectF(0, top, self.size.width(), ROW), theme.color("title_strip"))
        painter.setPen(QPen(theme.color("hairline"), 1))
        edge = top + ROW if top == 0 else top
        painter.drawLine(QPointF(0, edge), QPointF(self.size.width(), edge))
        self.scrolled = row.row * ROW - round(top)
        self._paint_line(painter, row)
        self._paint_words(painter, row)
        self._paint_moments(painter, row)
        self._paint_marks(painter, row)
        self.scrolled = scrolled

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
        """Paint the line from the node after which a branch begins to the branch's row."""
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
                found.append(RowMark(axis.x_of(row.start + history.index_of(step) + 1), kind))
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
        """Paint the end of the branch, and the live, selected and marked nodes."""
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
        """Mark where a running sequence was forked from: a square in its colour, below the line (bookmarks are
        above)."""
        painter.setPen(QPen(current_theme().color("panel"), 1))
        painter.setBrush(QColor(owner_color(current_theme(), seq_id)))
        painter.drawRect(QRectF(at.x() - 3.5, at.y() + 4.5, 7, 7))

    def _is_let_go(self, row: BranchRow) -> bool:
        """Whether the state of a branch's newest node is not kept, so that going there recomputes it."""
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
            line = moment_words.text_line(self._models, first, int((end - x) / 6) + 4)
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
    """`1.2 MiB + 3 MiB shared`: the memory for the newest node of a branch, in addition to the live one's; None: not
    kept."""
    if held is None:
        return "let go: computed again when it is gone to" if is_whole else "by replay"
    own, shared = byte_size(held.private), byte_size(held.shared)
    if is_whole:
        return f"kept as it stood: {own} of its own, {shared} shared with others"
    return f"{own} + {shared} shared" if held.shared else own
