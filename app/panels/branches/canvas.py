"""The canvas of the history tree: mouse and keys select a node, make it live, or name its branch."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QSizeF, Qt, Signal
from PySide6.QtGui import QFocusEvent, QHelpEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QLineEdit, QToolTip

from app.kit.labels import plain_tip
from app.kit.moment_words import branch_name, node_lines
from app.kit.theme import Themed, current_theme
from app.models import Models
from app.panels.branches.picture import TreePicture, size_words
from app.panels.branches.tree_rows import ROW, Drawn


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
        self._name_line = NameLine(self.viewport())
        self._name_line.setAccessibleName("Name of the branch")
        self._name_line.setPlaceholderText("Name, Enter keeps it")
        self._name_line.setMaxLength(80)
        self._name_line.hide()
        self._name_line.editingFinished.connect(self._on_named)
        self._name_line.left.connect(self._leave_name)
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
        self._name_line.setGeometry(self.picture.text_cell(row.row).adjusted(-6, 1, 0, -1).toRect())
        self._name_line.setText(self._models.history.name(row.branch.first))
        self._name_line.show()
        self._name_line.selectAll()
        self._name_line.setFocus()

    def _on_named(self) -> None:
        if self._name_line.isVisible():
            name = " ".join(self._name_line.text().split())
            self._leave_name()
            self.named.emit(self._named_first, name)

    def _leave_name(self) -> None:
        self._name_line.hide()
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
        self._name_line.hide()
        self._fit()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self._name_line.hide()
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
