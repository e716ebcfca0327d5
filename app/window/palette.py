"""The palette: finds actions, panels, settings and places by their names and by other words for them, and does what
was found with Enter. Disabled entries say why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from msgspec import Struct
from PySide6.QtCore import QEvent, QModelIndex, QObject, QPersistentModelIndex, QRect, QSize, Qt
from PySide6.QtGui import QKeyEvent, QPainter, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import (
    QDialog,
    QLineEdit,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from app.kit.theme import current_theme, font_fixed
from app.kit.widgets import PopupKeys, column, plain_tip

KEY_ROLE = Qt.ItemDataRole.UserRole + 1
RIGHT_ROLE = Qt.ItemDataRole.UserRole + 2
TYPED = "typed"  # in place of an entry's key, for the row about the typed text itself
NO_MATCH = "Nothing has this name or does this: type fewer letters, or another word."
WIDTH, HEIGHT, ROW, SIDE = 560, 420, 30, 12
LEAST_OF_TIP = 3  # letters with which a sentence is searched as well
FILLING = frozenset(("what", "is", "are", "a", "an", "the", "how", "do", "i", "my"))  # words that mean nothing here
LETTERS = 7  # the rank from which on the letters of the query are merely in order


class Entry(Struct, frozen=True, eq=False):
    """What can be found: its key, its name as `Menu: text`, other words for it (`also`, separated by commas), a
    sentence about it, and what it does. `why_not` says why it is not possible now; `shortcut` is its key on the
    keyboard."""

    key: str
    name: str
    do: Callable[[], object]
    also: str = ""
    tip: str = ""
    shortcut: str = ""
    why_not: str = ""


def _is_refused(index: QModelIndex | QPersistentModelIndex) -> bool:
    """Whether a row says why what was typed is not possible."""
    return index.data(KEY_ROLE) == TYPED and not index.flags() & Qt.ItemFlag.ItemIsEnabled


class PaletteDelegate(QStyledItemDelegate):
    """Draws a row: the name on the left, the key or the reason on the right."""

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        width = WIDTH - 40
        if not _is_refused(index):
            return QSize(width, ROW)
        needed = QRect(0, 0, width - 2 * SIDE, 0)
        lines = option.fontMetrics.boundingRect(needed, Qt.TextFlag.TextWordWrap, str(index.data()))
        return QSize(width, max(ROW, lines.height() + 8))

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
        inner = rect.adjusted(SIDE, 0, -SIDE, 0)
        painter.setFont(option.font)
        if _is_refused(index):  # a sentence must be readable to its end, a name less so
            painter.setPen(current_theme().color("muted"))
            painter.drawText(inner, int(Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextWordWrap), str(index.data()))
            return
        painter.setPen(current_theme().color("text" if is_enabled else "faint"))
        right, text = str(index.data(RIGHT_ROLE)), str(index.data(Qt.ItemDataRole.DisplayRole))
        measure = painter.fontMetrics()
        name_room = min(measure.horizontalAdvance(text), inner.width() // 2)  # a long reason does not take the name's
        right = measure.elidedText(right, Qt.TextElideMode.ElideRight, inner.width() - name_room - 16)
        room = inner.width() - (measure.horizontalAdvance(right) + 16 if right else 0)
        shown = measure.elidedText(text, Qt.TextElideMode.ElideRight, room)
        painter.drawText(inner, int(Qt.AlignmentFlag.AlignVCenter), shown)
        if is_enabled:
            painter.setFont(font_fixed(11.5))
        painter.setPen(current_theme().color("muted"))
        side = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight)
        painter.drawText(inner, side, right)


Typed = Callable[[str], Entry | None]  # what a typed text would do by itself, beside the search; None if nothing


class Palette(QDialog):
    """Lists the entries that match, best first and those of equal rank in their order; what `typed` makes of the text
    stands before them. `none` is said where there is nothing of either."""

    def __init__(
        self,
        entries: Sequence[Entry],
        parent: QWidget,
        typed: Sequence[Typed] = (),
        invitation: str = "What do you want to do, see or set?",
        none: str = NO_MATCH,
    ) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self._none = none
        self._entries = entries
        self._listed: dict[str, Entry] = {}  # by key
        self._typed = typed
        self.setObjectName("popup")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.line = QLineEdit()
        self.line.setPlaceholderText(invitation)
        self.line.setAccessibleName("Find any action")
        self.list = QListView()
        self.list.setAccessibleName("Actions")
        self.list.setItemDelegate(PaletteDelegate(self))
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.rows = QStandardItemModel(self)
        self.list.setModel(self.rows)
        column(self.line, self.list, spacing=8, margins=(10, 10, 10, 10), on=self)
        self.resize(WIDTH, HEIGHT)
        self.line.textChanged.connect(self._refresh)
        self.line.installEventFilter(self)
        PopupKeys(self)
        self.list.clicked.connect(self._do)
        self._refresh()

    def open_over(self, window: QWidget) -> None:
        corner = window.mapToGlobal(window.rect().topLeft())
        self.move(corner.x() + (window.width() - WIDTH) // 2, corner.y() + 64)
        self.show()
        self.line.setFocus()

    def matches(self) -> list[str]:
        """The keys of the listed entries, best first."""
        return [self.rows.item(row).data(KEY_ROLE) for row in range(self.rows.rowCount())]

    def _refresh(self) -> None:
        text = self.line.text()
        self.rows.clear()
        offered = (offer for typed in self._typed if (offer := typed(text)) is not None)
        listed = [*islice(offered, 1), *found(text, self._entries)]
        self._listed = {entry.key: entry for entry in listed}
        for entry in listed:
            is_enabled = not entry.why_not
            right = entry.shortcut if is_enabled else entry.why_not
            self.rows.appendRow(_row(entry.name, right, entry.key, is_enabled=is_enabled, tip=entry.tip))
        if not listed:
            self.rows.appendRow(_row(self._none, "", TYPED, is_enabled=False))
        self.list.setCurrentIndex(self.rows.index(0, 0))

    def _do(self, index: QModelIndex) -> None:
        key = index.data(KEY_ROLE)
        if key is None or not index.flags() & Qt.ItemFlag.ItemIsEnabled:
            return
        # Close first: otherwise a dialog that the entry opens would be closed with the palette.
        self.close()
        self._listed[key].do()

    def _walk(self, by: int) -> None:
        """Move `by` rows (negative: up) to an enabled row; disabled rows are skipped."""
        here, direction = self.list.currentIndex().row(), 1 if by > 0 else -1
        ahead = range(here + direction, self.rows.rowCount() if by > 0 else -1, direction)
        rows = [row for row in ahead if self.rows.item(row).isEnabled()]
        if rows:
            far = (row for row in rows if abs(row - here) >= abs(by))
            self.list.setCurrentIndex(self.rows.index(next(far, rows[-1]), 0))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            moves = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1, Qt.Key.Key_PageUp: -10, Qt.Key.Key_PageDown: 10}
            move = moves.get(Qt.Key(event.key()))
            if move is not None:
                self._walk(move)
                return True
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self._do(self.list.currentIndex())
                return True
        return super().eventFilter(watched, event)


def _row(text: str, right: str, key: str, *, is_enabled: bool, tip: str = "") -> QStandardItem:
    item = QStandardItem(text)
    item.setData(key, KEY_ROLE)
    item.setData(right, RIGHT_ROLE)
    lines = (text if key == TYPED else tip, "" if is_enabled or not right else f"Not now: {right}")
    item.setToolTip(plain_tip("\n".join(line for line in lines if line)))
    item.setEnabled(is_enabled)
    item.setEditable(False)
    return item


def found(text: str, entries: Iterable[Entry]) -> list[Entry]:
    """The entries that match a text, best first; where they match equally well those that are possible come first, and
    else they keep their order."""
    query = " ".join(text.lower().split())
    ranked = [
        (place, entry) for entry in entries if (place := rank(query, entry.name, entry.also, entry.tip)) is not None
    ]
    ranked.sort(key=_rank_of)
    return [entry for _, entry in ranked]


def _rank_of(ranked: tuple[int, Entry]) -> tuple[int, bool]:
    place, entry = ranked
    return place, bool(entry.why_not)


def rank(query: str, name: str, also: str = "", tip: str = "") -> int | None:
    """How well a query (in small letters) matches an entry, 0 the best; None: not at all.

    0: its name, or another word for it; 1: a beginning of its name; 2: of another word for it; 3: the start of a word
    in its name, or in the title before the name; 4: inside the name; 5: every word of the query begins one of these
    words; 6: or one of its sentence; 7 and more: letters in order, with gaps. The letters of one word are sought in the
    name alone: with the menu's title, "chat" would be "CacHe: stATic". `FILLING` in the query means nothing, unless the
    name has it: *What if*. A hyphen is a space, and the colon behind a title may be typed or not.
    """
    query, own = _plain(query), _plain(name.lower().rstrip("…").split(": ", 1)[-1])
    text, others = _plain(name.lower().rstrip("…")), [_plain(word.lower()) for word in also.split(", ")]
    sought = [word for word in query.split() if word not in FILLING] or query.split()
    if not query or {query, " ".join(sought)} & {own, text, *others}:
        return 0
    if own.startswith(query):
        return 1
    if any(other.startswith(query) for other in others):
        return 2
    if any(word.startswith(query) for word in text.split()) or text.startswith(query):
        return 3
    if query in text:
        return 4
    named = [*_words(text), *(word for other in others for word in _words(other))]
    if _all_begin(sought, named):
        return 5
    if len(query) >= LEAST_OF_TIP and _all_begin(sought, [*named, *_words(tip.lower())]):
        return 6
    return _letters(query.replace(" ", ""), text if " " in query else own)


def _plain(text: str) -> str:
    return text.replace(": ", " ").replace("-", " ").rstrip(":")


def _words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text)


def _all_begin(sought: Sequence[str], words: Sequence[str]) -> bool:
    return all(any(word.startswith(part) for word in words) for part in sought)


def _letters(query: str, text: str) -> int | None:
    """`LETTERS` and how many characters are skipped between the letters of the query; None if they are not there."""
    place, skipped = 0, 0
    for letter in query:
        at = text.find(letter, place)
        if at < 0:
            return None
        skipped += at - place
        place = at + 1
    return LETTERS + skipped
