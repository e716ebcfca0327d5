"""The panel of all sequences: what each is doing, which pages it holds, and why its prompt was not reused."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from PySide6.QtCore import (
    QAbstractTableModel,
    QEvent,
    QItemSelectionModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
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
    QWidget,
)

from app.draw.format import thousands
from app.kit.buttons import own_action
from app.kit.cells import WholeRows
from app.kit.icons import pixmap
from app.kit.labels import plain_label, plain_tip
from app.kit.moment_words import origin_words
from app.kit.page_words import why_not_reused
from app.kit.provenance import Provenance
from app.kit.reader import SELECTION, STATUS, STEPS, SignalSource
from app.kit.theme import current_theme, font_fixed, font_text, owner_color
from app.kit.view import View
from app.models import Models
from engine.wire.commands import StopSequence
from engine.wire.status import SequenceInfo

SEQ, STATE, ORIGIN, TOKENS, PAGES, SHARED, SERVED, PREEMPTED, BUTTONS = range(9)
STOP, FORK, REMOVE = "stop", "fork", "remove"
ORDER = (STOP, FORK, REMOVE)
BUTTON, _ICON = 22, 14
Index = QModelIndex | QPersistentModelIndex
_NO_INDEX = QModelIndex()


# The columns: heading, and what it means
HEADS = (
    ("seq", "The number of the sequence, in the order in which they were made"),
    ("state", "What it is doing, or why it stopped"),
    ("forked from", "The sequence or the other branch that it was forked from, after which step"),
    ("tokens", "Tokens in the cache"),
    ("pages", "Pages it refers to"),
    ("shared", "Pages that others refer to as well"),
    ("served", "Tokens of its prompt that a prefix hit served"),
    ("preempted", "Preempted: how often it gave its pages up for others"),
    ("", "Stop, fork or remove the sequence"),
)


class SequenceRow(Struct, frozen=True):
    """A sequence, whether its page counts have a meaning in this cache mode, and what it was forked from."""

    info: SequenceInfo
    is_paged: bool
    origin: str = ""

    @property
    def can_stop(self) -> bool:
        return self.info.stop is None


class SequenceModel(QAbstractTableModel):
    """One row per sequence. Changes are emitted only for rows that differ."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._rows: tuple[SequenceRow, ...] = ()

    def row(self, number: int) -> SequenceRow | None:
        return self._rows[number] if 0 <= number < len(self._rows) else None

    def number_of(self, seq_id: int) -> int | None:
        return next((n for n, row in enumerate(self._rows) if row.info.seq_id == seq_id), None)

    def set_rows(self, rows: tuple[SequenceRow, ...]) -> None:
        if len(rows) != len(self._rows):
            self.beginResetModel()
            self._rows = rows
            self.endResetModel()
            return
        old, self._rows = self._rows, rows
        for number, (before, after) in enumerate(zip(old, rows, strict=True)):
            if before != after:
                self.dataChanged.emit(self.index(number, 0), self.index(number, BUTTONS))

    def rowCount(self, parent: Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(HEADS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return HEADS[section][0]
            case Qt.ItemDataRole.ToolTipRole:
                return HEADS[section][1]
            case Qt.ItemDataRole.TextAlignmentRole:
                return int(_alignment(section))
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.row(index.row())
        if row is None:
            return None
        match role:
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.AccessibleTextRole:
                return self._text(row, index.column())
            case Qt.ItemDataRole.ToolTipRole:
                return plain_tip(row.origin) if index.column() == ORIGIN else None
            case Qt.ItemDataRole.TextAlignmentRole:
                return int(_alignment(index.column()))
            case Qt.ItemDataRole.FontRole:
                return font_text(12) if index.column() in (STATE, ORIGIN) else font_fixed(11.5)
        return None

    def _text(self, row: SequenceRow, column: int) -> str:
        info = row.info
        match column:
            case 0:
                return str(info.seq_id)
            case 1:
                return self.state_text(info)
            case 2:
                return row.origin
            case 3:
                return thousands(info.num_tokens)
            case 8:
                return ""
        if not row.is_paged:
            return "–"
        counts = {
            PAGES: info.num_pages,
            SHARED: info.num_shared_pages,
            SERVED: info.hit_tokens,
            PREEMPTED: info.num_preemptions,
        }
        return thousands(counts[column])

    def state_text(self, info: SequenceInfo) -> str:
        """The state in words; for a finished sequence the reason."""
        if info.stop is not None:
            return info.stop
        return "preempted" if info.state == "waiting" and info.num_preemptions else info.state


def _alignment(column: int) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignLeft if column in (SEQ, STATE, ORIGIN, BUTTONS) else Qt.AlignmentFlag.AlignRight
    return side | Qt.AlignmentFlag.AlignVCenter


class SequenceDelegate(QStyledItemDelegate):
    """Paints the sequence's colour beside its number, and the buttons. Signal: `pressed(seq_id, button)`."""

    pressed = Signal(int, str)

    def __init__(self, model: SequenceModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._model = model
        self._tips = {
            STOP: "Stop it where it stands; its cache stays",
            FORK: "Fork: a branch from the step that is shown",
            REMOVE: "Remove it and free what it holds",
        }

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row = self._model.row(index.row())
        if row is None:
            return
        theme, rect, state = current_theme(), QRectF(option.rect), option.state
        if state & QStyle.StateFlag.State_Selected:
            painter.fillRect(rect, theme.color("selected", 38))
        if index.column() == BUTTONS:
            self._paint_buttons(painter, rect, row)
            return
        painter.setFont(index.data(Qt.ItemDataRole.FontRole))
        inner = rect.adjusted(8, 0, -8, 0)
        if index.column() == SEQ:
            swatch = QRectF(rect.left() + 6, rect.center().y() - 4.5, 9, 9)
            painter.fillRect(swatch, QColor(owner_color(theme, row.info.seq_id)))
            if state & QStyle.StateFlag.State_Selected:
                painter.fillRect(QRectF(rect.left(), rect.top(), 2, rect.height()), theme.color("selected"))
            inner.setLeft(swatch.right() + 7)
        is_quiet = index.data() in ("0", "–") or (index.column() == STATE and not row.can_stop)
        painter.setPen(theme.color("muted" if is_quiet else "text"))
        text = painter.fontMetrics().elidedText(index.data(), Qt.TextElideMode.ElideRight, int(inner.width()) + 1)
        painter.drawText(inner, index.data(Qt.ItemDataRole.TextAlignmentRole), text)

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
        row = self._model.row(index.row())
        if row is None or index.column() != BUTTONS or not isinstance(event, QMouseEvent):
            return False
        if event.type() != QEvent.Type.MouseButtonRelease or event.button() != Qt.MouseButton.LeftButton:
            return False
        name = self._button_at(option, row, event)
        if name is not None:
            self.pressed.emit(row.info.seq_id, name)
        return name is not None

    def _button_at(self, option: QStyleOptionViewItem, row: SequenceRow, event: QMouseEvent | QHelpEvent) -> str | None:
        point = event.position() if isinstance(event, QMouseEvent) else event.pos().toPointF()
        places = self._places(QRectF(option.rect), row)
        return next((name for name, place in places.items() if place.contains(point)), None)

    def helpEvent(self, event: QHelpEvent, view: QAbstractItemView, option: QStyleOptionViewItem, index: Index) -> bool:
        row = self._model.row(index.row())
        name = self._button_at(option, row, event) if row is not None and index.column() == BUTTONS else None
        if name is not None:
            QToolTip.showText(event.globalPos(), self._tips[name], view)
            return True
        return super().helpEvent(event, view, option, index)


ROW_HEIGHT = 23
_WIDE = 860
# Widths of columns, and the least width of the panel at which a column is shown.
_WIDTHS = {SEQ: 50, TOKENS: 62, PAGES: 58, SHARED: 62, SERVED: 62, PREEMPTED: 78, BUTTONS: BUTTON * len(ORDER) + 8}
_ORIGIN_WIDTH = 190
_FROM_WIDTH = {PREEMPTED: 530, SHARED: 450, SERVED: 380, PAGES: 300}


class Shown(Struct, frozen=True):
    """Every sequence, which one is selected, whether it can be stopped, why its prompt was not reused (short and
    whole), and the step shown (None: the live one)."""

    rows: tuple[SequenceRow, ...]
    seq_id: int
    can_stop: bool
    why: str
    whole: str
    step: int | None


class SequencesView(View[Shown]):
    """A click selects a sequence. Signals: `removed(seq_id)`, `forked(seq_id)`."""

    title = "Sequences"
    follows = (STATUS, SELECTION, STEPS, SignalSource("history"))

    removed = Signal(int)
    forked = Signal(int)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._model = SequenceModel(self)
        self._table = WholeRows("Sequences", ROW_HEIGHT)
        self._delegate = SequenceDelegate(self._model, self._table)
        self._why = plain_label("", font_text(11.5), "muted", wraps=True)
        self._has_origins = False
        self._actions = {
            STOP: own_action(self._table, "Stop", self._on_stop),
            FORK: own_action(self._table, "Fork", self._on_fork),
            REMOVE: own_action(self._table, "Remove", self._on_remove, key="Del"),
        }
        self._build()
        self._table.selectionModel().currentRowChanged.connect(self._on_row)
        self._delegate.pressed.connect(self._on_pressed)
        self.follow(models)

    def _build(self) -> None:
        table = self._table
        table.setModel(self._model)
        table.setItemDelegate(self._delegate)
        table.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        table.setMouseTracking(True)
        table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        head = table.horizontalHeader()
        head.setSectionResizeMode(STATE, QHeaderView.ResizeMode.Stretch)
        head.setSectionResizeMode(ORIGIN, QHeaderView.ResizeMode.Stretch)
        table.setColumnHidden(ORIGIN, True)
        for column, width in _WIDTHS.items():
            head.resizeSection(column, width)
        self._why.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._why.setAccessibleName("Why not reused")
        self._why.setMinimumWidth(1)
        body = QWidget()
        self._split = QBoxLayout(QBoxLayout.Direction.TopToBottom, body)
        self._split.setContentsMargins(0, 0, 0, 0)
        self._split.setSpacing(6)
        self._split.addWidget(table, 1)
        self._split.addWidget(self._why)
        self.set_body(body)

    def add_to_menu(self, menu: QMenu) -> None:
        menu.addActions([self._actions[name] for name in ORDER])
        menu.addSeparator()

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_row(self, now: QModelIndex) -> None:
        row = self._model.row(now.row())
        if row is not None and row.info.seq_id != self._models.selection.now.seq_id:
            self._models.selection.update(seq_id=row.info.seq_id, position=None)

    def _on_pressed(self, seq_id: int, what: str) -> None:
        if what == STOP:
            self.wants.emit(StopSequence(seq_id))
        else:
            {FORK: self.forked, REMOVE: self.removed}[what].emit(seq_id)

    def _on_stop(self) -> None:
        self.wants.emit(StopSequence(self._models.selection.now.seq_id))

    def _on_fork(self) -> None:
        self.forked.emit(self._models.selection.now.seq_id)

    def _on_remove(self) -> None:
        self.removed.emit(self._models.selection.now.seq_id)

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> Shown | str:
        status, now = self._models.status.now, self._models.selection.now
        if status is None or not status.sequences:
            return "Send a prompt: every sequence appears here, with what it holds."
        info = next((info for info in status.sequences if info.seq_id == now.seq_id), None)
        page_size = status.cache.page_size if status.cache.is_paged else None
        return Shown(
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

    def provenance(self, state: Shown) -> Provenance:
        if loss := self._models.status.loss:
            return Provenance(f"engine {loss} · last state", "past", f"what the engine said last: it is {loss} now")
        if state.step is None:
            return Provenance("engine state", "live cache")
        sentence = f"the engine's state now, not at step {thousands(state.step)}"
        return Provenance("engine state · now", "past", sentence)

    def show_state(self, state: Shown) -> None:
        self._model.set_rows(state.rows)
        self._has_origins = any(row.origin for row in state.rows)
        self._fit_columns()
        self._mark(state.seq_id)
        running = sum(row.can_stop for row in state.rows)
        self.set_detail(f"{thousands(running)} of {thousands(len(state.rows))} unfinished")
        self._actions[STOP].setEnabled(state.can_stop)
        origin = next((row.origin for row in state.rows if row.info.seq_id == state.seq_id), "")
        told = [f"forked from {origin}" if origin else "", state.why]
        self._why.setToolTip(plain_tip(state.whole))
        self._why.setText(" · ".join([f"seq {state.seq_id}", *filter(None, told)]) if any(told) else "")

    def _mark(self, seq_id: int) -> None:
        """Select the row of the selected sequence; this changes no other selection."""
        number = self._model.number_of(seq_id)
        picked = self._table.selectionModel()
        if number is None:
            picked.clear()
        elif picked.currentIndex().row() != number or not picked.hasSelection():
            flags = QItemSelectionModel.SelectionFlag.ClearAndSelect | QItemSelectionModel.SelectionFlag.Rows
            picked.setCurrentIndex(self._model.index(number, 0), flags)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_columns()
        is_wide = self.width() >= _WIDE
        wanted = QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom
        if wanted != self._split.direction():
            self._split.setDirection(wanted)
            self._split.setSpacing(24 if is_wide else 6)
            self._split.setStretch(1, 1 if is_wide else 0)
            self._why.setAlignment(Qt.AlignmentFlag.AlignTop if is_wide else Qt.AlignmentFlag.AlignVCenter)

    def _fit_columns(self) -> None:
        """Hide columns that do not fit; with forks, the page counts are hidden earlier."""
        room = self.width() - (_ORIGIN_WIDTH if self._has_origins else 0)
        for column, least in _FROM_WIDTH.items():
            self._table.setColumnHidden(column, room < least)
        self._table.setColumnHidden(ORIGIN, not self._has_origins)
        self._table.horizontalHeader().resizeSection(STATE, 74)
        mode = QHeaderView.ResizeMode.Fixed if self._has_origins else QHeaderView.ResizeMode.Stretch
        self._table.horizontalHeader().setSectionResizeMode(STATE, mode)
