"""The texts of the list of stops, and of the condition that is typed."""

from __future__ import annotations

from msgspec import Struct

from app.draw.format import counted, thousands
from app.kit.cells import ColumnHead, TableCell
from app.kit.theme import TextRole
from app.models.search import Search
from engine.spec.stops import Stop

HEADS = (
    ColumnHead("on", "Whether a run halts there: a click switches it", is_words=True),
    ColumnHead("halt after a step where", "The condition: a click looks for it in the past", is_words=True, most=900),
    ColumnHead("held", "At how many steps of the timeline it held"),
    ColumnHead("last at", "The newest of those up to the step that is shown"),
    ColumnHead("with", "The values there", is_words=True, most=900, takes_rest=True),
)
ON_COLUMN = 0


class StopRow(Struct, frozen=True):
    """A stop of the list: at how many steps it held (None: not searched yet), the newest of them up to the step shown,
    with its values, and why it can never hold here."""

    stop: Stop
    num_held: int | None
    last_at: int | None
    value: str
    problem: str


def cells_of(row: StopRow, *, is_marked: bool) -> tuple[TableCell, ...]:
    """Return one row of the table; a stop that is off is dimmed."""
    stop = row.stop
    role: TextRole = "selected" if is_marked else "text" if stop.is_enabled else "muted"
    state = "" if stop.is_enabled else "\nOff: runs do not halt there"
    tip = f"{stop.text}{state}" + (f"\n{row.problem}" if row.problem else "")
    held = "…" if row.num_held is None else thousands(row.num_held)
    last = "–" if row.last_at is None else thousands(row.last_at)
    value = TableCell(row.problem, "warning", tip) if row.problem else TableCell(row.value, "muted", tip)
    return (
        TableCell("● on" if stop.is_enabled else "○ off", "accent" if stop.is_enabled else "muted", tip),
        TableCell(stop.text, role, tip, is_bold=is_marked),
        TableCell(held, role, tip),
        TableCell(last, role, tip),
        value,
    )


def hint(is_finding: bool) -> str:
    """Say what to type and what Enter will do, while the field is empty."""
    enter = "Enter goes from one to the next" if is_finding else "Enter adds a breakpoint: runs halt there"
    return f"Type a condition: the steps where it held are marked on the timeline, and {enter}."


def enter_words(*, keeps: bool, walks: bool) -> str:
    """Say what Enter will do with the typed condition."""
    return " · Enter: add breakpoint" if keeps else " · Enter: go to the next" if walks else ""


def found_words(search: Search, num_steps: int, step: int | None) -> str:
    """Say at how many of the recorded steps the typed condition held, as far as they are searched."""
    if search.is_too_slow:
        return "the pattern takes too long: write a simpler one"
    if not num_steps:
        return "no step to search yet"
    far = "" if search.is_done else f" · {thousands(search.num_seen)} searched so far"
    unknown = f" · not known at {thousands(search.num_unknown)}" if search.num_unknown else ""
    held = f"held at {thousands(len(search.matches))} of {counted(num_steps, 'step')}"
    verdict = search.verdicts.get(step) if step is not None else None
    here = f" · here {verdict.value}" if verdict is not None else ""
    return f"{held}{here}{unknown}{far}"
