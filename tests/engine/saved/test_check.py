"""Whatever a person says, the session that is written of it can be read again."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from engine.errors import InputError
from engine.saved import document as checks
from engine.saved.document import check
from engine.saved.named import decoded, encoded
from engine.saved.session import (
    MAX_BREAKPOINT,
    MAX_BREAKPOINTS,
    MAX_DRAFT,
    MAX_NAME,
    MAX_NAMES,
    MAX_TEXT,
    JournalEntry,
    SavedSession,
    SessionRecorder,
    within_limits,
)
from engine.spec.bookmark import MAX_BOOKMARKS, Bookmark, OnStep
from tests.engine.saved.samples import SAMPLE


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("draft", "a" * (MAX_DRAFT + 1), "a" * MAX_DRAFT),
        ("names", ((3, "n" * (MAX_NAME + 1)),), ((3, "n" * MAX_NAME),)),
        ("names", tuple((i, "n") for i in range(MAX_NAMES + 1)), tuple((i, "n") for i in range(MAX_NAMES))),
        ("stops", ("entropy > 2", "s" * (MAX_BREAKPOINT + 1)), ("entropy > 2",)),
        ("stops", ("step > 1",) * (MAX_BREAKPOINTS + 1), ("step > 1",) * MAX_BREAKPOINTS),
        (
            "bookmarks",
            tuple(Bookmark(OnStep(i), "") for i in range(MAX_BOOKMARKS + 1)),
            tuple(Bookmark(OnStep(i), "") for i in range(MAX_BOOKMARKS)),
        ),
    ],
)
def test_what_is_too_long_or_too_much_is_cut_before_it_is_written(name: str, value: object, kept: object) -> None:
    recorder = SessionRecorder()
    recorder.put(**{name: value})
    session = recorder.session()
    assert getattr(session, name) == kept
    check(session)


def test_a_token_of_many_characters_is_cut() -> None:
    assert within_limits(JournalEntry(texts={7: "x" * (MAX_TEXT + 1)})).texts == {7: "x" * MAX_TEXT}


def test_an_entry_says_no_more_than_before() -> None:
    assert within_limits(JournalEntry(live=3)) == JournalEntry(live=3)


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("MAX_STEP", SAMPLE.nodes[-1].step + 1),
        ("MAX_TOKENS", 4),  # the sequence has grown to so many
        ("MAX_ALL_TOKENS", 3 + 1),  # a prompt and a token that was forced
        ("MAX_CHANGES", 1),
        ("MAX_SEQUENCES", 1),
        ("MAX_LAYERS", 2),
    ],
)
def test_as_much_as_a_limit_says_is_read_and_no_more(name: str, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, name, largest)
    check(SAMPLE)
    monkeypatch.setattr(checks, name, largest - 1)
    with pytest.raises(InputError):
        check(SAMPLE)


@pytest.mark.parametrize(
    ("name", "most", "more"),
    [
        ("draft", "a" * MAX_DRAFT, "a" * (MAX_DRAFT + 1)),
        ("names", ((3, "n" * MAX_NAME),), ((3, "n" * (MAX_NAME + 1)),)),
        ("names", ((3, "n"),) * MAX_NAMES, ((3, "n"),) * (MAX_NAMES + 1)),
        ("stops", ("s" * MAX_BREAKPOINT,), ("s" * (MAX_BREAKPOINT + 1),)),
        ("stops", ("s",) * MAX_BREAKPOINTS, ("s",) * (MAX_BREAKPOINTS + 1)),
        ("texts", {(1 << 31) - 1: "t" * MAX_TEXT}, {7: "t" * (MAX_TEXT + 1)}),
        ("texts", {}, {1 << 31: "t"}),
    ],
)
def test_as_long_and_as_many_as_a_field_may_be(name: str, most: object, more: object) -> None:
    assert getattr(decoded(encoded(replace(SAMPLE, **{name: most})), SavedSession), name) == most
    with pytest.raises(msgspec.ValidationError, match=name):
        decoded(encoded(replace(SAMPLE, **{name: more})), SavedSession)


def test_a_model_of_as_many_layers_as_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(SAMPLE, nodes=(), live=None, names=(), bookmarks=(), pending=())
    monkeypatch.setattr(checks, "MAX_LAYERS", 1)
    check(bare)
    monkeypatch.setattr(checks, "MAX_LAYERS", 0)
    with pytest.raises(InputError, match="more layers"):
        check(bare)
