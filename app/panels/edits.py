"""The panel of edits made by hand: what, where, when and with which effect; go to one, repeat it, or export them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QMenu

from app.draw.edited import edit_name, edit_place
from app.draw.format import brief, divergence_words, percent, probable, thousands, token_label
from app.draw.grid import row_means
from app.kit.bars import Bar, BarRow, BarRows, BarTable
from app.kit.cells import CellTable, ColumnHead, TableCell
from app.kit.provenance import Provenance
from app.kit.reader import EDITS, SELECTION, STATUS
from app.kit.theme import TextRole, font_text
from app.kit.view import View
from app.kit.widgets import ActionButton, ElidedLabel, column, connect_all, push_button, row
from app.models import Models
from engine.counted import counted
from engine.errors import InputError
from engine.spec.edit import Edit, edit_text, parse_edit
from engine.wire.commands import GoTo
from engine.wire.measurements import EditMeasured, KeptRows
from engine.wire.records import Candidate

FORMAT, VERSION = "kvloupe edits", 1
MOST_BYTES, MOST_EDITS = 1 << 20, 10_000
HEADS = (
    ColumnHead("step", "The edit's number in the history tree"),
    ColumnHead("edit", "What was done", is_words=True),
    ColumnHead("KL", "How far it moved the next token's distribution: after it from before it, in nats"),
    ColumnHead("where", "The rows, tokens or logits that it was done to", is_words=True, takes_rest=True),
)


class EditRow(Struct, frozen=True):
    """A row of the list; `kl` in nats, None if unknown. `seq_id` None: there is only one sequence."""

    step: int
    edit: Edit
    kl: float | None
    is_undone: bool
    seq_id: int | None


def cells_of(row: EditRow, *, is_marked: bool) -> tuple[TableCell, ...]:
    """A row of the table; undone edits are dimmed and named as such."""
    role: TextRole = "muted" if row.is_undone else "selected" if is_marked else "text"
    name = f"{edit_name(row.edit)} · undone" if row.is_undone else edit_name(row.edit)
    where = edit_place(row.edit) if row.seq_id is None else f"seq {row.seq_id} · {edit_place(row.edit)}"
    state = "\nUndone: the live step does not stand on it" if row.is_undone else ""
    tip = f"Step {thousands(row.step)}: {row.edit.describe()}\n{edit_text(row.edit)}{state}"
    kl = "–" if row.kl is None else divergence_words(row.kl).removesuffix(" nats")
    return (
        TableCell(thousands(row.step), role, tip, is_bold=is_marked),
        TableCell(name, role, tip, is_bold=is_marked),
        TableCell(kl, role, tip),
        TableCell(where, role, tip),
    )


def edits_text(edits: Sequence[Edit]) -> str:
    """One line per edit, as they are typed."""
    return "\n".join(map(edit_text, edits))


def edits_json(edits: Sequence[Edit]) -> str:
    """Edits as a JSON file that can be read and changed by hand."""
    return json.dumps({"format": FORMAT, "version": VERSION, "edits": [*map(edit_text, edits)]}, indent=2) + "\n"


def edits_from_json(text: str, seq_id: int, num_tokens: int) -> tuple[Edit, ...]:
    """Read the edits of a file, to be made on a sequence of `num_tokens` tokens. Raises `InputError`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("This file is no JSON: choose one that was exported from the list of edits.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError("This file holds no edits: choose one that was exported from the list of edits.")
    if found.get("version") != VERSION:
        raise InputError(f"These edits are of version {str(found.get('version'))[:20]}: this program reads {VERSION}.")
    lines = found.get("edits")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise InputError("The edits of this file are no list of lines like “zero pos=4:8 layer=3”.")
    if len(lines) > MOST_EDITS:
        raise InputError(f"This file holds {counted(len(lines), 'edit')}: at most {thousands(MOST_EDITS)} are read.")
    return tuple(parse_edit(line, seq_id, num_tokens) for line in lines)


LIST, EFFECT = "list", "effect"
_WIDE = 620
JSON_FILES = "Edits (*.json)"


class EditsState(Struct, frozen=True):
    """Every edit, newest first; the marked one with its measured effect; and which parts have space."""

    rows: tuple[EditRow, ...]
    marked: EditRow
    measured: EditMeasured | None
    has_list: bool
    has_effect: bool


class EditsView(View[EditsState]):
    """A click marks an edit. Signal: `repeated(edits)`."""

    name = "edits"
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
        self.go_to = push_button("Go to", self._on_go_to, "Go back to where this edit had just been made")
        self.look = push_button("View", self._on_look, "View everything as it was right after this edit")
        self.again = push_button("Repeat", self._on_repeat, "Make this edit once more, on the selected sequence")
        self._buttons = (self.undo, self.redo, self.look, self.go_to, self.again)
        bars = row((self.next_token, 1), (self.kept, 1), spacing=12)
        both = row((self.table, 1), (bars, 1), spacing=14)
        self.set_body(column((both, 1), row(*self._buttons, (self.note, 1)), spacing=5))
        self.table.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        connect_all(
            (self.table.chosen, self._on_row),
            (self.table.activated, self._on_go_to),
            (self.table.customContextMenuRequested, self.open_menu),
        )
        self.follow(models)

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> EditsState | str:
        edits, status = self._models.edits, self._models.status.now
        made = edits.made
        if not made:
            return "Nothing was edited: drag over tokens, heads or channels and press the right button."
        live, is_wide = set(edits.on_path(self._models.selection.now.step)), self.width() >= _WIDE
        has_many = len(status.sequences) > 1
        rows = tuple(
            EditRow(one.step, one.edit, edits.kl(one.step), one not in live, one.edit.seq_id if has_many else None)
            for one in reversed(made)
        )
        of_step: dict[int | None, EditRow] = {one.step: one for one in rows}
        marked = of_step.get(self._models.selection.now.step) or of_step.get(self._marked) or rows[0]
        measured = edits.measured(marked.step)
        return EditsState(rows, marked, measured, is_wide or self.choice == LIST, is_wide or self.choice == EFFECT)

    def show_state(self, state: EditsState) -> None:
        self.show_choices(not (state.has_list and state.has_effect))
        undone = sum(one.is_undone for one in state.rows)
        self.set_detail(f"{thousands(len(state.rows) - undone)} made" + (f" · {undone} undone" if undone else ""))
        self.table.setVisible(state.has_list)
        cells = [cells_of(one, is_marked=one == state.marked) for one in state.rows]
        self.table.show_cells(HEADS, cells, [one.step for one in state.rows])
        self._show_effect(state)

    def _show_effect(self, state: EditsState) -> None:
        found = state.measured
        self.next_token.setVisible(state.has_effect and found is not None)
        self.kept.setVisible(state.has_effect and found is not None and found.kept is not None)
        if found is not None:
            self.next_token.show_table(next_token_table(found))
            if found.kept is not None:
                self.kept.show_table(kept_table(found.kept))
        kl = state.marked.kl
        self.note.setText(self._note(state), "" if kl is None else f"KL {divergence_words(kl)}")

    def _note(self, state: EditsState) -> str:
        marked = state.marked
        if marked.kl is None and state.measured is None:  # of a session that was opened again
            return f"step {thousands(marked.step)}: session files do not keep its effect · Repeat measures it anew"
        if marked.kl is None:
            return f"step {thousands(marked.step)}: its effect on the next token was not measured"
        words = f"step {thousands(marked.step)}: the next token moved by {divergence_words(marked.kl)}"
        has_kept = state.has_effect and state.measured is not None and state.measured.kept is not None
        return f"{words} · layers: kept rows against a re-prefill, ‖Δ‖ / ‖row‖" if has_kept else words

    def provenance(self, state: EditsState) -> Provenance:
        if self._models.selection.now.step is not None:
            return Provenance("history", "past", "dimmed: what the step that is viewed does not stand on")
        return Provenance("history", "recorded", "every edit of this session; dimmed: undone")

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_row(self, step: int) -> None:
        self._marked = step
        if self._models.selection.now.step in {one.step for one in self._models.edits.made}:
            self.select_step(step)  # an edit was shown: show this one instead
        self.refresh()

    def _on_look(self) -> None:
        if self.state is not None:
            self.select_step(self.state.marked.step)

    def _on_go_to(self) -> None:
        if self.state is not None:
            self.wants.emit(GoTo(self.state.marked.step))

    def _on_repeat(self) -> None:
        """Repeat the marked edit on the selected sequence."""
        if self.state is not None:
            self._repeat((self.state.marked.edit,))

    def _repeat(self, edits: tuple[Edit, ...]) -> None:
        self.repeated.emit(tuple(replace(edit, seq_id=self._models.selection.now.seq_id) for edit in edits))

    @property
    def not_undone(self) -> tuple[Edit, ...]:
        """The edits that are not undone, oldest first."""
        rows = self.state.rows if self.state is not None else ()
        return tuple(one.edit for one in reversed(rows) if not one.is_undone)

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

    def repeat_all(self) -> None:
        """Repeat all edits that are not undone on the selected sequence."""
        self._repeat(self.not_undone)

    def copy_text(self) -> None:
        """Copy the edits that are not undone to the clipboard, one per line."""
        QGuiApplication.clipboard().setText(edits_text(self.not_undone))
        self.message.emit(f"{counted(len(self.not_undone), 'edit')} copied as text")

    def export_edits(self) -> None:
        """Ask for a file and write the edits that are not undone."""
        edits = self.not_undone
        written = f"{counted(len(edits), 'edit')} written to"
        self.save_text_as("Export edits", "edits.json", JSON_FILES, lambda: edits_json(edits), written)

    def import_edits(self) -> None:
        """Ask for a file and make its edits, all or none, on the selected sequence."""
        path, _ = QFileDialog.getOpenFileName(self, "Import edits", "", JSON_FILES)
        if not path:
            return
        now = self._models.selection.now
        try:
            text = _read(Path(path))
            edits = edits_from_json(text, now.seq_id, self._models.timeline.num_tokens(now.seq_id))
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self.repeated.emit(edits)


def _read(path: Path) -> str:
    """Read a small text file. Raises `InputError` if it is too large or unreadable."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is too large for a list of edits: choose one that was exported from it.")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): choose a file that was exported from the list.") from None


_MOST = 6


def next_token_table(found: EditMeasured) -> BarTable:
    """The most probable tokens before or after the edit, ordered by the larger of the two probabilities."""
    before, after = _shares(found.before), _shares(found.after)
    names = {one.token_id: one.text for one in (*found.before, *found.after)}
    order = sorted(names, key=lambda token_id: -max(before.get(token_id, 0.0), after.get(token_id, 0.0)))
    rows = tuple(_token_row(names[token_id], before.get(token_id), after.get(token_id)) for token_id in order[:_MOST])
    return BarTable(("", "before", "after"), rows)


def _shares(candidates: tuple[Candidate, ...]) -> dict[int, float]:
    return {one.token_id: one.prob for one in candidates}


def _token_row(text: str, before: float | None, after: float | None) -> BarRow:
    label = token_label(text, 10)
    tip = f"{label}: {_share_words(before)} before, {_share_words(after)} after"
    return BarRow(label, (_bar(before, "page_used"), _bar(after, "edited")), tip)


def _bar(share: float | None, role: str) -> Bar:
    return Bar(probable(share or 0.0), _share_words(share), role)


def _share_words(share: float | None) -> str:
    """A probability as text; for a token not among the most probable ones only an upper bound is known."""
    return "less" if share is None else percent(share)


def kept_table(kept: KeptRows) -> BarTable:
    """For each layer, how far the rows after the new tokens are from those of a re-prefill, as the mean over positions.
    Layer 0 of most models is exact, because its K and V do not depend on other tokens."""
    keys, values = row_means(kept.keys), row_means(kept.values)
    most = max((mean for mean in (*keys, *values) if mean == mean), default=0.0)
    rows = tuple(
        BarRow(
            f"L{layer}",
            (_distance(keys[index], most, "accent"), _distance(values[index], most, "page_shared")),
            f"layer {layer}: K {brief(keys[index])}, V {brief(values[index])} of the norm apart",
        )
        for index, layer in enumerate(kept.layers)
    )
    return BarTable(("L", "K", "V"), rows)


def _distance(value: float, most: float, role: str) -> Bar:
    share = min(value / most, 1.0) if most > 0 and value == value else 0.0
    return Bar(share, brief(value) if value == value else "–", role)
