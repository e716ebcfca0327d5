"""The palette: finds an action or a panel by a few letters of its name, and runs or shows it with Enter. Disabled
actions show why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from PySide6.QtCore import QEvent, QModelIndex, QObject, QPersistentModelIndex, QRect, QSize, Qt
from PySide6.QtGui import QKeyEvent, QPainter, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import (
    QDialog,
    QLineEdit,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from app.control.actions import Actions, native
from app.kit.labels import plain_tip
from app.kit.theme import current_theme, font_fixed

KEY_ROLE = Qt.ItemDataRole.UserRole + 1
RIGHT_ROLE = Qt.ItemDataRole.UserRole + 2
TYPED = "typed"  # in place of an action's name, for the row about the typed text itself
NO_MATCH = "No action has these letters in its name: type fewer, or other ones."
WIDTH, HEIGHT, ROW = 560, 420, 30


class PaletteDelegate(QStyledItemDelegate):
    """Draws a row: the name on the left, the key or the reason on the right."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return QSize(WIDTH - 40, ROW)

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        if state & QStyle.StateFlag.State_Selected:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(current_theme().color("hairline"))
            painter.drawRoundedRect(rect.adjusted(2, 1, -2, -1), 4, 4)
        is_enabled = bool(index.flags() & Qt.ItemFlag.ItemIsEnabled)
        inner = rect.adjusted(12, 0, -12, 0)
        painter.setFont(option.font)
        disabled = "muted" if index.data(KEY_ROLE) == TYPED else "faint"  # a sentence must be readable, a name less so
        painter.setPen(current_theme().color("text" if is_enabled else disabled))
        right = str(index.data(RIGHT_ROLE))
        room = inner.width() - (painter.fontMetrics().horizontalAdvance(right) + 16 if right else 0)
        text = str(index.data(Qt.ItemDataRole.DisplayRole))
        shown = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, room)
        painter.drawText(inner, int(Qt.AlignmentFlag.AlignVCenter), shown)
        if is_enabled:
            painter.setFont(font_fixed(11.5))
        painter.setPen(current_theme().color("muted"))
        side = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight)
        painter.drawText(inner, side, right)


class Typed(Protocol):
    """Interprets the typed text as a command of its own, beside the search for actions."""

    def offer(self, text: str) -> tuple[str, str] | None:
        """(What the text would do, ""); or (why it is not possible, its kind); None if the text is no such command."""

    def make(self, text: str) -> None:
        """Carry out the typed command."""


