"""How a moment is marked before which something was done by hand, in the tree and on the timeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from engine.wire.changes import (
    Change,
    EditMade,
    ModeChanged,
    SamplingChanged,
    SequenceAdded,
    TokensForced,
)

MarkKind = Literal["edit", "mode", "branch", "other"]
ORDER: tuple[MarkKind, ...] = ("edit", "mode", "branch", "other")  # which is shown where several fall on one pixel


def kind_of(changes: Iterable[Change]) -> MarkKind | None:
    """How a moment is marked before which this was done; None for the prompt alone."""
    found: set[MarkKind] = set()
    for change in changes:
        match change:
            case EditMade():
                found.add("edit")
            case ModeChanged():
                found.add("mode")
            case TokensForced() | SamplingChanged():
                found.add("branch")
            case SequenceAdded():
                pass
            case _:
                found.add("other")
    return next((kind for kind in ORDER if kind in found), None)
