"""The choices for the next token: what the model gave them, and what the sampler left of it."""

from __future__ import annotations

import math

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFont, QKeyEvent, QPainter, QPen, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from app.draw.format import decimal, percent
from app.kit.labels import ElidedLabel, tint
from app.kit.panel import Panel
from app.kit.provenance import shown_part, shown_record, tell_source
from app.kit.text_lines import TextPainter
from app.kit.theme import Theme, font_fixed
from app.models import Models
from app.models.standing import FULL, selected_info, why_ended
from app.panels.next_token import draw
from app.panels.next_token.draw import Choice, Which
from engine.wire.records import SequenceStep

_CHOICE_ROLE = int(Qt.ItemDataRole.UserRole)
_ROW_HEIGHT, _LEAST_ROW_HEIGHT, _MOST_ROW_HEIGHT = 24, 17, 32
Index = QModelIndex | QPersistentModelIndex
WIDEST = ("100.0 %", ">99.9 %")  # of all numbers beside a bar


class ChoiceModel(QAbstractListModel):
    """The bars as a list, so that screen readers and keys find them."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._choices: tuple[Choice, ...] = ()
        self._refusal = ""

    def set_choices(self, choices: tuple[Choice, ...]) -> None:
        if len(choices) != len(self._choices):
            self.beginResetModel()
            self._choices = choices
            self.endResetModel()
        elif choices != self._choices:
            self._choices = choices
            self.dataChanged.emit(self.index(0), self.index(len(choices) - 1))

    def set_refusal(self, why: str) -> None:
        """Why none of them can be taken; empty where one can."""
        if why != self._refusal:
            self._refusal = why
            if self._choices:
                self.dataChanged.emit(self.index(0), self.index(len(self._choices) - 1))

    def flags(self, index: Index) -> Qt.ItemFlag:
        return Qt.ItemFlag.NoItemFlags if self._refusal else super().flags(index)

    def choice(self, row: int) -> Choice | None:
        return self._choices[row] if 0 <= row < len(self._choices) else None

    def rowCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._choices)

    def data(self, index: Index, role: int = int(Qt.ItemDataRole.DisplayRole)) -> object:
        choice = self.choice(index.row())
        if choice is None:
            return None
        if role == _CHOICE_ROLE:
            return choice
        if role == Qt.ItemDataRole.ToolTipRole:
            return self._tip(choice)
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return f"{choice.text} {choice.number}"
        return None

    def _tip(self, choice: Choice) -> str:
        words = [
            f"{choice.text}  id {choice.token_id}",
            f"{percent(choice.share)} here, {percent(choice.other)} on the other scale",
        ]
        if choice.is_out:
            words.append("removed by the sampler's filters")
        words.append(self._refusal or "click: take this token instead")
        return "\n".join(words)


class ChoiceDelegate(QStyledItemDelegate):
    """Text, bar, number. The chosen one has a mark, a filtered one a hollow bar."""

    def __init__(self, theme: Theme, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.theme = theme
        self.row_height = _ROW_HEIGHT
        self._plain, self._bold = TextPainter(font_fixed()), TextPainter(font_fixed(weight=QFont.Weight.Bold))
        self._number_width = max(ink.width(text) for ink in (self._plain, self._bold) for text in WIDEST) + 10

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(120, self.row_height)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        choice = index.data(_CHOICE_ROLE)
        if not isinstance(choice, Choice):
            return
        rect = QRectF(option.rect)
        state = option.state
        has_focus = bool(state & QStyle.StateFlag.State_HasFocus)
        is_enabled = bool(state & QStyle.StateFlag.State_Enabled)
        if (state & QStyle.StateFlag.State_MouseOver and is_enabled) or has_focus:
            painter.fillRect(rect, self.theme.color("title_strip"))
        if has_focus:
            painter.setPen(QPen(self.theme.color("accent"), 1))
            painter.drawRect(rect.adjusted(0.5, 0.5, -0.5, -0.5))
        self._paint_choice(painter, rect.adjusted(4, 0, -4, 0), choice)

    def _paint_choice(self, painter: QPainter, rect: QRectF, choice: Choice) -> None:
        text_width = min(max(rect.width() * 0.34, 60), 130)
        ink, middle = self._bold if choice.is_chosen else self._plain, rect.center().y()
        painter.setPen(self.theme.color("muted" if choice.is_out else "text"))
        if choice.is_chosen:
            ink.left(painter, rect.left() - 2, middle, "▸")
        ink.left(painter, rect.left() + 10, middle, ink.elided(choice.text, text_width - 14))
        ink.right(painter, rect.right(), middle, choice.number)
        bar = QRectF(
            rect.left() + text_width, rect.center().y() - 5, rect.width() - text_width - self._number_width, 10
        )
        self._paint_bar(painter, bar, choice)

    def _paint_bar(self, painter: QPainter, bar: QRectF, choice: Choice) -> None:
        painter.fillRect(bar, self.theme.color("page_free"))
        length = max(bar.width() * choice.share, 2.0 if choice.share > 0 else 0.0)
        role = "accent" if choice.is_chosen else "page_used"
        painter.fillRect(QRectF(bar.left(), bar.top(), length, bar.height()), self.theme.color(role))
        if abs(choice.other - choice.share) * bar.width() >= 1:
            x = bar.left() + bar.width() * choice.other
            painter.fillRect(QRectF(x - 1, bar.top() - 2, 2, bar.height() + 4), self.theme.color("muted"))


class ChoiceList(QListView):
    """`activated` comes with a click in some styles and not in others; the Enter key has a signal of its own here."""

    entered_key = Signal(QModelIndex)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.currentIndex().isValid():
            self.entered_key.emit(self.currentIndex())
        else:
            super().keyPressEvent(event)


class NextTokenView(Panel):
    """`token_forced(token_id)`: a person wants this one instead."""

    token_forced = Signal(int)

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Next token", parent)
        self._models = models
        self._which: Which = "raw"
        self._drawn: tuple[object, ...] = ()
        self._list_model = ChoiceModel(self)
        self._delegate = ChoiceDelegate(theme, self)
        self._list = ChoiceList()
        self._list.setAccessibleName("Most probable next tokens")
        self._list.setFrameShape(QFrame.Shape.NoFrame)
        self._list.setModel(self._list_model)
        self._list.setItemDelegate(self._delegate)
        self._list.setSelectionMode(QAbstractItemView.SelectionMode.NoSelection)
        self._list.setUniformItemSizes(True)
        self._list.setMouseTracking(True)
        self._list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._list.setMinimumSize(1, 1)
        self._summary = ElidedLabel()
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addWidget(self._list, 1)
        column.addWidget(self._summary)
        self.set_body(body)
        self.set_theme(theme)
        self.set_choices(
            (
                ("raw", "raw", "What the model says, before temperature and filters"),
                ("sampled", "sampled", "What the sampler draws from"),
            )
        )
        self.set_choice(self._which)
        self.chosen.connect(self._on_chosen)
        self._list.clicked.connect(self._on_taken)
        self._list.entered_key.connect(self._on_taken)
        models.selection.changed.connect(self._refresh)
        models.status.changed.connect(self._refuse)
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        self._refresh()

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._delegate.theme = theme
        # not transparent: what lies behind need not be painted anew whenever a bar moves
        self._list.setStyleSheet(f"QListView {{ background: {theme.panel}; border: none; border-radius: 0; }}")
        self._list.viewport().update()

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_chosen(self, choice: str) -> None:
        self._which = "sampled" if choice == "sampled" else "raw"
        self._refresh()

    def _on_taken(self, index: QModelIndex) -> None:
        choice = self._list_model.choice(index.row())
        if choice is not None and self._list_model.flags(index) & Qt.ItemFlag.ItemIsEnabled:
            self.token_forced.emit(choice.token_id)

    # ---- showing -------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        found = shown_part(self._models)
        if found is None:
            self.set_provenance("")
        else:  # the same choices may be of another moment now
            shown = shown_record(self._models)
            tell_source(
                self, self._models, "recorded", "", shown.step if shown is not None else None, fed=found[0].step
            )
        self._refuse()
        key = (found, self._which)
        if key == self._drawn:
            return
        self._drawn = key
        part = found[1] if found is not None else None
        self.set_empty(self._problem(part))
        self._sum_up(part)
        self._list_model.set_choices(draw.choices(part, self._which) if part is not None else ())
        self._fit_rows()

    def _refuse(self) -> None:
        """Where there is no room for another token, none can be taken, and the tips say what to do."""
        now, info = self._models.selection.now, selected_info(self._models)
        is_full = info is not None and info.stop in FULL and now.step is None
        self._list_model.set_refusal(why_ended(info) if info is not None and is_full else "")

    def _fit_rows(self) -> None:
        """All rows at once where they stay legible, else whole rows: half a row at the end reads as a mistake."""
        count, room = max(1, self._list_model.rowCount()), self._list.viewport().height()
        height = min(max(room // count, _LEAST_ROW_HEIGHT), _MOST_ROW_HEIGHT)
        if height * count > room:
            height = room // max(1, room // _LEAST_ROW_HEIGHT)
        if height != self._delegate.row_height:
            self._delegate.row_height = height
            self._list.scheduleDelayedItemsLayout()

    def _problem(self, part: SequenceStep | None) -> str | None:
        if part is None:
            now = self._models.selection.now
            if self._models.timeline.at(now.step) is None:
                return "The most probable next tokens appear here with the first step."
            return f"Sequence {now.seq_id} was not fed in this step: look at another one."
        if part.candidates:
            return None
        if part.stop is not None:
            return f"Nothing follows: {part.stop}."
        return "The prompt is still being read; choices follow its last token."

    def _sum_up(self, part: SequenceStep | None) -> None:
        """The line below the bars; the whole of it is its tool tip."""
        whole, brief = (self._words(part, is_brief=b) if part is not None else "" for b in (False, True))
        self._summary.setText(whole, brief)
        self._summary.setToolTip(whole)
        tint(self._summary, self.theme, "muted")

    def _words(self, part: SequenceStep, *, is_brief: bool) -> str:
        words = []
        if part.entropy is not None:
            choices = decimal(math.exp(min(part.entropy, 30)), 1)
            nats = f"{decimal(part.entropy)} nats"
            words.append(nats if is_brief else f"entropy {nats}")
            words.append(f"≈ {choices}" if is_brief else f"≈ {choices} choices")
        if part.candidates:
            words.append(f"rest {percent(draw.rest(part, self._which))}")
        if part.forced:
            words.append("forced")
        return " · ".join(words)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_rows()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()
