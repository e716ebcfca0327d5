"""The list of candidates with their bars; clicking one takes it instead of the chosen token."""

from __future__ import annotations

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, QRectF, QSize, Qt
from PySide6.QtGui import QFont, QKeyEvent, QPainter, QPen, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
)

from app.draw.format import percent
from app.kit.labels import plain_tip
from app.kit.text_lines import TextPainter
from app.kit.theme import current_theme, font_fixed
from app.panels.next_token.draw import CandidateBar

ROW_HEIGHT = 24
_LEAST_ROW_HEIGHT, _MOST_ROW_HEIGHT = 17, 32
Index = QModelIndex | QPersistentModelIndex
WIDEST = ("100.0 %", ">99.9 %")  # the widest numbers beside a bar
_BAR_ROLE = int(Qt.ItemDataRole.UserRole)


class CandidateModel(QAbstractListModel):
    """The bars as a Qt list model, for screen readers and keys."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bars: tuple[CandidateBar, ...] = ()
        self.refusal = self._offer = ""

    def show_bars(self, bars: tuple[CandidateBar, ...], refusal: str, offer: str) -> None:
        """`refusal` says why no candidate can be taken, empty if one can; `offer` what a click on one does."""
        is_as_long, before = len(bars) == len(self._bars), (self._bars, self.refusal)
        if not is_as_long:
            self.beginResetModel()
        self._bars, self.refusal, self._offer = bars, refusal, offer
        if not is_as_long:
            self.endResetModel()
        elif bars and (bars, refusal) != before:
            self.dataChanged.emit(self.index(0), self.index(len(bars) - 1))

    def flags(self, index: Index) -> Qt.ItemFlag:
        return Qt.ItemFlag.NoItemFlags if self.refusal else super().flags(index)

    def bar(self, row: int) -> CandidateBar | None:
        return self._bars[row] if 0 <= row < len(self._bars) else None

    def rowCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._bars)

    def data(self, index: Index, role: int = int(Qt.ItemDataRole.DisplayRole)) -> object:
        bar = self.bar(index.row())
        if bar is None:
            return None
        if role == _BAR_ROLE:
            return bar
        if role == Qt.ItemDataRole.ToolTipRole:
            return plain_tip(self._tip(bar))
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return f"{bar.text} {bar.number}"
        return None

    def _tip(self, bar: CandidateBar) -> str:
        words = [
            f"{bar.text}  id {bar.token_id}",
            f"{percent(bar.share)} here, {percent(bar.other)} on the other scale",
        ]
        if bar.is_out:
            words.append("removed by the sampler's filters")
        words.append(self.refusal or self._offer)
        return "\n".join(words)


class CandidateDelegate(QStyledItemDelegate):
    """Draws text, bar and number. The chosen token has a mark, a filtered one is muted."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.row_height = ROW_HEIGHT
        self._plain, self._bold = TextPainter(font_fixed()), TextPainter(font_fixed(weight=QFont.Weight.Bold))
        self._number_width = max(font.width(text) for font in (self._plain, self._bold) for text in WIDEST) + 10

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(120, self.row_height)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        bar = index.data(_BAR_ROLE)
        if not isinstance(bar, CandidateBar):
            return
        rect = QRectF(option.rect)
        state = option.state
        has_focus = bool(state & QStyle.StateFlag.State_HasFocus)
        is_enabled = bool(state & QStyle.StateFlag.State_Enabled)
        if (state & QStyle.StateFlag.State_MouseOver and is_enabled) or has_focus:
            painter.fillRect(rect, current_theme().color("title_strip"))
        if has_focus:
            painter.setPen(QPen(current_theme().color("accent"), 1))
            painter.drawRect(rect.adjusted(0.5, 0.5, -0.5, -0.5))
        self._paint_row(painter, rect.adjusted(4, 0, -4, 0), bar)

    def _paint_row(self, painter: QPainter, rect: QRectF, bar: CandidateBar) -> None:
        text_width = min(max(rect.width() * 0.34, 60), 130)
        lines, middle = self._bold if bar.is_chosen else self._plain, rect.center().y()
        painter.setPen(current_theme().color("muted" if bar.is_out else "text"))
        if bar.is_chosen:
            lines.left(painter, rect.left() - 2, middle, "▸")
        lines.left(painter, rect.left() + 10, middle, lines.elided(bar.text, text_width - 14))
        lines.right(painter, rect.right(), middle, bar.number)
        left, width = rect.left() + text_width, rect.width() - text_width - self._number_width
        self._paint_bar(painter, QRectF(left, middle - 5, width, 10), bar)

    def _paint_bar(self, painter: QPainter, place: QRectF, bar: CandidateBar) -> None:
        """Paint the probability, and a line at that of the same token on the other scale."""
        theme = current_theme()
        painter.fillRect(place, theme.color("page_free"))
        length = max(place.width() * bar.share, 2.0 if bar.share > 0 else 0.0)
        role = "accent" if bar.is_chosen else "page_used"
        painter.fillRect(QRectF(place.left(), place.top(), length, place.height()), theme.color(role))
        if abs(bar.other - bar.share) * place.width() >= 1:
            x = place.left() + place.width() * bar.other
            painter.fillRect(QRectF(x - 1, place.top() - 2, 2, place.height() + 4), theme.color("muted"))


class CandidateList(QListView):
    """Shows only complete rows: all candidates if they remain legible, else as many as fit.

    The Enter key clicks the current row; `activated` is not used, because in some styles a click emits it as well.
    """

    def __init__(self, model: CandidateModel) -> None:
        super().__init__()
        self._delegate = CandidateDelegate(self)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setItemDelegate(self._delegate)
        self.setSelectionMode(QAbstractItemView.SelectionMode.NoSelection)
        self.setUniformItemSizes(True)
        self.setMouseTracking(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMinimumSize(1, _LEAST_ROW_HEIGHT)  # a candidate is seen in the smallest window
        self.setModel(model)
        model.modelReset.connect(self._fit_rows)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._fit_rows()
        super().resizeEvent(event)

    def _fit_rows(self) -> None:
        """Choose the row height; what is left of the height stays empty, because a cut row looks like a mistake."""
        count, room = max(1, self.model().rowCount()), self.contentsRect().height()
        height = min(max(room // count, _LEAST_ROW_HEIGHT), _MOST_ROW_HEIGHT)
        if height * count > room:
            height = room // max(1, room // _LEAST_ROW_HEIGHT)
        left = room % height if height and height * count > room else 0
        if height != self._delegate.row_height:
            self._delegate.row_height = height
            self.scheduleDelayedItemsLayout()
        if left != self.viewportMargins().bottom():
            self.setViewportMargins(0, 0, 0, left)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.currentIndex().isValid():
            self.clicked.emit(self.currentIndex())
        else:
            super().keyPressEvent(event)
