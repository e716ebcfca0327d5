"""How much of what a person says is written of a session: what is written can always be read again. No torch."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from engine.saved.session import Entry
from engine.spec.bookmark import MAX_BOOKMARKS

MAX_DRAFT = 1 << 22  # characters
MAX_NAME = 200  # characters of the name of a branch
MAX_NAMES = 1 << 12
MAX_STOPS = 200
MAX_STOP = 2_000  # characters of a condition
MAX_TEXT = 1 << 12  # characters of a token


def within_limits(entry: Entry) -> Entry:
    """The same with what is too long cut short, and what is too much left out."""
    return replace(
        entry,
        draft=entry.draft if isinstance(entry.draft, UnsetType) else entry.draft[:MAX_DRAFT],
        names=_names(entry.names),
        stops=_stops(entry.stops),
        bookmarks=UNSET if isinstance(entry.bookmarks, UnsetType) else entry.bookmarks[:MAX_BOOKMARKS],
        texts={token_id: text[:MAX_TEXT] for token_id, text in entry.texts.items()},
    )


def _names(names: tuple[tuple[int, str], ...] | UnsetType) -> tuple[tuple[int, str], ...] | UnsetType:
    if isinstance(names, UnsetType):
        return UNSET
    return tuple((step, name[:MAX_NAME]) for step, name in names[:MAX_NAMES])


def _stops(stops: tuple[str, ...] | UnsetType) -> tuple[str, ...] | UnsetType:
    if isinstance(stops, UnsetType):
        return UNSET
    return tuple(text for text in stops if len(text) <= MAX_STOP)[:MAX_STOPS]
