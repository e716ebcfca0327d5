"""The conversation that a sequence was rendered from, as its history tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.models import Models
from engine.spec.chat import Chat
from engine.wire.changes import Change, PromptAppended, SequenceAdded, SequenceForked


def conversation_of(models: Models, seq_id: int) -> Chat | None:
    """The turns of a sequence on the live path; those of the one that it was forked from, where it is a fork. None for
    a sequence whose prompt was no conversation. O(nodes of the path)."""
    for change in _newest_first(models):
        match change:
            case SequenceAdded(of, _, _, chat) | PromptAppended(of, _, _, chat) if of == seq_id:
                return chat
            case SequenceForked(of, parent) if of == seq_id:
                seq_id = parent
    return None


def _newest_first(models: Models) -> Iterator[Change]:
    status, history = models.status.now, models.history
    yield from reversed(status.pending if status is not None else ())
    path: Iterable[int] = history.path(history.live) if history.live is not None else ()
    for node in reversed([*path]):
        yield from reversed(history.changes(node))
