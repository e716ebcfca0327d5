"""Bookmarks: notes that a person puts on a step, a token, a page or a head.

Each names a step of the history tree. Step numbers are never reused, so a bookmark stays valid after going back in time
and after branching. No torch.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from engine.errors import InputError

MAX_CHARACTERS = 2_000  # in one note
MAX_BOOKMARKS = 1_000  # in one history


class _Target(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """What every target carries: the step of the history tree at which the thing is marked."""

    step: int


class OnStep(_Target, frozen=True):
    """The state of the cache after a step."""


class OnToken(_Target, frozen=True):
    """A token of a sequence; `step` is the one that computed it."""

    seq_id: int
    position: int


class OnPage(_Target, frozen=True):
    """The page `page_id` of the pool number `pool`, as it was after `step`."""

    pool: int
    page_id: int


class OnHead(_Target, frozen=True):
    """A kv head of a layer, as it was after `step`."""

    seq_id: int
    layer: int
    kv_head: int


BookmarkTarget = OnStep | OnToken | OnPage | OnHead


class Bookmark(Struct, frozen=True, array_like=True, gc=False):
    """A mark on one target, with a plain text, which may be empty. A target has one bookmark at most."""

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
    """Raise `InputError` if there are more than `MAX_BOOKMARKS` bookmarks, or two for one target."""
    if len(bookmarks) > MAX_BOOKMARKS:
        raise InputError(f"{len(bookmarks):,} bookmarks are too many: {MAX_BOOKMARKS:,} are kept, delete some.")
    if len({bookmark.target for bookmark in bookmarks}) < len(bookmarks):
        raise InputError("Two bookmarks name the same place: it can have one.")
