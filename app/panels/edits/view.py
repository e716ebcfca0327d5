"""The panel of edits made by hand: what, where, when and with which effect; go to one, repeat it, or export them."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QModelIndex, Qt, Signal
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QFileDialog, QMenu

from app.draw.format import counted, divergence_words, thousands
from app.kit.boxes import column, row
from app.kit.buttons import ActionButton, push_button
from app.kit.cells import CellTable
from app.kit.changes import connect_all
from app.kit.chart.bars import BarRows
from app.kit.files import save_text
from app.kit.labels import ElidedLabel
from app.kit.provenance import Provenance
from app.kit.reader import EDITS, SELECTION, STATUS
from app.kit.theme import font_text
from app.kit.view import View
from app.models import Models
from app.panels.edits import effect, words
from app.panels.edits.words import EditRow
from engine.errors import InputError
from engine.spec.edit import Edit
from engine.wire.commands import GoTo
from engine.wire.edits import EditMeasured

LIST, EFFECT = "list", "effect"
_WIDE = 620
JSON_FILES = "Edits (*.json)"


class Shown(Struct, frozen=True):
    """Every edit, newest first; the step of the marked one with its measured effect; and which parts have space."""

    rows: tuple[EditRow, ...]
    marked: int | None
    measured: EditMeasured | None
    has_list: bool
    has_effect: bool

    @property
    def marked_row(self) -> EditRow | None:
        return next((row for row in self.rows if row.step == self.marked), None)


class EditsView(View[Shown]):
    """A click marks an edit. Signal: `repeated(edits)`."""

    title = "Edits"
    follows = (EDITS, SELECTION, STATUS)
    choices_when_empty = False
    reads_size = True
    choices = (
        (LIST, "list", "Every edit, newest first"),
        (EFFECT, "effect", "What the marked edit did to the next token and to the rows behind it"),
    )

    repeated = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._marked: int | None = None
        self.table = CellTable("Edits")
        self.next_token = BarRows("The next token before and after the edit", 12, 19, 11)
        self.kept = BarRows("How far the rows behind stand from a re-prefill, by layer", 6, 15, 10.5)
        self.note = ElidedLabel(font_text(11), "muted")
        self.undo, self.redo = (ActionButton(text, is_small=True) for text in ("Undo", "Redo"))
        self.go_to = push_button("Go to", self._on_go_to, "Make the moment after this edit the live one")
        self.look = push_button("Look", self._on_look, "Look at the moment right after this edit, everywhere")
        self.again = push_button("Repeat", self._on_repeat, "Make this edit once more, on the selected sequence")
        self._buttons = (self.undo, self.redo, self.look, self.go_to, self.again)
        bars = row((self.next_token, 1), (self.kept, 1), spacing=12)
        both = row((self.table, 1), (bars, 1), spacing=14)
        self.set_body(column((both, 1), row(*self._buttons, (self.note, 1)), spacing=5))
        self.table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.table.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        connect_all(
            (self.table.clicked, self._on_row),
            (self.table.activated, self._on_activated),
            (self.table.customContextMenuRequested, self._on_table_menu),
        )
        self.follow(models)

    def set_actions(self, undo: QAction, redo: QAction) -> None:
        """Set the actions of the buttons Undo and Redo."""
        self.undo.set_action(undo)
        self.redo.set_action(redo)

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> Shown | str:
        edits, status = self._models.edits, self._models.status.now
        made = edits.made
        if not made:
            return "Nothing was edited: drag over tokens, heads or channels and press the right button."
        live, is_wide = set(edits.on_path(self._models.selection.now.step)), self.width() >= _WIDE
        has_many = status is not None and len(status.sequences) > 1
        rows = tuple(
            EditRow(one.step, one.edit, edits.kl(one.step), one not in live, one.edit.seq_id if has_many else None)
            for one in reversed(made)
        )
        looked_at = self._models.selection.now.step
        wanted = looked_at if any(one.step == looked_at for one in rows) else self._marked
        marked = wanted if any(one.step == wanted for one in rows) else rows[0].step
        return Shown(
            rows, marked, edits.measured(marked) if marked is not None else None,
            is_wide or self.choice == LIST, is_wide or self.choice == EFFECT,
        )  # fmt: skip

    def show_state(self, state: Shown) -> None:
        self.show_choices(not (state.has_list and state.has_effect))
        undone = sum(one.is_undone for one in state.rows)
        self.set_detail(f"{thousands(len(state.rows) - undone)} made" + (f" · {undone} undone" if undone else ""))
        self.table.setVisible(state.has_list)
        self.table.show_cells(words.HEADS, words.cells_of(state.rows, state.marked))
        self._show_effect(state)
        self.go_to.setEnabled(state.marked_row is not None)
        self.look.setEnabled(state.marked_row is not None)
        self.again.setEnabled(state.marked_row is not None)

    def _show_effect(self, state: Shown) -> None:
        found = state.measured
        self.next_token.setVisible(state.has_effect and found is not None)
        self.kept.setVisible(state.has_effect and found is not None and found.kept is not None)
        if found is not None:
            self.next_token.show_table(effect.next_token_table(found))
            if found.kept is not None:
                self.kept.show_table(effect.kept_table(found.kept))
        marked = state.marked_row
        kl = None if marked is None else marked.kl
        self.note.setText(self._note(state), "" if kl is None else f"KL {divergence_words(kl)}")

    def _note(self, state: Shown) -> str:
        marked = state.marked_row
        if marked is None:
            return ""
        if marked.kl is None and state.measured is None:  # of a session that was opened again
            return f"step {thousands(marked.step)}: session files do not keep its effect · Repeat measures it anew"
        if marked.kl is None:
            return f"step {thousands(marked.step)}: its effect on the next token was not measured"
        words = f"step {thousands(marked.step)}: the next token moved by {divergence_words(marked.kl)}"
        has_kept = state.has_effect and state.measured is not None and state.measured.kept is not None
        return f"{words} · layers: kept rows against a re-prefill, ‖Δ‖ / ‖row‖" if has_kept else words

    def provenance(self, state: Shown) -> Provenance:
        if self._models.selection.now.step is not None:
            return Provenance("history", "past", "dimmed: what the step that is looked at does not stand on")
        return Provenance("history", "recorded", "every edit of this session; dimmed: undone")

    # ---- intents -------------------------------------------------------------------------------------------------

    def _row_at(self, index: QModelIndex) -> EditRow | None:
        rows = self.state.rows if self.state is not None else ()
        return rows[index.row()] if 0 <= index.row() < len(rows) else None

    def _on_row(self, index: QModelIndex) -> None:
        if (found := self._row_at(index)) is not None:
            self._marked = found.step
            if self._models.selection.now.step in {one.step for one in self._models.edits.made}:
                self._models.selection.update(step=found.step)  # an edit was shown: show this one instead
            self.refresh()

    def _on_activated(self, index: QModelIndex) -> None:
        self._on_row(index)
        self._on_go_to()

    def _on_look(self) -> None:
        if self.state is not None and self.state.marked is not None:
            self._models.selection.update(step=self.state.marked)

    def _on_go_to(self) -> None:
        if self.state is not None and self.state.marked is not None:
            self.wants.emit(GoTo(self.state.marked))

    def _on_repeat(self) -> None:
        """Repeat the marked edit on the selected sequence."""
        if self.state is not None and (found := self.state.marked_row) is not None:
            self._repeat((found.edit,))

    def _repeat(self, edits: tuple[Edit, ...]) -> None:
        self.repeated.emit(tuple(replace(edit, seq_id=self._models.selection.now.seq_id) for edit in edits))

    @property
    def not_undone(self) -> tuple[Edit, ...]:
        """The edits that are not undone, oldest first."""
        return (
            tuple(one.edit for one in reversed(self.state.rows) if not one.is_undone) if self.state is not None else ()
        )

    def add_to_menu(self, menu: QMenu) -> None:
        is_any = bool(self.not_undone)
        for text, slot in (
            ("Repeat all that are not undone", self.repeat_all),
            ("Copy them as text", self.copy_text),
            ("Export them…", self.export_edits),
        ):
            menu.addAction(text, slot).setEnabled(is_any)
        menu.addAction("Import and make edits…", self.import_edits)
        menu.addSeparator()

    def _on_table_menu(self) -> None:
        self._on_menu()

    def repeat_all(self) -> None:
        """Repeat all edits that are not undone on the selected sequence."""
        self._repeat(self.not_undone)

    def copy_text(self) -> None:
        """Copy the edits that are not undone to the clipboard, one per line."""
        QGuiApplication.clipboard().setText(words.edits_text(self.not_undone))
        self.told.emit(f"{counted(len(self.not_undone), 'edit')} copied as text")

    def export_edits(self) -> None:
        """Ask for a file and write the edits that are not undone."""
        path, _ = QFileDialog.getSaveFileName(self, "Export edits", "edits.json", JSON_FILES)
        if path:
            problem = save_text(words.edits_json(self.not_undone), Path(path))
            self.told.emit(problem or f"{counted(len(self.not_undone), 'edit')} written to {path}")

    def import_edits(self) -> None:
        """Ask for a file and make its edits, all or none, on the selected sequence."""
        path, _ = QFileDialog.getOpenFileName(self, "Import edits", "", JSON_FILES)
        if not path:
            return
        now = self._models.selection.now
        try:
            text = _read(Path(path))
            edits = words.edits_from_json(text, now.seq_id, self._models.timeline.num_tokens(now.seq_id))
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self.repeated.emit(edits)


def _read(path: Path) -> str:
    """Read a small text file. Raises `InputError` if it is too large or unreadable."""
    try:
        if path.stat().st_size > words.MOST_BYTES:
            raise InputError(f"{path} is too large for a list of edits: choose one that was exported from it.")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): choose a file that was exported from the list.") from None
