"""Bookmarks: one at most for a place, in order, and by what they are on."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from app.models import Bookmarks
from app.models.bookmarks import selected_fields
from engine.errors import InputError
from engine.spec.bookmark import MAX_BOOKMARKS, Bookmark, OnHead, OnPage, OnStep, OnToken

STEP, TOKEN = Bookmark(OnStep(9), "a"), Bookmark(OnToken(5, 1, 17), "b")
PAGE, HEAD = Bookmark(OnPage(7, 0, 33), ""), Bookmark(OnHead(9, 0, 3, 1), "d")


def test_they_stand_in_the_order_of_their_steps(qtbot: QtBot) -> None:
    bookmarks = Bookmarks()
    for one in (STEP, TOKEN, PAGE, HEAD):
        bookmarks.put(one)
    assert bookmarks.all == (TOKEN, PAGE, STEP, HEAD)
    assert bookmarks.on_steps() == {5: (TOKEN,), 7: (PAGE,), 9: (STEP, HEAD)}
    assert bookmarks.on_tokens(1) == {(5, 17): TOKEN}
    assert bookmarks.on_tokens(0) == {}
    assert bookmarks.on_pages(0) == {33: PAGE}
    assert bookmarks.on_heads(0) == {(3, 1): HEAD}


def test_a_place_has_one_and_says_when_it_changes(qtbot: QtBot) -> None:
    bookmarks = Bookmarks()
    heard: list[int] = []
    bookmarks.changed.connect(lambda: heard.append(len(bookmarks)))
    bookmarks.put(STEP)
    bookmarks.put(STEP)
    bookmarks.put(Bookmark(OnStep(9), "other words"))
    assert [one.text for one in bookmarks.all] == ["other words"]
    bookmarks.remove(OnStep(9))
    bookmarks.remove(OnStep(9))
    assert heard == [1, 1, 0]


def test_too_many_are_refused_and_those_there_are_stay(qtbot: QtBot) -> None:
    bookmarks = Bookmarks()
    bookmarks.set_all(Bookmark(OnStep(step)) for step in range(MAX_BOOKMARKS))
    with pytest.raises(InputError, match="delete some"):
        bookmarks.put(Bookmark(OnStep(MAX_BOOKMARKS)))
    assert len(bookmarks) == MAX_BOOKMARKS
    bookmarks.put(Bookmark(OnStep(3), "a note on one that is there"))


def test_what_is_selected_to_look_there() -> None:
    assert selected_fields(STEP.target) == {}
    assert selected_fields(TOKEN.target) == {"seq_id": 1, "position": 17}
    assert selected_fields(PAGE.target) == {"pool": 0, "page": 33}
    assert selected_fields(HEAD.target) == {"seq_id": 0, "layer": 3, "kv_head": 1}
