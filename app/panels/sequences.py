"""The panel of all sequences: what each is doing, which pages it holds, and why its prompt was not reused."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import Qt
from PySide6.QtGui import QShortcut

from app.draw.format import thousands
from app.kit.cells import CellTable, ColumnHead, TableCell, fitting
from app.kit.provenance import Provenance
from app.kit.reader import SELECTION, STATUS, STEPS, SignalSource
from app.kit.theme import current_theme, font_text, owner_color
from app.kit.view import View
from app.kit.widgets import column, connect_all, plain_label, plain_tip, push_button, row
from app.kit.words import origin_words, why_not_reused
from app.models import Models
from engine.wire.commands import Fork, RemoveSequence, StopSequence
from engine.wire.status import SequenceInfo

COLOR, SEQ, STATE, ORIGIN, TOKENS, PAGES, SHARED, SERVED, PREEMPTED = range(9)
HEADS = (
    ColumnHead("", "The colour of its pages", is_words=True),
    ColumnHead("seq", "The number of the sequence, in the order in which they were made", is_words=True),
    ColumnHead("state", "What it is doing, or why it stopped", is_words=True, takes_rest=True),
    ColumnHead("forked from", "The sequence or the other branch that it was forked from, after which step", True, 190),
    ColumnHead("tokens", "Tokens in the cache"),
    ColumnHead("pages", "Pages it refers to", from_width=330),
    ColumnHead("shared", "Pages that others refer to as well", from_width=470),
    ColumnHead("served", "Tokens of its prompt that a prefix hit served", from_width=404),
    ColumnHead("preempted", "Preempted: how often it gave its pages up for others", from_width=550),
)  # widths without the column of origins
ORIGIN_WIDTH = 190


class SequenceRow(Struct, frozen=True):
    """A sequence, and what it was forked from."""

    info: SequenceInfo
    origin: str = ""

    @property
    def can_stop(self) -> bool:
        return self.info.stop is None


def cells_of(row: SequenceRow, *, is_marked: bool) -> tuple[TableCell, ...]:
    """The cells of a row, in every column."""
    info = row.info
    counts = info.num_tokens, info.num_pages, info.num_shared_pages, info.hit_tokens, info.num_preemptions
    state = "preempted" if info.phase == "waiting" and info.num_preemptions else info.phase
    return (
        TableCell("", color=owner_color(current_theme(), info.seq_id)),
        TableCell(str(info.seq_id), "selected" if is_marked else "text", is_bold=is_marked),
        TableCell(info.stop or state, "selected" if is_marked else "text" if row.can_stop else "muted"),
        TableCell(row.origin, tip=row.origin),
        *(TableCell(thousands(count), "text" if count else "muted") for count in counts),
    )


class SequencesState(Struct, frozen=True):
    """Every sequence, which one is selected, whether it is there and can be stopped, why its prompt was not reused
    (short and whole), the step shown (None: the live one), and the columns that have room."""

    rows: tuple[SequenceRow, ...]
    seq_id: int
    is_there: bool
    can_stop: bool
    why: str
    whole: str
    step: int | None
    columns: tuple[int, ...]


class SequencesView(View[SequencesState]):
    """A click selects a sequence."""

    name = "sequences"
    follows = (STATUS, SELECTION, STEPS, SignalSource("history"))
    reads_size = True

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.table = CellTable("Sequences")
        self.why = plain_label("", font_text(11.5), "muted", wraps=True, can_select=True)
        self.why.setAccessibleName("Why not reused")
        self.why.setMinimumWidth(1)
        self.stop = push_button("Stop", self._on_stop, "Stop it where it stands; its cache stays")
        self.fork = push_button("Fork", self._on_fork, "A branch from the step that is shown")
        self.remove = push_button("Remove", self._on_remove, "Remove it and free what it holds")
        buttons = row(self.stop, self.fork, self.remove, None)
        self.set_body(column((self.table, 1), self.why, buttons, spacing=5))
        connect_all(
            (self.table.chosen, self._on_row),
            (QShortcut("Del", self.table, context=Qt.ShortcutContext.WidgetShortcut).activated, self.remove.click),
        )
        self.follow(models)

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_row(self, seq_id: int) -> None:
        if seq_id != self._models.selection.now.seq_id:
            self._models.selection.update(seq_id=seq_id, position=None)

    def _on_stop(self) -> None:
        self.wants.emit(StopSequence(self._models.selection.now.seq_id))

    def _on_fork(self) -> None:
        self.wants.emit(Fork(self._models.selection.now.seq_id))

    def _on_remove(self) -> None:
        self.wants.emit(RemoveSequence(self._models.selection.now.seq_id))

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> SequencesState | str:
        status, now = self._models.status.now, self._models.selection.now
        if not status.sequences:
            return "Send a prompt: every sequence appears here, with what it holds."
        info = next((info for info in status.sequences if info.seq_id == now.seq_id), None)
        page_size = status.cache.page_size if status.cache.is_paged else None
        rows = tuple(SequenceRow(info, origin_words(self._models, info.seq_id)) for info in status.sequences)
        return SequencesState(
            rows,
            seq_id=now.seq_id,
            is_there=info is not None,
            can_stop=info is not None and info.stop is None,
            why=why_not_reused(info, self._models, page_size, is_brief=True) if info is not None else "",
            whole=why_not_reused(info, self._models, page_size) if info is not None else "",
            step=now.step,
            columns=self._columns(rows, is_paged=status.cache.is_paged),
        )

    def _columns(self, rows: tuple[SequenceRow, ...], *, is_paged: bool) -> tuple[int, ...]:
        """The columns that fit; page counts only where the cache has pages, and with forks only in wider panels."""
        has_origins = any(row.origin for row in rows)
        room = self.width() - (ORIGIN_WIDTH if has_origins else 0) if is_paged else 0
        return tuple(index for index in fitting(HEADS, room) if has_origins or index != ORIGIN)

    def provenance(self, state: SequencesState) -> Provenance:
        if loss := self._models.status.loss:
            return Provenance(f"engine {loss} · last state", "past", f"what the engine said last: it is {loss} now")
        if state.step is None:
            return Provenance("engine state", "live cache")
        sentence = f"the engine's state now, not at step {thousands(state.step)}"
        return Provenance("engine state · now", "past", sentence)

    def show_state(self, state: SequencesState) -> None:
        rows = [cells_of(row, is_marked=row.info.seq_id == state.seq_id) for row in state.rows]
        self.table.show_cells(HEADS, rows, [row.info.seq_id for row in state.rows], state.columns)
        running = sum(row.can_stop for row in state.rows)
        self.set_detail(f"{thousands(running)} of {thousands(len(state.rows))} unfinished")
        self.stop.setEnabled(state.can_stop)
        self.fork.setEnabled(state.is_there)
        self.remove.setEnabled(state.is_there)
        origin = next((row.origin for row in state.rows if row.info.seq_id == state.seq_id), "")
        words = [f"forked from {origin}" if origin else "", state.why]
        self.why.setToolTip(plain_tip(state.whole))
        self.why.setText(" · ".join([f"seq {state.seq_id}", *filter(None, words)]) if any(words) else "")
