"""How much is measured in every step: one row for each capture level, from nothing to everything. No torch."""

from __future__ import annotations

from typing import Literal, NamedTuple

from engine.errors import InputError

CaptureLevel = Literal["off", "statistics", "rows", "everything"]
DEFAULT_CAPTURE: CaptureLevel = "rows"


class CaptureRow(NamedTuple):
    """A capture level as people read it. Each level measures all that the levels before it do, and more."""

    name: CaptureLevel
    label: str
    summary: str


CAPTURES: dict[CaptureLevel, CaptureRow] = {
    row.name: row
    for row in (
        CaptureRow("off", "Nothing", "Tokens and times alone: no candidates, no statistics, nothing to compare by."),
        CaptureRow(
            "statistics",
            "Statistics",
            "Norms, extremes and checksums of the new rows of K and V, what is not finite, candidates, surprisal.",
        ),
        CaptureRow("rows", "Attention rows", "And where the newest token looked, every head of every layer."),
        CaptureRow(
            "everything",
            "Everything",
            "And the new rows of K and V as the step wrote them, to compare with what later steps made of them.",
        ),
    )
}


def check_capture(name: str) -> CaptureLevel:
    """Return the capture level `name`; raise `InputError` if there is no such level."""
    if name not in CAPTURES:
        raise InputError(f"There is no capture level '{name[:40]}': choose one of {', '.join(CAPTURES)}.")
    return name


def captures(level: CaptureLevel, what: CaptureLevel) -> bool:
    """Whether `level` includes what the level `what` measures."""
    order = [*CAPTURES]
    return order.index(level) >= order.index(what)