class Palette(QDialog):
    """Lists the matching actions by rank: prefix, then word start, then letters in order. A `typed` command comes
    first; `places` (panels, sessions), given by name with the function that goes to each, come after the actions of
    equal rank."""

    def __init__(
        self,
        actions: Actions,
        parent: QWidget,
        typed: Typed | None = None,
        places: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self._actions = actions
        self._typed = typed
        self._places = places or {}
        self.setObjectName("popup")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._line = QLineEdit()
        self._line.setPlaceholderText("What do you want to do?")
        self._line.setAccessibleName("Find any action")
        self._list = QListView()
        self._list.setAccessibleName("Actions")
        self._list.setItemDelegate(PaletteDelegate(self))
        self._list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._list.setUniformItemSizes(True)
        self._rows = QStandardItemModel(self)
        self._list.setModel(self._rows)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(10, 10, 10, 10)
        layout.setSpacing(8)
        layout.addWidget(self._line)
        layout.addWidget(self._list)
        self.resize(WIDTH, HEIGHT)
        self._line.textChanged.connect(self._refresh)
        self._line.installEventFilter(self)
        self._list.clicked.connect(self._on_clicked)
        self._refresh()

    def open_over(self, window: QWidget) -> None:
        corner = window.mapToGlobal(window.rect().topLeft())
        self.move(corner.x() + (window.width() - WIDTH) // 2, corner.y() + 64)
        self.show()
        self._line.setFocus()

    def matches(self) -> list[str]:
        """The names of the listed actions, best first."""
        return [self._rows.item(row).data(KEY_ROLE) for row in range(self._rows.rowCount())]

    def _refresh(self) -> None:
        query = self._line.text().strip().lower()
        scored = [(rank(query, self._name(key).lower()), key) for key in (*self._actions.names(), *self._places)]
        found = [pair for pair in scored if pair[0] is not None]
        found.sort(key=_score)
        self._rows.clear()
        if self._typed is not None and (offer := self._typed.offer(self._line.text())) is not None:
            self._rows.appendRow(_row(*offer, TYPED, is_enabled=not offer[1]))
        for _, key in found:
            self._rows.appendRow(self._item(key))
        if not self._rows.rowCount():
            self._rows.appendRow(_row(NO_MATCH, "", TYPED, is_enabled=False))
        self._list.setCurrentIndex(self._rows.index(0, 0))

    def _name(self, key: str) -> str:
        if key in self._places:
            return key
        text = self._actions[key].text()
        return text if ": " in text else f"{self._actions.menu_of(key)}: {text}"  # the menu's title can be searched too

    def _item(self, key: str) -> QStandardItem:
        if key in self._places:
            return _row(self._name(key), "", key, is_enabled=True)
        is_enabled, reason = self._actions[key].isEnabled(), self._actions.reason(key)
        right = native(self._actions.declared(key).key) if is_enabled else reason
        return _row(self._name(key), right, key, is_enabled=is_enabled)

    def _on_clicked(self, index: QModelIndex) -> None:
        self._do(index)

    def _do(self, index: QModelIndex) -> None:
        key = index.data(KEY_ROLE)
        if key == TYPED:
            if self._typed is not None and index.flags() & Qt.ItemFlag.ItemIsEnabled:
                self.close()
                self._typed.make(self._line.text())
            return
        if key in self._places:
            self.close()
            self._places[key]()
        elif key is not None and self._actions[key].isEnabled():
            # Close first: otherwise a dialog that the action opens would be closed with the palette.
            self.close()
            self._actions[key].trigger()

    def _walk(self, by: int) -> None:
        """Move `by` rows (negative: up) to an enabled row; disabled rows are skipped."""
        here, direction = self._list.currentIndex().row(), 1 if by > 0 else -1
        ahead = range(here + direction, self._rows.rowCount() if by > 0 else -1, direction)
        rows = [row for row in ahead if self._rows.item(row).isEnabled()]
        if rows:
            far = (row for row in rows if abs(row - here) >= abs(by))
            self._list.setCurrentIndex(self._rows.index(next(far, rows[-1]), 0))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            moves = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1, Qt.Key.Key_PageUp: -10, Qt.Key.Key_PageDown: 10}
            move = moves.get(Qt.Key(event.key()))
            if move is not None:
                self._walk(move)
                return True
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self._do(self._list.currentIndex())
                return True
        return super().eventFilter(watched, event)


def _row(text: str, right: str, key: str, *, is_enabled: bool) -> QStandardItem:
    item = QStandardItem(text)
    item.setData(key, KEY_ROLE)
    item.setData(right, RIGHT_ROLE)
    item.setToolTip(plain_tip(text) if key == TYPED else "")
    item.setEnabled(is_enabled)
    item.setEditable(False)
    return item


def _score(pair: tuple[int | None, str]) -> int:
    return pair[0] or 0


def rank(query: str, text: str) -> int | None:
    """0: prefix of the name; 1: start of a word; 2: inside; 3 and more: letters in order, with gaps; None: no match.
    The letters of one word are sought in the name alone: with the menu's title, "chat" would be "CacHe: stATic"."""
    if not query:
        return 0
    name = text.split(": ", 1)[-1]
    if name.startswith(query):
        return 0
    if any(word.startswith(query) for word in text.split()) or text.startswith(query):
        return 1
    if query in text:
        return 2
    sought = text if " " in query else name
    place, skipped = 0, 0
    for letter in query.replace(" ", ""):
        found = sought.find(letter, place)
        if found < 0:
            return None
        skipped += found - place
        place = found + 1
    return 3 + skipped
