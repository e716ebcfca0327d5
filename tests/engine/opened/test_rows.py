"""Rows of an opened file whose window has slid: what is known of earlier moments, and where pieces of them part."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.look.pictures import PictureMemo, picture_of
from engine.opened import file as rooms
from engine.spec.cache import CacheSpec
from engine.wire.pictures import WallPicture, WallRequest
from tests.engine.opened.sessions import opened, same
from tests.engine.snapshot.sessions import begun


def test_earlier_rows_are_known_where_none_has_left(tmp_path: Path) -> None:
    """Thirty tokens, of which mistral's window holds the latest seven."""
    for architecture, is_known in (("llama", True), ("mistral", False)):
        found = opened(begun(CacheSpec("dynamic"), architecture=architecture), tmp_path)
        assert [found.at(count).is_known for count in (29, 30, 31)] == [is_known, True, True]


@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_a_wall_read_in_pieces_is_that_of_one_piece(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces end with columns, so that no cell is made of two."""
    snapshot = opened(begun(CacheSpec("dynamic"), architecture=architecture), tmp_path)
    request, walls = WallRequest(0, 30, 30, "keys", False, 8, 3), list[WallPicture]()
    for at_once in (1, 1 << 20):
        monkeypatch.setattr(rooms, "NUMBERS_AT_ONCE", at_once)
        piece = picture_of(request, snapshot.at(30), snapshot.info.geometry, PictureMemo(None))
        assert isinstance(piece, WallPicture)
        walls.append(piece)
    same(*walls)
