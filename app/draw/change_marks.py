"""Which mark a node has in the tree and on the timeline, if something was changed before its step."""

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
ORDER: tuple[MarkKind, ...] = ("edit", "mode", "branch", "other")  # priority, where several fall on one pixel


def kind_of(changes: Iterable[Change]) -> MarkKind | None:
    """The mark of a node with these changes; None if there are none but added prompts."""
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
