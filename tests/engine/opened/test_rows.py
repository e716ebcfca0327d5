"""Rows of an opened file whose window has slid: what is known of earlier moments, and where pieces of them part."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.opened import rows as rooms
from engine.opened.rows import FileRows
from engine.spec.cache import CacheSpec
from tests.engine.opened.sessions import opened
from tests.engine.snapshot.sessions import begun


def rows_of(architecture: str, tmp_path: Path) -> FileRows:
    """Thirty tokens, of which mistral's window holds the latest seven."""
    return FileRows(opened(begun(CacheSpec("dynamic"), architecture=architecture), tmp_path).file, 2)


def test_earlier_rows_are_known_where_none_has_left(tmp_path: Path) -> None:
    for architecture, is_known in (("llama", True), ("mistral", False)):
        found = rows_of(architecture, tmp_path)
        assert [found.knows(count) for count in (29, 30, 31)] == [is_known, True, True]


def test_pieces_part_at_multiples_wherever_the_rows_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of a picture are of whole multiples, so that no cell is made of two pieces."""
    monkeypatch.setattr(rooms, "NUMBERS_AT_ONCE", 1)
    found = rows_of("mistral", tmp_path)
    pieces = [(piece.first, piece.keys.shape[2]) for piece in found.pieces(1, "keys", 4)]
    assert pieces == [(23, 1), (24, 4), (28, 2)]
