"""The texts of the list of notes, and notes as text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from app.draw.format import thousands
from app.kit.bookmark_places import note_line, visible_words
from app.kit.cells import ColumnHead, TableCell
from app.kit.theme import TextRole
from engine.spec.bookmark import Bookmark

HEADS = (
    ColumnHead("step", "The moment that it is of, by its number in the history tree"),
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


def cells_of(rows: Sequence[NoteRow], marked: Bookmark | None) -> tuple[tuple[TableCell, ...], ...]:
    """The rows of the table; bookmarks on other branches are dimmed and marked as such."""
    return tuple(_cells(row, is_marked=row.bookmark == marked) for row in rows)


def _cells(row: NoteRow, *, is_marked: bool) -> tuple[TableCell, ...]:
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
