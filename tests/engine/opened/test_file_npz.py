"""An npz of the export, opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.opened.file import OpenedSnapshot
from engine.session.session import Session
from engine.snapshot.export import export
from engine.wire.exporting import Export
from engine.wire.pictures import (
    HeadPicture,
    HeadRequest,
    WallRequest,
)
from tests.engine.opened.sessions import opened, same
from tests.engine.snapshot.sessions import begun, small


def as_npz(session: Session, tmp_path: Path) -> Path:
    path = tmp_path / "a.npz"
    for _ in export(opened(session, tmp_path).file, Export(path, 0, kind="npz")):
        pass
    return path


def test_an_npz_of_the_export_opens_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = begun(small("growing"))
    path, hidden = as_npz(session, tmp_path), tmp_path / "hidden"
    hidden.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(hidden))
    snapshot = OpenedSnapshot(path)
    assert list(hidden.iterdir()) == []
    assert (snapshot.file.path, snapshot.opened.why_not[:7]) == (path, "another")
    n = session.sequence(0).num_tokens
    request = WallRequest(0, n, n, "values", False, 100, 100)
    same(session.take_picture(request), snapshot.take(request))
    assert snapshot.token_ids == tuple(session.sequence(0).token_ids[:n])


def test_an_npz_of_rows_that_were_dropped_shows_them_where_they_stood(tmp_path: Path) -> None:
    session = begun(small("h2o"))
    snapshot, n = OpenedSnapshot(as_npz(session, tmp_path)), session.sequence(0).num_tokens
    request = WallRequest(0, n, n, "values", False, 100, 100)
    same(session.take_picture(request), snapshot.take(request))
    assert snapshot.num_tokens == n == 30


def test_an_npz_of_one_layer_opens_with_its_number(tmp_path: Path) -> None:
    session, path = begun(small("growing")), tmp_path / "a.npz"
    for _ in export(session, Export(path, 0, layers=(1,), kind="npz")):
        pass
    n = session.sequence(0).num_tokens
    request = HeadRequest(0, n, "keys", 1, 0, 0, n, n)
    expected, found = session.take_picture(request), OpenedSnapshot(path).take(request)
    assert isinstance(expected, HeadPicture)
    assert isinstance(found, HeadPicture)
    assert np.array_equal(found.low, expected.low)
    assert np.array_equal(found.high, expected.high)
