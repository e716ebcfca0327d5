"""Notes that a person leaves on moments, tokens, pages and heads. They name a step of the history tree, whose number
means the same moment for ever, so that they outlive going back and other branches. No torch."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from engine.errors import InputError

MAX_CHARACTERS = 2_000  # of one note
MAX_BOOKMARKS = 1_000  # of one history


class _Target(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """What every target carries: the step of the history tree at which it is meant."""

    step: int


class OnStep(_Target, frozen=True):
    """The moment after a step."""


class OnToken(_Target, frozen=True):
    """A token of a sequence; `step` is the one that fed it."""

    seq_id: int
    position: int


class OnPage(_Target, frozen=True):
    """A page of the pool of that number, as it stood after `step`."""

    pool: int
    page_id: int


class OnHead(_Target, frozen=True):
    """A kv head of a layer, as it stood after `step`."""

    seq_id: int
    layer: int
    kv_head: int


BookmarkTarget = OnStep | OnToken | OnPage | OnHead


class Bookmark(Struct, frozen=True, array_like=True, gc=False):
    """A mark on one place, with a plain text, which may be empty. A place has one at most."""

    target: BookmarkTarget
    text: str = ""

    def __post_init__(self) -> None:
        if len(self.text) > MAX_CHARACTERS:
            raise InputError(
                f"A note of {len(self.text):,} characters is too long: {MAX_CHARACTERS:,} are kept, shorten it."
            )
        if any(value < 0 for value in msgspec.structs.astuple(self.target)):
            raise InputError("A bookmark names something before the first step, token or page: there is nothing there.")


def check_bookmarks(bookmarks: tuple[Bookmark, ...]) -> None:
    """Raises where a file, or anybody, has more of them than are kept, or two for one place."""
    if len(bookmarks) > MAX_BOOKMARKS:
        raise InputError(f"{len(bookmarks):,} bookmarks are too many: {MAX_BOOKMARKS:,} are kept, delete some.")
    if len({bookmark.target for bookmark in bookmarks}) < len(bookmarks):
        raise InputError("Two bookmarks name the same place: it can have one.")
