"""The panel of all sequences: what each is doing, which pages it holds, and why its prompt was not reused."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import QItemSelectionModel, QModelIndex, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QHeaderView, QMenu, QWidget

from app.draw.format import thousands
from app.kit.buttons import own_action
from app.kit.cells import WholeRows
from app.kit.labels import plain_label, plain_tip
from app.kit.moment_words import origin_words
from app.kit.page_words import why_not_reused
from app.kit.provenance import Provenance
from app.kit.reader import SELECTION, STATUS, STEPS, SignalSource
from app.kit.theme import font_text
from app.kit.view import View
from app.models import Models
from app.panels.sequences.table import (
    BUTTON,
    BUTTONS,
    FORK,
    ORDER,
    ORIGIN,
    PAGES,
    PREEMPTED,
    REMOVE,
    SEQ,
    SERVED,
    SHARED,
    STATE,
    STOP,
    TOKENS,
    SequenceDelegate,
    SequenceModel,
    SequenceRow,
)
from engine.wire.commands import StopSequence

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
