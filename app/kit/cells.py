"""A table without grid lines, in the theme's colours, for keyboard, mouse and screen readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QKeyEvent, QPainter, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
)

from app.draw.format import whole_words
from app.kit.painting import TextPainter
from app.kit.theme import TextRole, current_theme, font_fixed, font_text
from app.kit.widgets import plain_tip

ROW_HEIGHT = 19
_LEAST_WIDTH = 24  # pixels of a column
_APART, _LEAST_APART = 11, 7  # usual and least gap between the texts of two columns, in pixels; Qt itself keeps 7 free
Index = QModelIndex | QPersistentModelIndex
_NO_INDEX = QModelIndex()
_MARGIN = 3  # pixels beside a text, as Qt itself keeps
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)


class ColumnHead(Struct, frozen=True):
    """A column: its heading and what it means, whether it contains words (aligned left) or numbers (right), its
    greatest width in pixels, whether it takes the remaining width and shrinks where there is too little, and the width
    of the panel from which on it is shown."""

    text: str
    tip: str = ""
    is_words: bool = False
    most: float = 400.0
    takes_rest: bool = False
    from_width: int = 0


def fitting(heads: Sequence[ColumnHead], width: int) -> tuple[int, ...]:
    """The numbers of the columns that a panel of that width shows."""
    return tuple(number for number, head in enumerate(heads) if width >= head.from_width)


def with_arrow(heads: Sequence[ColumnHead], column: int, is_descending: bool) -> list[ColumnHead]:
    """The headings of a table sorted by `column`, which gets an arrow; unchanged if no such column exists."""
    found = list(heads)
    if 0 <= column < len(found):
        head = found[column]
        found[column] = replace(head, text=head.text + (" ↓" if is_descending else " ↑"))
    return found


class TableCell(Struct, frozen=True):
    """A cell; `is_wide`: words that span the rest of their row. Without a `tip` it tells what its column means. A cell
    with a `color` is a square of it and has no text."""

    text: str
    role: TextRole = "text"
    tip: str = ""
    is_bold: bool = False
    is_wide: bool = False
    color: str = ""


class CellModel(QAbstractTableModel):
    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.heads: tuple[ColumnHead, ...] = ()
        self.rows: tuple[tuple[TableCell, ...], ...] = ()
        self._fixed, self._words = TextPainter(font_fixed(11.5)), TextPainter(font_text(12))
        self._bold = TextPainter(font_text(12, QFont.Weight.DemiBold))

    def set_cells(self, heads: Sequence[ColumnHead], rows: Sequence[Sequence[TableCell]]) -> bool:
        """Set headings and rows; returns whether anything changed. Where the table keeps its shape, only the rows that
        differ are told, so that a selection stays."""
        new_heads, new = tuple(heads), tuple(tuple(row) for row in rows)
        if (new_heads, new) == (self.heads, self.rows):
            return False
        if new_heads == self.heads and len(new) == len(self.rows):
            old, self.rows = self.rows, new
            for number, (before, after) in enumerate(zip(old, new, strict=True)):
                if before != after:
                    self.dataChanged.emit(self.index(number, 0), self.index(number, len(new_heads) - 1))
            return True
        self.beginResetModel()
        self.heads, self.rows = new_heads, new
        self.endResetModel()
        return True

    def rowCount(self, parent: Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self.heads)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal or section >= len(self.heads):
            return None
        head = self.heads[section]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return head.text
            case Qt.ItemDataRole.ToolTipRole:
                return plain_tip(head.tip)
            case Qt.ItemDataRole.TextAlignmentRole:
                return _LEFT if head.is_words else _RIGHT
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row, column = index.row(), index.column()
        cell = self.rows[row][column]
        match role:
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.AccessibleTextRole:
                return cell.text
            case Qt.ItemDataRole.ToolTipRole:
                return plain_tip(self._tip_of(row, column))
            case Qt.ItemDataRole.TextAlignmentRole:
                return _LEFT if self.is_left(row, column) else _RIGHT
            case Qt.ItemDataRole.ForegroundRole:
                return current_theme().color(cell.role)
            case Qt.ItemDataRole.FontRole:
                return self.texts_of(row, column).font
        return None

    def _tip_of(self, row: int, column: int) -> str:
        """The tip of a cell; if it has none, its words, which may be cut, and what its column means."""
        cell, head = self.rows[row][column], self.heads[column]
        if cell.tip or not cell.text or cell.is_wide:
            return cell.tip or cell.text
        return "\n".join(filter(None, (cell.text if head.is_words else "", head.tip)))

    def is_left(self, row: int, column: int) -> bool:
        """Whether the text of a cell is aligned left."""
        return self.heads[column].is_words or self.rows[row][column].is_wide

    def texts_of(self, row: int, column: int) -> TextPainter:
        """What draws the text of a cell, in its font."""
        if self.rows[row][column].is_bold:
            return self._bold
        return self._words if self.is_left(row, column) else self._fixed


class _Texts(QStyledItemDelegate):
    """Paints the text of a cell and nothing else, for a third of what the style sheet takes."""

    def __init__(self, cells: CellModel) -> None:
        super().__init__(cells)
        self._cells = cells

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row, column, rect = index.row(), index.column(), option.rect
        cell, texts = self._cells.rows[row][column], self._cells.texts_of(row, column)
        middle = rect.y() + rect.height() / 2
        if cell.color:
            painter.fillRect(QRectF(rect.x() + _MARGIN, middle - 4.5, 9, 9), QColor(cell.color))
        room = rect.width() - 2 * _MARGIN
        shown = (whole_words(cell.text, room, texts.width) if cell.is_wide else "") or texts.elided(cell.text, room)
        painter.setPen(current_theme().color(cell.role))
        if self._cells.is_left(row, column):
            texts.left(painter, rect.x() + _MARGIN, middle, shown)
        else:
            texts.right(painter, rect.x() + rect.width() - _MARGIN, middle, shown)


class CellTable(QTableView):
    """Rows that are selected as a whole, without grid or row numbers, and columns as wide as their contents, or wider
    where there is room; with a column that takes the rest, it does not scroll across. It shows only complete rows: a
    row cut at the end looks like a mistake. Rows have keys, by default their numbers. Signals: `chosen(key)`, a row was
    clicked, or Enter was pressed on it; `confirmed(key)`, Enter was pressed on it. (`activated` cannot tell that: a
    double click, and in some styles a click, emits it too.)
    """

    chosen = Signal(object)
    confirmed = Signal(object)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setObjectName("quiet")
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.verticalHeader().hide()
        self.verticalHeader().setMinimumSectionSize(ROW_HEIGHT)
        self.verticalHeader().setDefaultSectionSize(ROW_HEIGHT)
        head = self.horizontalHeader()
        head.setHighlightSections(False)
        head.setMinimumSectionSize(_LEAST_WIDTH)
        head.setFixedHeight(20)
        head.setFont(font_text(11))
        head.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self._keys: Sequence[Any] = ()
        self.cells = CellModel(self)
        self.setModel(self.cells)
        self.setItemDelegate(_Texts(self.cells))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWordWrap(False)
        self.setMinimumSize(1, 1)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.clicked.connect(self._on_clicked)

    _is_fitting = False

    def updateGeometries(self) -> None:
        """Called by Qt to lay out the headings; the height that is no complete row is left empty."""
        if self._is_fitting:  # setting the margin below calls this method again
            return
        super().updateGeometries()
        self._is_fitting = True
        row, head, bar = self.verticalHeader().defaultSectionSize(), self.horizontalHeader(), self.horizontalScrollBar()
        room = self.height() - 2 * self.frameWidth() - head.height() - (bar.height() if bar.isVisible() else 0)
        if self.verticalHeader().length() > room > row:
            margins = self.viewportMargins()
            self.setViewportMargins(margins.left(), margins.top(), margins.right(), room % row)
            head.setGeometry(head.x(), head.y(), self.viewport().width(), head.height())
        self._is_fitting = False

    def key_at(self, row: int) -> Any:
        """The key of a row; None if it has none."""
        return self._keys[row] if 0 <= row < len(self._keys) else None

    def _on_clicked(self, index: QModelIndex) -> None:
        if (key := self.key_at(index.row())) is not None:
            self.chosen.emit(key)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = self.key_at(self.currentIndex().row())
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and key is not None:
            self.chosen.emit(key)
            self.confirmed.emit(key)
        super().keyPressEvent(event)

    def show_cells(
        self,
        heads: Sequence[ColumnHead],
        rows: Sequence[Sequence[TableCell]],
        keys: Sequence[Any] | None = None,
        columns: Sequence[int] | None = None,
    ) -> None:
        """Show headings and rows, or some `columns` of them alone; the scroll position stays. Rows beyond the `keys`
        cannot be chosen."""
        if columns is not None:
            heads, rows = [heads[n] for n in columns], [[row[n] for n in columns] for row in rows]
        self._keys = range(len(rows)) if keys is None else keys
        if any(head.takes_rest for head in heads):
            self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        across, down = self.horizontalScrollBar().value(), self.verticalScrollBar().value()
        if not self.cells.set_cells(heads, rows):
            return
        self._fit()
        self.clearSpans()
        for number, row in enumerate(self.cells.rows):
            wide = next((column for column, cell in enumerate(row) if cell.is_wide), None)
            if wide is not None and wide + 1 < len(row):
                self.setSpan(number, wide, 1, len(row) - wide)
        self.horizontalScrollBar().setValue(across)
        self.verticalScrollBar().setValue(down)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """Set the column widths. Spare width is shared, so that numbers stay near their headings, or goes to one
        column; if the space is too narrow, the gaps between columns shrink down to the least."""
        room, widths = self.viewport().width(), self.needed_widths()
        for apart in range(_APART - 1, _LEAST_APART - 1, -1):
            widths = self.needed_widths(apart) if sum(widths) > room else widths
        spare = room - sum(widths) - 2
        rest = next((column for column, head in enumerate(self.cells.heads) if head.takes_rest), None)
        for column, width in enumerate(widths):
            more = max(0, spare) // len(widths) if rest is None else spare if column == rest else 0
            self.horizontalHeader().resizeSection(column, max(width + more, _LEAST_WIDTH))

    def needed_widths(self, apart: int = _APART) -> list[int]:
        """Return the width of each column: its longest text and a gap of `apart` pixels, but at least its heading."""
        widths = []
        metrics = self.horizontalHeader().fontMetrics()
        for column, head in enumerate(self.cells.heads):
            texts = (row[column].text for row in self.cells.rows if not row[column].is_wide)
            font = font_text(12, QFont.Weight.DemiBold) if head.is_words else font_fixed(11.5)
            longest = max(texts, key=len, default="")
            title = int(min(metrics.horizontalAdvance(head.text) + 4, head.most)) + _APART
            body = int(min(QFontMetricsF(font).horizontalAdvance(longest), head.most)) + apart
            widths.append(max(title, body, _LEAST_WIDTH))
        return widths
