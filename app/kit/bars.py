"""Painted charts: a surface whose items can be pointed at and reached with the keys, rows of bars, a colour key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFont,
    QKeyEvent,
    QLinearGradient,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.kit.painting import TextPainter
from app.kit.theme import Theme, current_theme, font_fixed, font_text
from app.kit.widgets import Opaque, TellsPlaces, plain_tip


class PointsWhileThere:
    """Mixin, named before the widget's class, that stops pointing (`_point(None)`) when mouse or focus leave the
    chart."""

    def _point(self, item: Any) -> None:
        raise NotImplementedError

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)  # type: ignore[misc]
        self._point(None)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)  # type: ignore[misc]
        self._point(None)


_STEPS = {Qt.Key.Key_Up: -1, Qt.Key.Key_Left: -1, Qt.Key.Key_Down: 1, Qt.Key.Key_Right: 1}


class Surface(PointsWhileThere, TellsPlaces, QWidget):
    """Signals: `pointed(item or None)` and `picked(item)`. A subclass paints, says which item is where, lists the items
    in order, and describes each; the description is its tool tip, and is read out when the keys reach it."""

    pointed = Signal(object)
    picked = Signal(object)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.pointed_item: Any = None  # by the mouse or the keys
        self.setAccessibleName(name)
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setMouseTracking(True)
        self.setMinimumSize(60, 30)

    # ---- implemented by subclasses -----------------------------------------------------------------------------------

    def paint(self, painter: QPainter, theme: Theme) -> None:
        """Paint everything; the background is painted already."""
        raise NotImplementedError

    def item_at(self, place: QPointF) -> Any:
        """The item at a point of the widget; None if there is none."""
        return None

    def items(self) -> Sequence[Any]:
        """The items in the order in which the keys reach them."""
        return ()

    def words(self, item: Any) -> str:
        """Describe an item."""
        return ""

    # ---- the base ------------------------------------------------------------------------------------------------

    def can_be_walked(self) -> None:
        """Accept the focus, so that the keys can reach the items."""
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, theme = QPainter(self), current_theme()
        painter.fillRect(self.rect(), theme.color("panel"))
        self.paint(painter, theme)

    def _point(self, item: Any) -> None:
        if item != self.pointed_item:
            self.pointed_item = item
            self.pointed.emit(item)
            self.update()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        item = self.item_at(event.position())
        self.setCursor(Qt.CursorShape.PointingHandCursor if item is not None else Qt.CursorShape.ArrowCursor)
        self._point(item)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        item = self.item_at(event.position())
        if item is not None and event.button() == Qt.MouseButton.LeftButton:
            self.picked.emit(item)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step, items = _STEPS.get(Qt.Key(event.key())), list(self.items())
        if step is not None and items:
            at = items.index(self.pointed_item) + step if self.pointed_item in items else 0
            self._point(items[min(max(at, 0), len(items) - 1)])
            self.setAccessibleDescription(self.words(self.pointed_item))
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.pointed_item is not None:
            self.picked.emit(self.pointed_item)
        else:
            super().keyPressEvent(event)

    def tip_at(self, place: QPoint) -> str:
        item = self.item_at(QPointF(place))
        return self.words(item) if item is not None else ""


_HEADER, _GAP, _THICK = 16, 8.0, 8.0
_BESIDE = 8.0  # pixels between a bar and its number
_LEAST_NAME, _LEAST_BAR = 26.0, 8.0
_LEAST_NAMED = 10.0  # least distance in pixels between two rows that both have their words


class Bar(Struct, frozen=True):
    """A bar of length 0 … 1 with its number; `other`, the place of a line across it; `is_faded`: it counts less, as
    the answer to an older question."""

    share: float
    number: str
    role: str
    is_faded: bool = False
    other: float | None = None


class BarRow(Struct, frozen=True):
    """A row: its name, its bars, and words at its end. `key` is what a click emits; a row that `is_marked` has its
    words even where rows are too close for all."""

    name: str
    bars: tuple[Bar, ...]
    tip: str
    key: object = None
    end: str = ""
    end_role: str = "muted"
    is_bold: bool = False
    is_marked: bool = False


class BarTable(Struct, frozen=True):
    """All rows, with the heads of the columns: the names, every bar, the words at the end."""

    heads: tuple[str, ...] = ()
    rows: tuple[BarRow, ...] = ()


class BarRows(Surface):
    """Shows a `BarTable`; rows share the height within limits, and the wheel reaches those that do not fit. Signals:
    `picked(key)`; `resized()`, another number of rows may fit."""

    resized = Signal()

    def __init__(
        self, name: str, least: float = 3.0, most: float = 19.0, size: float = 11.5, name_share: float | None = None
    ) -> None:
        """`name_share`: the part of the width for the names, the same whatever they are; None: as much as they need."""
        super().__init__(name)
        self.table = BarTable()
        self._first = 0  # the first row that is visible
        self._least, self._most, self._name_share = least, most, name_share
        self._text, self._bold = TextPainter(font_fixed(size)), TextPainter(font_fixed(size, QFont.Weight.Bold))
        self._small = TextPainter(font_text(10.5))
        self._widest_number = 0.0

    def show_table(self, table: BarTable) -> None:
        if table != self.table:
            self.table = table
            numbers = (bar.number for row in table.rows for bar in row.bars)
            self._widest_number = max(map(self._text.width, numbers), default=0.0)
            self._scroll_to(self._first)
            self.setAccessibleDescription("; ".join(row.tip.partition("\n")[0] for row in table.rows))
            if any(row.key is not None for row in table.rows):
                self.can_be_walked()
            self.update()

    def room_for(self) -> int:
        """How many rows fit."""
        return max(1, int((self.height() - self._header) // self._least))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._scroll_to(self._first)
        if event.size().height() != event.oldSize().height():
            self.resized.emit()

    def sizeHint(self) -> QSize:
        return QSize(260, _HEADER + round(8 * self._most))

    # ---- places --------------------------------------------------------------------------------------------------

    @property
    def _header(self) -> int:
        return _HEADER if self.table.heads else 0

    @property
    def _shown(self) -> tuple[BarRow, ...]:
        """The rows that are visible, all of them whole."""
        return self.table.rows[self._first : self._first + self.room_for()]

    @property
    def row_height(self) -> float:
        room = (self.height() - self._header) / max(1, len(self._shown))
        return min(max(room, self._least), self._most)

    def _scroll_to(self, first: int) -> None:
        self._first = max(0, min(first, len(self.table.rows) - self.room_for()))
        self.update()

    def wheelEvent(self, event: QWheelEvent) -> None:
        self._scroll_to(self._first - round(event.angleDelta().y() / 40))

    def _point(self, item: object) -> None:
        at = next((n for n, row in enumerate(self.table.rows) if item is not None and row.key == item), self._first)
        if not self._first <= at < self._first + self.room_for():
            self._scroll_to(at if at < self._first else at - self.room_for() + 1)
        super()._point(item)

    def _columns(self) -> list[tuple[float, float]]:
        """(left, width) of the names, of every bar, and of the words at the end."""
        width, rows = self._text.width, self.table.rows
        num_bars = max((len(row.bars) for row in rows), default=1)
        name = max((width(row.name) for row in rows), default=0.0) + 2
        name = min(name, max(self.width() * 0.22, _LEAST_NAME), 112.0)
        if self._name_share is not None:
            name = min(self.width() * self._name_share, 130.0)
        end = max((width(row.end) for row in rows), default=0.0)
        end = max(end, 24.0) + 4 if end else 0.0
        least = num_bars * (self._number_room() - _BESIDE + _GAP)  # for the numbers alone, which must not be cut
        if _LEAST_NAME + least + end + _GAP > self.width():
            end = 0.0
        name = min(name, max(self.width() - least - (end + _GAP if end else 0), _LEAST_NAME))
        left = name + _GAP
        wide = (self.width() - left - (end + _GAP if end else 0) - _GAP * (num_bars - 1)) / num_bars
        bars = [(left + number * (wide + _GAP), wide) for number in range(num_bars)]
        return [(0.0, name), *bars, (self.width() - end, end)]

    def _number_room(self) -> float:
        """The width of the widest number, and at least that of a percentage."""
        return max(self._text.width(">99.9 %"), self._widest_number) + _BESIDE

    def item_at(self, place: QPointF) -> object:
        row = self.row_at(place.y())
        return row.key if row is not None else None

    def row_at(self, y: float) -> BarRow | None:
        index = int((y - self._header) // self.row_height)
        return self._shown[index] if 0 <= index < len(self._shown) else None

    def items(self) -> Sequence[object]:
        return [row.key for row in self.table.rows if row.key is not None]

    def words(self, item: object) -> str:
        return next((row.tip for row in self.table.rows if row.key == item), "")

    # ---- painting ------------------------------------------------------------------------------------------------

    def paint(self, painter: QPainter, theme: Theme) -> None:
        columns, high = self._columns(), self.row_height
        self._paint_heads(painter, theme, columns)
        marked = [index for index, row in enumerate(self._shown) if row.is_marked]
        last = -99.0
        for index, row in enumerate(self._shown):
            near = min([(index - last) * high, *(abs(index - other) * high for other in marked)])
            has_words = row.is_marked or near >= _LEAST_NAMED
            last = index if has_words else last
            self._paint_row(painter, theme, columns, row, self._header + index * high, has_words)

    def _paint_heads(self, painter: QPainter, theme: Theme, columns: list[tuple[float, float]]) -> None:
        text, heads, middle = self._small, self.table.heads, (_HEADER - 2) / 2
        is_title = len(heads) == 1
        painter.setPen(theme.color("text" if is_title else "muted"))
        for (left, wide), head in zip([(0.0, float(self.width()))] if is_title else columns, heads, strict=False):
            whole = head if text.width(head) <= wide else head.split(" · ")[0]  # else its first part
            if not is_title and head is heads[-1]:
                text.right(painter, left + wide, middle, text.elided(whole, wide))
            else:
                text.left(painter, left, middle, text.elided(whole, wide))
        if len(heads) > 1:
            painter.setPen(QPen(theme.color("hairline"), 1))
            painter.drawLine(0, _HEADER - 2, self.width(), _HEADER - 2)

    def _paint_row(
        self, painter: QPainter, theme: Theme, columns: list[tuple[float, float]], row: BarRow, top: float, words: bool
    ) -> None:
        high = self.row_height
        middle, (left, wide), *bars, (end_left, end_wide) = top + high / 2, *columns
        if row.key is not None and row.key == self.pointed_item:
            painter.fillRect(QRectF(0, top, self.width(), high), theme.color("title_strip"))
        if words:
            text = self._bold if row.is_bold else self._text
            painter.setPen(theme.color("text" if row.is_bold or row.is_marked or row.key is None else "muted"))
            text.left(painter, left, middle, text.elided(row.name, wide))
        for (bar_left, bar_wide), bar in zip(bars, row.bars, strict=False):
            self.paint_bar(painter, theme, QRectF(bar_left, top, bar_wide, high), bar, words)
        if row.end and end_wide:
            painter.setOpacity(0.55 if any(bar.is_faded for bar in row.bars) else 1.0)
            painter.setPen(theme.color(row.end_role))
            self._text.right(painter, end_left + end_wide, middle, row.end)
            painter.setOpacity(1.0)

    def paint_bar(self, painter: QPainter, theme: Theme, place: QRectF, bar: Bar, has_number: bool = True) -> None:
        """Paint a bar on its track, with its number to the right; the number alone where both do not fit."""
        thick = max(1.0, min(self.row_height - 2, _THICK))
        track = QRectF(place.left(), round(place.center().y() - thick / 2), 0, thick)
        track.setWidth(max(_LEAST_BAR, place.width() - self._number_room()))
        has_bar = place.width() - self._widest_number >= _LEAST_BAR
        if has_bar:
            painter.fillRect(track, theme.color("page_free"))
        painter.setOpacity(0.45 if bar.is_faded else 1.0)
        if has_bar and bar.share > 0:
            length = max(1.5, track.width() * bar.share)
            painter.fillRect(QRectF(track.left(), track.top(), length, thick), theme.color(bar.role))
        if has_bar and bar.other is not None and abs(bar.other - bar.share) * track.width() >= 1:
            line = QRectF(track.left() + track.width() * bar.other - 1, track.top() - 2, 2, thick + 4)
            painter.fillRect(line, theme.color("muted"))
        if has_number:
            painter.setPen(theme.color("text"))
            self._text.right(painter, place.right(), place.center().y(), bar.number)
        painter.setOpacity(1.0)


_LINE, _SQUARE, _AFTER_SQUARE, _BETWEEN = 15, 8, 4, 11


class ColorName(Struct, frozen=True):
    """A theme role or a colour `#rrggbb`, or a gradient from `color` to `end`, with its name."""

    color: str
    name: str
    end: str = ""


def names_of(roles: Sequence[str], names: Sequence[str]) -> tuple[ColorName, ...]:
    """The names of some roles; an empty name leaves its colour out."""
    return tuple(ColorName(role, name) for role, name in zip(roles, names, strict=True) if name)


class ColorKey(Opaque, QWidget):
    """A coloured square and a name for each of some colours; where it is narrow in several lines, or, with `is_line`,
    without those on the right that do not fit."""

    def __init__(self, *, is_line: bool = False) -> None:
        super().__init__()
        self._is_line = is_line
        self._keys: tuple[ColorName, ...] = ()
        self._painter = TextPainter(font_text(11))
        self.set_background()
        self.setFixedHeight(_LINE)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_keys(self, keys: tuple[ColorName, ...]) -> None:
        """Show these keys; repaints only if they changed."""
        if keys != self._keys:
            self._keys = keys
            text = ", ".join(key.name for key in keys)
            self.setAccessibleName(text)
            self.setToolTip(plain_tip(text) if self._is_line else "")
            self._fit()
            self.update()

    def minimumSizeHint(self) -> QSize:
        return QSize(1, self.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        height = int(max((square.top() for _, square in self._placed()), default=0)) // _LINE * _LINE + _LINE
        if height != self.height():
            self.setFixedHeight(height)

    def _placed(self) -> Iterator[tuple[ColorName, QRectF]]:
        """Each key with its square; that of a gradient is longer."""
        left = top = 0.0
        for key in self._keys:
            square = QRectF(left, top + (_LINE - _SQUARE) / 2, _SQUARE * (3 if key.end else 1), _SQUARE)
            width = (
                -(-int(self._painter.width(key.name)) // 12) * 12 + square.width() + _AFTER_SQUARE
            )  # in steps: few moves
            if left + width > self.width() and self._is_line:
                return
            if left and left + width > self.width():
                left, top = 0.0, top + _LINE
                square.moveTo(left, square.top() + _LINE)
            yield key, square
            left += width + _BETWEEN

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        for key, square in self._placed():
            gradient = QLinearGradient(square.topLeft(), square.topRight())
            gradient.setColorAt(0, _color(key.color))
            gradient.setColorAt(1, _color(key.end or key.color))
            painter.fillRect(square, gradient if key.end else _color(key.color))
            painter.setPen(current_theme().color("muted"))
            self._painter.left(painter, square.right() + _AFTER_SQUARE, square.center().y(), key.name)


def _color(name: str) -> QColor:
    return QColor(name) if name.startswith("#") else current_theme().color(name)
