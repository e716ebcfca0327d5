"""The canvas of the history tree: mouse and keys select a node, make it live, or name its branch."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QRectF, QSizeF, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFont,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QPolygonF,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QLineEdit, QToolTip

from app.draw.edited import kind_of
from app.draw.format import byte_size, thousands
from app.kit import moment_words
from app.kit.heatmap_marks import paint_mark
from app.kit.labels import plain_tip
from app.kit.moment_words import branch_name, node_lines
from app.kit.text_lines import TextPainter
from app.kit.theme import Themed, current_theme, font_fixed, font_text, owner_color
from app.models import Models
from app.panels.branches.draw import BranchRow, RowMark, thinned
from app.panels.branches.tree_rows import BYTES_WIDTH, ROOM_FOR_STEPS, ROW, Drawn, TreeRows
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


class TreeCanvas(Themed, QAbstractScrollArea):
    """Signals: `chosen(step)`, a node was clicked or reached by keys; `picked()`, several nodes are marked with
    Ctrl+click; `opened(step)`, make it live; `named(first, name)`, a branch was named; `dismissed()` with Esc."""

    chosen = Signal(int)
    picked = Signal()
    opened = Signal(int)
    named = Signal(int, str)
    dismissed = Signal()

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self.picture = TreePicture(models)
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

    @property
    def step(self) -> int | None:
        """The node that buttons and keys apply to; None if there is none."""
        return self.picture.step

    def show_tree(self, drawn: Drawn) -> None:
        """Show a tree; scrolls to the live or selected node if one of these changed."""
        old = self.picture.drawn
        self.picture.take(drawn)
        self._fit()
        if (old.live, old.looked_at) != (drawn.live, drawn.looked_at):
            self._reveal()
        self.viewport().update()

    def drop_picked(self) -> None:
        """Unmark the nodes that were marked with Ctrl+click."""
        if self.picture.picked:
            self.picture.picked = ()
            self.viewport().update()

    def begin_naming(self) -> None:
        """Let the user type the name of the selected branch in its row."""
        if (step := self.step) is None:
            return
        self._reveal()
        row, _ = self.picture.place_of(step)
        self._named_first = row.branch.first
        self.name_line.setGeometry(self.picture.text_cell(row.row).adjusted(-6, 1, 0, -1).toRect())
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
        bar.setRange(0, max(0, self.picture.height - viewport.height()))
        self.picture.size = QSizeF(viewport.size())
        self.picture.scrolled = bar.value()

    def _reveal(self) -> None:
        if (step := self.step) is None:
            return
        bar, top, room = self.verticalScrollBar(), self.picture.place_of(step)[0].row * ROW, self.viewport().height()
        if not bar.value() <= top <= bar.value() + room - ROW:
            bar.setValue(top - max(0, (room - ROW) // 2))

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.name_line.hide()
        self._fit()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.name_line.hide()
        self.picture.scrolled = self.verticalScrollBar().value()
        self.viewport().update()

    def take_theme(self) -> None:
        self.viewport().update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.fillRect(event.rect(), current_theme().color("panel"))
        self.picture.has_keys = self.hasFocus()
        self.picture.paint(painter)

    # ---- mouse and keys ------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        step, button = self.picture.step_at(event.position()), event.button()
        if button == Qt.MouseButton.LeftButton and (first := self.picture.fold_at(event.position())) is not None:
            self._fold(first)
            return
        if step is None or button not in (Qt.MouseButton.LeftButton, Qt.MouseButton.RightButton):
            return
        if button == Qt.MouseButton.LeftButton and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self._pick(step)
        elif button == Qt.MouseButton.LeftButton or step not in self.picture.picked:
            self.chosen.emit(step)

    def _fold(self, first: int) -> None:
        """Hide the rows of the branches below a branch, or show them again."""
        self.picture.fold(first)
        self._fit()
        self.viewport().update()

    def seek(self, text: str) -> None:
        """Show only the live path, the selected branch and those whose name or text contains `text`; all if it is
        empty."""
        self.picture.sought = text.strip()
        self.picture.choose_rows()
        self._fit()
        self._reveal()
        self.viewport().update()

    def _pick(self, step: int) -> None:
        """Mark one more node, or unmark it; the selected node is marked first."""
        now, looked_at = self.picture.picked, self.picture.drawn.looked_at
        if not now and looked_at is not None and looked_at != step:
            now = (looked_at,)
        self.picture.picked = tuple(each for each in now if each != step) if step in now else (*now, step)
        self.viewport().update()
        self.picked.emit()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        step = self.picture.step_at(event.position())
        if step is None or event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            return
        if event.button() == Qt.MouseButton.LeftButton and self.picture.fold_at(event.position()) is None:
            self.opened.emit(step)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._hover(int((event.position().y() + self.verticalScrollBar().value()) // ROW))

    def leaveEvent(self, event: QEvent) -> None:
        self._hover(-1)

    def _hover(self, row: int) -> None:
        if row != self.picture.hovered:
            self.picture.hovered = row
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
            row = self.picture.place_of(step)[0]
            if self.picture.has_fold(row) and row.is_folded == (key == Qt.Key.Key_Plus):
                self._fold(row.branch.first)
        elif step is not None and (there := self._beside(step, key)) is not None:
            self.chosen.emit(there)
        else:
            super().keyPressEvent(event)

    def _beside(self, step: int, key: Qt.Key) -> int | None:
        """The node that a key leads to; None for any other key."""
        history, row = self._models.history, self.picture.place_of(step)[0]
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
                other = self.picture.rows[min(max(number, 0), len(self.picture.rows) - 1)]
                return history.node_at(other.branch.first, row.start + index - other.start)
        return None

    def viewportEvent(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            step = self.picture.step_at(QPointF(event.pos()))
            QToolTip.showText(event.globalPos(), plain_tip("" if step is None else self._tip(step)), self)
            return True
        return super().viewportEvent(event)

    def _tip(self, step: int) -> str:
        branch = self._models.history.branch_of(step)
        lines = [branch_name(self._models, branch.first), *node_lines(self._models, step)]
        held = self.picture.drawn.num_bytes.get(branch.tip)
        if held is not None or (self.picture.drawn.num_bytes and branch.tip != self._models.history.live):
            lines.append(size_words(held, is_whole=True))
        return "\n".join([*lines, "click: look · double click or Enter: go on from there · Ctrl+click: choose several"])

    def focusInEvent(self, event: QFocusEvent) -> None:
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self.viewport().update()
