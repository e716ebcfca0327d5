"""The panel of all sequences: what each is doing, which pages it holds, and why its prompt was not reused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from PySide6.QtCore import (
    QEvent,
    QItemSelectionModel,
    QModelIndex,
    QObject,
    QRectF,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QHelpEvent, QMouseEvent, QPainter, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QBoxLayout,
    QHeaderView,
    QMenu,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QToolTip,
)

from app.draw.format import thousands
from app.kit.boxes import column
from app.kit.buttons import own_action
from app.kit.cells import CellModel, ColumnHead, Index, TableCell, WholeRows
from app.kit.icons import pixmap
from app.kit.labels import plain_label, plain_tip
from app.kit.page_words import why_not_reused
from app.kit.provenance import Provenance
from app.kit.reader import SELECTION, STATUS, STEPS, SignalSource
from app.kit.step_words import origin_words
from app.kit.theme import current_theme, font_text, owner_color
from app.kit.view import View
from app.models import Models
from engine.wire.commands import Fork, RemoveSequence, StopSequence
from engine.wire.message import Command
from engine.wire.status import SequenceInfo

SEQ, STATE, ORIGIN, TOKENS, PAGES, SHARED, SERVED, PREEMPTED, BUTTONS = range(9)
STOP, FORK, REMOVE = "stop", "fork", "remove"
ORDER = (STOP, FORK, REMOVE)
BUTTON, _ICON = 22, 14


HEADS = (
    ColumnHead("seq", "The number of the sequence, in the order in which they were made", is_words=True),
    ColumnHead("state", "What it is doing, or why it stopped", is_words=True),
    ColumnHead("forked from", "The sequence or the other branch that it was forked from, after which step", True),
    ColumnHead("tokens", "Tokens in the cache"),
    ColumnHead("pages", "Pages it refers to"),
    ColumnHead("shared", "Pages that others refer to as well"),
    ColumnHead("served", "Tokens of its prompt that a prefix hit served"),
    ColumnHead("preempted", "Preempted: how often it gave its pages up for others"),
    ColumnHead("", "Stop, fork or remove the sequence", is_words=True),
)


class SequenceRow(Struct, frozen=True):
    """A sequence, whether its page counts have a meaning in this cache mode, and what it was forked from."""

    info: SequenceInfo
    is_paged: bool
    origin: str = ""

    @property
    def can_stop(self) -> bool:
        return self.info.stop is None

    def cells(self) -> tuple[TableCell, ...]:
        """The cells of its row. The last one is empty: the delegate paints the buttons."""
        info = self.info
        counts = (info.num_pages, info.num_shared_pages, info.hit_tokens, info.num_preemptions)
        state = "preempted" if info.state == "waiting" and info.num_preemptions else info.state
        return (
            TableCell(str(info.seq_id)),
            TableCell(info.stop or state, "text" if self.can_stop else "muted"),
            TableCell(self.origin, tip=self.origin),
            *(
                TableCell(text, "muted" if text in ("0", "–") else "text")
                for text in (thousands(info.num_tokens), *(thousands(n) if self.is_paged else "–" for n in counts))
            ),
            TableCell(""),
        )


class SequenceDelegate(QStyledItemDelegate):
    """Paints the sequence's colour beside its number, and the buttons. Signal: `pressed(seq_id, button)`."""

    pressed = Signal(int, str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: tuple[SequenceRow, ...] = ()
        self._tips = {
            STOP: "Stop it where it stands; its cache stays",
            FORK: "Fork: a branch from the step that is shown",
            REMOVE: "Remove it and free what it holds",
        }

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row, role = self.rows[index.row()], Qt.ItemDataRole
        theme, rect, state = current_theme(), QRectF(option.rect), option.state
        if state & QStyle.StateFlag.State_Selected:
            painter.fillRect(rect, theme.color("selected", 38))
        if index.column() == BUTTONS:
            self._paint_buttons(painter, rect, row)
            return
        painter.setFont(index.data(role.FontRole))
        inner = rect.adjusted(8, 0, -8, 0)
        if index.column() == SEQ:
            swatch = QRectF(rect.left() + 6, rect.center().y() - 4.5, 9, 9)
            painter.fillRect(swatch, QColor(owner_color(theme, row.info.seq_id)))
            if state & QStyle.StateFlag.State_Selected:
                painter.fillRect(QRectF(rect.left(), rect.top(), 2, rect.height()), theme.color("selected"))
            inner.setLeft(swatch.right() + 7)
        painter.setPen(index.data(role.ForegroundRole))
        text = painter.fontMetrics().elidedText(index.data(), Qt.TextElideMode.ElideRight, int(inner.width()) + 1)
        painter.drawText(inner, index.data(role.TextAlignmentRole), text)

    def _paint_buttons(self, painter: QPainter, rect: QRectF, row: SequenceRow) -> None:
        theme, ratio = current_theme(), painter.device().devicePixelRatioF()
        for name, place in self._places(rect, row).items():
            is_hovered = self._is_under_mouse(place)
            if is_hovered:
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(theme.color("hairline"))
                painter.drawRoundedRect(place, 4, 4)
            image = pixmap(f"seq-{name}", theme.text if is_hovered else theme.muted, _ICON, ratio)
            painter.drawPixmap(place.center() - QRectF(0, 0, _ICON, _ICON).center(), image)

    def _is_under_mouse(self, place: QRectF) -> bool:
        view = self.parent()
        if not isinstance(view, QAbstractItemView) or not view.underMouse():
            return False
        return place.contains(view.viewport().mapFromGlobal(view.cursor().pos()))

    @staticmethod
    def _places(rect: QRectF, row: SequenceRow) -> dict[str, QRectF]:
        """The rectangles of a row's buttons; Stop is missing if the sequence is finished."""
        top = rect.center().y() - 9
        left = rect.right() - 4 - BUTTON * len(ORDER)
        return {
            name: QRectF(left + BUTTON * number, top, BUTTON - 2, 18)
            for number, name in enumerate(ORDER)
            if name != STOP or row.can_stop
        }

    def editorEvent(self, event: QEvent, model: Any, option: QStyleOptionViewItem, index: Index) -> bool:
        if index.column() != BUTTONS or not isinstance(event, QMouseEvent):
            return False
        if event.type() != QEvent.Type.MouseButtonRelease or event.button() != Qt.MouseButton.LeftButton:
            return False
        row = self.rows[index.row()]
        name = self._button_at(option, row, event)
        if name is not None:
            self.pressed.emit(row.info.seq_id, name)
        return name is not None

    def _button_at(self, option: QStyleOptionViewItem, row: SequenceRow, event: QMouseEvent | QHelpEvent) -> str | None:
        point = event.position() if isinstance(event, QMouseEvent) else event.pos().toPointF()
        places = self._places(QRectF(option.rect), row)
        return next((name for name, place in places.items() if place.contains(point)), None)

    def helpEvent(self, event: QHelpEvent, view: QAbstractItemView, option: QStyleOptionViewItem, index: Index) -> bool:
        name = self._button_at(option, self.rows[index.row()], event) if index.column() == BUTTONS else None
        if name is not None:
            QToolTip.showText(event.globalPos(), self._tips[name], view)
            return True
        return super().helpEvent(event, view, option, index)


ROW_HEIGHT = 23
_WIDE = 860
# Widths of columns, and the least width of the panel at which a column is shown.
_WIDTHS = {SEQ: 50, TOKENS: 62, PAGES: 58, SHARED: 62, SERVED: 62, PREEMPTED: 78, BUTTONS: BUTTON * len(ORDER) + 8}
_ORIGIN_WIDTH = 190
_FROM_WIDTH = {PREEMPTED: 550, SHARED: 470, SERVED: 404, PAGES: 330}


class SequencesState(Struct, frozen=True):
    """Every sequence, which one is selected, whether it can be stopped, why its prompt was not reused (short and
    whole), and the step shown (None: the live one)."""

    rows: tuple[SequenceRow, ...]
    seq_id: int
    can_stop: bool
    why: str
    whole: str
    step: int | None


COMMANDS: Mapping[str, Callable[[int], Command]] = {STOP: StopSequence, FORK: Fork, REMOVE: RemoveSequence}


class SequencesView(View[SequencesState]):
    """A click selects a sequence."""

    name = "sequences"
    follows = (STATUS, SELECTION, STEPS, SignalSource("history"))

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.model = CellModel(self)
        self.table = WholeRows("Sequences", ROW_HEIGHT)
        self._delegate = SequenceDelegate(self.table)
        self.why = plain_label("", font_text(11.5), "muted", wraps=True, can_select=True)
        self._has_origins = False
        self._actions = {
            name: own_action(self.table, name.capitalize(), partial(self._on_action, name), key=key)
            for name, key in ((STOP, ""), (FORK, ""), (REMOVE, "Del"))
        }
        self._build()
        self.table.selectionModel().currentRowChanged.connect(self._on_row)
        self._delegate.pressed.connect(self._on_pressed)
        self.follow(models)

    def _build(self) -> None:
        table = self.table
        self.model.set_cells(HEADS, ())  # columns have a width only once they are there
        table.setModel(self.model)
        table.setItemDelegate(self._delegate)
        table.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        table.setMouseTracking(True)
        table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        head = table.horizontalHeader()
        head.setSectionResizeMode(STATE, QHeaderView.ResizeMode.Stretch)
        head.setSectionResizeMode(ORIGIN, QHeaderView.ResizeMode.Stretch)
        table.setColumnHidden(ORIGIN, True)
        for index, width in _WIDTHS.items():
            head.resizeSection(index, width)
        self.why.setAccessibleName("Why not reused")
        self.why.setMinimumWidth(1)
        self._split = column((table, 1), self.why, spacing=6)
        self.set_body(self._split)

    def add_to_menu(self, menu: QMenu) -> None:
        menu.addActions([self._actions[name] for name in ORDER])
        menu.addSeparator()

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_row(self, now: QModelIndex) -> None:
        seq_id = self._delegate.rows[now.row()].info.seq_id if now.isValid() else None
        if seq_id not in (None, self._models.selection.now.seq_id):
            self._models.selection.update(seq_id=seq_id, position=None)

    def _on_pressed(self, seq_id: int, what: str) -> None:
        self.wants.emit(COMMANDS[what](seq_id))

    def _on_action(self, what: str, _is_checked: bool = False) -> None:
        self._on_pressed(self._models.selection.now.seq_id, what)

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> SequencesState | str:
        status, now = self._models.status.now, self._models.selection.now
        if not status.sequences:
            return "Send a prompt: every sequence appears here, with what it holds."
        info = next((info for info in status.sequences if info.seq_id == now.seq_id), None)
        page_size = status.cache.page_size if status.cache.is_paged else None
        return SequencesState(
            rows=tuple(
                SequenceRow(info, status.cache.is_paged, origin_words(self._models, info.seq_id))
                for info in status.sequences
            ),
            seq_id=now.seq_id,
            can_stop=info is not None and info.stop is None,
            why=why_not_reused(info, self._models, page_size, is_brief=True) if info is not None else "",
            whole=why_not_reused(info, self._models, page_size) if info is not None else "",
            step=now.step,
        )

    def provenance(self, state: SequencesState) -> Provenance:
        if loss := self._models.status.loss:
            return Provenance(f"engine {loss} · last state", "past", f"what the engine said last: it is {loss} now")
        if state.step is None:
            return Provenance("engine state", "live cache")
        sentence = f"the engine's state now, not at step {thousands(state.step)}"
        return Provenance("engine state · now", "past", sentence)

    def show_state(self, state: SequencesState) -> None:
        self._delegate.rows = state.rows
        self.model.set_cells(HEADS, [row.cells() for row in state.rows])
        self._has_origins = any(row.origin for row in state.rows)
        self._fit_columns()
        self._mark(state.seq_id)
        running = sum(row.can_stop for row in state.rows)
        self.set_detail(f"{thousands(running)} of {thousands(len(state.rows))} unfinished")
        self._actions[STOP].setEnabled(state.can_stop)
        origin = next((row.origin for row in state.rows if row.info.seq_id == state.seq_id), "")
        told = [f"forked from {origin}" if origin else "", state.why]
        self.why.setToolTip(plain_tip(state.whole))
        self.why.setText(" · ".join([f"seq {state.seq_id}", *filter(None, told)]) if any(told) else "")

    def _mark(self, seq_id: int) -> None:
        """Select the row of the selected sequence; this changes no other selection."""
        number = next((n for n, row in enumerate(self._delegate.rows) if row.info.seq_id == seq_id), None)
        picked = self.table.selectionModel()
        if number is None:
            picked.clear()
        elif picked.currentIndex().row() != number or not picked.hasSelection():
            flags = QItemSelectionModel.SelectionFlag.ClearAndSelect | QItemSelectionModel.SelectionFlag.Rows
            picked.setCurrentIndex(self.model.index(number, 0), flags)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_columns()
        is_wide = self.width() >= _WIDE
        wanted = QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom
        if wanted != self._split.direction():
            self._split.setDirection(wanted)
            self._split.setSpacing(24 if is_wide else 6)
            self._split.setStretch(1, 1 if is_wide else 0)
            self.why.setAlignment(Qt.AlignmentFlag.AlignTop if is_wide else Qt.AlignmentFlag.AlignVCenter)

    def _fit_columns(self) -> None:
        """Hide columns that do not fit, and the page counts where no cache has pages; with forks, these are hidden
        earlier."""
        room = self.width() - (_ORIGIN_WIDTH if self._has_origins else 0)
        room = room if any(row.is_paged for row in self._delegate.rows) else 0
        for index, least in _FROM_WIDTH.items():
            self.table.setColumnHidden(index, room < least)
        self.table.setColumnHidden(ORIGIN, not self._has_origins)
        self.table.horizontalHeader().resizeSection(STATE, 74)
        mode = QHeaderView.ResizeMode.Fixed if self._has_origins else QHeaderView.ResizeMode.Stretch
        self.table.horizontalHeader().setSectionResizeMode(STATE, mode)
