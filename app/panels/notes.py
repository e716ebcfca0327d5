"""The panel of bookmarks and notes: go to one, edit or delete it, or copy them as text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import Qt, Signal, SignalInstance
from PySide6.QtGui import QGuiApplication, QShortcut

from app.draw.format import thousands
from app.kit.cells import CellTable, ColumnHead, TableCell
from app.kit.fields import filter_field
from app.kit.provenance import Provenance
from app.kit.reader import BOOKMARKS, SELECTION, STEPS
from app.kit.theme import TextRole
from app.kit.view import View
from app.kit.widgets import ActionButton, column, connect_all, push_button, row
from app.kit.words import note_line, place_words, visible_words
from app.models import Models
from engine.counted import counted
from engine.spec.bookmark import Bookmark

HEADS = (
    ColumnHead("step", "The step that it is of, by its number in the history tree"),
    ColumnHead("on", "What is bookmarked", is_words=True, most=220),
    ColumnHead("note", "What was written on it", is_words=True, takes_rest=True),
)
MOST_SHOWN = 400


class NoteRow(Struct, frozen=True):
    """A bookmark and its place in words. `is_elsewhere`: on another branch; `is_gone`: on one that was deleted."""

    bookmark: Bookmark
    place: str
    is_elsewhere: bool
    is_gone: bool


def cells_of(row: NoteRow, *, is_marked: bool) -> tuple[TableCell, ...]:
    """A row of the table; bookmarks on other branches are dimmed and marked as such."""
    role: TextRole = "selected" if is_marked else "muted" if row.is_elsewhere or row.is_gone else "text"
    state = " · branch deleted" if row.is_gone else " · another branch" if row.is_elsewhere else ""
    text = "\n".join(visible_words(line) for line in row.bookmark.text.split("\n"))
    tip = f"Step {thousands(row.bookmark.target.step)}, {row.place}{state}\n{text}".strip()
    return (
        TableCell(thousands(row.bookmark.target.step), role, tip, is_bold=is_marked),
        TableCell(f"{row.place}{state}", role, tip, is_bold=is_marked),
        TableCell(note_line(row.bookmark.text, MOST_SHOWN) or "–", role, tip),
    )


def notes_text(rows: Sequence[NoteRow]) -> str:
    """One line per note: step, place, text."""
    return "\n".join(
        f"step {row.bookmark.target.step}\t{row.place}\t{note_line(row.bookmark.text, MOST_SHOWN * 5)}" for row in rows
    )


def is_found(row: NoteRow, words: str) -> bool:
    """Whether the note or its place contains every word."""
    text = f"step {row.bookmark.target.step} {row.place} {row.bookmark.text}".casefold()
    return all(word in text for word in words.casefold().split())


NOTHING = "Nothing is bookmarked: Ctrl+D marks the step, token, page or head that you view."


class NotesState(Struct, frozen=True):
    """The bookmarks that match the filter, the number of all, and the marked one."""

    rows: tuple[NoteRow, ...]
    count: int
    marked: Bookmark | None


class NotesView(View[NotesState]):
    """A click marks a bookmark; Enter or a double click goes there. Signals: `wanted(target)`, `edited(target)`,
    `deleted(target)`."""

    name = "notes"
    follows = (BOOKMARKS, SELECTION, STEPS)

    wanted = Signal(object)
    edited = Signal(object)
    deleted = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._marked: Bookmark | None = None
        self.table = CellTable("Notes")
        self.filter = filter_field("Filter the notes", 180)
        self.new = ActionButton("New…", is_small=True)
        self.go = push_button("Go there", self._on_go, "View this place")
        self.edit = push_button("Edit…", self._on_edit, "Write something else on it")
        self.delete = push_button("Delete", self._on_delete, "Delete this bookmark and its note")
        self.copy = push_button("Copy", self._on_copy, "Copy the listed notes as text, a line each")
        self._ways = (self.go, self.edit, self.delete, self.copy)
        buttons = row(self.filter, None, self.new, *self._ways)
        self.set_body(column((self.table, 1), buttons, spacing=5))
        connect_all(
            (self.table.chosen, self._on_row),
            (self.table.activated, self._on_go),
            (QShortcut("Del", self.table, context=Qt.ShortcutContext.WidgetShortcut).activated, self._on_delete),
            (self.filter.textChanged, self.refresh),
        )
        self.follow(models)

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> NotesState | str:
        everything = self._models.bookmarks.all
        if not everything:
            return NOTHING
        rows = [self._row(bookmark) for bookmark in everything]
        found = tuple(row for row in rows if is_found(row, self.filter.text()))
        listed = [row.bookmark for row in found]
        marked = self._marked if self._marked in listed else next(iter(listed), None)
        return NotesState(found, len(everything), marked)

    def _row(self, bookmark: Bookmark) -> NoteRow:
        models, step = self._models, bookmark.target.step
        is_gone = step not in models.history
        is_elsewhere = not is_gone and models.timeline.record(step) is None and not models.history.is_on_path(
            step, models.history.live
        )  # fmt: skip
        return NoteRow(bookmark, place_words(models, bookmark.target), is_elsewhere, is_gone)

    def show_state(self, state: NotesState) -> None:
        found = len(state.rows)
        count = counted(state.count, "bookmark")
        self.set_detail(count if found == state.count else f"{thousands(found)} of {count}")
        cells = [cells_of(row, is_marked=row.bookmark == state.marked) for row in state.rows]
        self.table.show_cells(HEADS, cells, [row.bookmark for row in state.rows])
        for button in self._ways:
            button.setEnabled(state.marked is not None)

    def provenance(self, state: NotesState) -> Provenance:
        return Provenance("by you", "recorded", "bookmarks and notes of this session; dimmed: of another branch")

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_row(self, bookmark: Bookmark) -> None:
        self._marked = bookmark
        self.refresh()

    def _tell(self, signal: SignalInstance) -> None:
        if self.state is not None and self.state.marked is not None:
            signal.emit(self.state.marked.target)

    def _on_go(self) -> None:
        self._tell(self.wanted)

    def _on_edit(self) -> None:
        self._tell(self.edited)

    def _on_delete(self) -> None:
        self._tell(self.deleted)

    def _on_copy(self) -> None:
        if self.state is not None:
            QGuiApplication.clipboard().setText(notes_text(self.state.rows))
            self.message.emit(f"{thousands(len(self.state.rows))} notes are copied as text")
