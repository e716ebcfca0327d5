"""The texts of the list of edits, and edits as text and as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct

from app.draw.edit_words import edit_name, edit_place
from app.draw.format import counted, divergence_words, thousands
from app.kit.cells import ColumnHead, TableCell
from app.kit.theme import TextRole
from engine.errors import InputError
from engine.spec.edit import Edit
from engine.spec.edit_text import edit_text, parse_edit

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


def cells_of(rows: Sequence[EditRow], marked: int | None) -> tuple[tuple[TableCell, ...], ...]:
    """The rows of the table; undone edits are dimmed and named as such."""
    return tuple(_cells(row, is_marked=row.step == marked) for row in rows)


def _cells(row: EditRow, *, is_marked: bool) -> tuple[TableCell, ...]:
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
