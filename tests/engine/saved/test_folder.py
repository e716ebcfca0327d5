"""Journals of sessions that ended: the newest few are kept, and the one that has just ended whatever it takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.saved import journal as rooms
from engine.saved.journal import ENDED, MOST_ENDED, RUNNING, JournalFolder


def ended(folder: Path, count: int, num_bytes: int = 1) -> list[str]:
    """Names of so many journals that ended one after the other, oldest first."""
    names = [f"session {number:02}{ENDED}" for number in range(count)]
    for age, name in enumerate(names):
        (folder / name).write_bytes(b"x" * num_bytes)
        os.utime(folder / name, (1000 + age, 1000 + age))
    return names


def finished(folder: Path, num_bytes: int = 1) -> str:
    """End one more, the newest; its name."""
    running = folder / f"session 99{RUNNING}"
    running.write_bytes(b"x" * num_bytes)
    return JournalFolder(folder).finish(running).name


def test_a_dozen_are_kept_the_one_that_has_just_ended_among_them(tmp_path: Path) -> None:
    names = ended(tmp_path, MOST_ENDED + 1)
    newest = finished(tmp_path)
    kept = [path.name for path in JournalFolder(tmp_path).ended()]
    assert kept == [newest, *reversed(names[2:])]
    assert len(kept) == MOST_ENDED


def test_what_is_too_much_goes_from_the_oldest_on_but_never_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "MOST_BYTES", 30)
    names = ended(tmp_path, 3, 10)
    newest = finished(tmp_path, 10)
    assert [path.name for path in JournalFolder(tmp_path).ended()] == [newest, names[2], names[1]]
    (tmp_path / newest).write_bytes(b"x" * 31)
    assert finished(tmp_path, 31) == newest
    assert [path.name for path in JournalFolder(tmp_path).ended()] == [newest]


def test_who_looks_for_journals_hides_none_from_who_looks_at_the_same_moment(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    folder, path = JournalFolder(tmp_path), tmp_path / f"session 1{RUNNING}"
    path.write_bytes(b"x")
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as `left` has it for a moment
        assert folder.left() == [path]
        fcntl.flock(other, fcntl.LOCK_EX)  # as its writer has it
        assert folder.left() == []
    with folder.claim(path):
        assert folder.left() == []
