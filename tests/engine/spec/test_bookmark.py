"""Bookmarks: what they may say, and the way through a file."""

from __future__ import annotations

import msgspec
import pytest

from engine.errors import InputError
from engine.spec.bookmark import (
    MAX_BOOKMARKS,
    MAX_CHARACTERS,
    Bookmark,
    OnHead,
    OnPage,
    OnStep,
    OnToken,
    check_bookmarks,
)

ALL = (
    Bookmark(OnStep(21), "here it turns"),
    Bookmark(OnToken(5, 1, 17), ""),
    Bookmark(OnPage(7, 0, 33), "<b>shared</b>"),
    Bookmark(OnHead(9, 0, 3, 1), "a sink\nin two lines"),
)


def test_what_is_written_is_read() -> None:
    text = msgspec.json.encode(ALL)
    assert msgspec.json.decode(text, type=tuple[Bookmark, ...]) == ALL
    check_bookmarks(ALL)


@pytest.mark.parametrize("text", ['[[["OnMars",3],""]]', '[[["OnStep",-1],"x"]]', '[[["OnStep",1],3]]'])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"OnMars|before the first|Expected"):
        msgspec.json.decode(text, type=tuple[Bookmark, ...])


def test_a_place_has_one_bookmark() -> None:
    with pytest.raises(InputError, match="same place"):
        check_bookmarks((Bookmark(OnStep(1), "a"), Bookmark(OnStep(1), "b")))


def test_there_are_so_many_at_most() -> None:
    check_bookmarks(tuple(Bookmark(OnStep(step)) for step in range(MAX_BOOKMARKS)))
    with pytest.raises(InputError, match="too many"):
        check_bookmarks(tuple(Bookmark(OnStep(step)) for step in range(MAX_BOOKMARKS + 1)))


def test_a_note_is_bounded() -> None:
    assert Bookmark(OnStep(0), "x" * MAX_CHARACTERS).text
    with pytest.raises(InputError, match="shorten it"):
        Bookmark(OnStep(0), "x" * (MAX_CHARACTERS + 1))
