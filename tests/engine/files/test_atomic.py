"""A file is the old one or the new one, never between, and nothing of anybody else's is touched."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InputError
from engine.files import atomic
from engine.files.atomic import PART_SUFFIX, remove_stale_parts, replacing, writable_target, write_bytes, write_text


def test_the_new_content_keeps_the_old_ones_permissions(tmp_path: Path) -> None:
    path, plain = tmp_path / "a.csv", tmp_path / "plain.csv"
    plain.touch()  # what anybody may do with a new file is the person's choice
    write_bytes(path, b"new")
    assert path.stat().st_mode == plain.stat().st_mode
    plain.unlink()
    path.chmod(0o400)
    write_bytes(path, b"newer")
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert path.read_bytes() == b"newer"
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_until_the_end_the_old_content_stands_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_bytes(path, b"old")
    with replacing(path) as stream:
        stream.write(b"half")
        stream.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"half"


def test_a_failure_leaves_the_old_content_and_no_part(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_bytes(path, b"old")

    def write_half() -> None:
        with replacing(path) as stream:
            stream.write(b"half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write_half()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    assert writable_target(link) == real
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


STRANGERS = (
    "film.mkv.part",
    ".film.mkv.part",
    ".film.mkv.abcd1234.part",
    f"film.mkv.abcd1234{PART_SUFFIX}",
    f".film.mkv.ABCD1234{PART_SUFFIX}",
    f".film.mkv.abcd123{PART_SUFFIX}",
    f".film.mkv.abcd12345{PART_SUFFIX}",
    f".film.mkv.abcd1234{PART_SUFFIX}.txt",
    f".filmXmkv.abcd1234{PART_SUFFIX}",
    f".other.mkv.abcd1234{PART_SUFFIX}",
)


def test_only_what_a_killed_writer_of_this_very_file_left_is_deleted(tmp_path: Path) -> None:
    for name in STRANGERS:
        (tmp_path / name).write_text("a stranger's")
    ours = tmp_path / f".film.mkv.abcd1234{PART_SUFFIX}"
    ours.write_text("half")
    remove_stale_parts(tmp_path / "film.mkv")
    assert sorted(os.listdir(tmp_path)) == sorted(STRANGERS)


def test_what_a_living_writer_holds_is_left_to_it(tmp_path: Path) -> None:
    theirs = tmp_path / f".film.mkv.abcd1234{PART_SUFFIX}"
    with theirs.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        write_bytes(tmp_path / "film.mkv", b"whole")
        assert theirs.exists()
    write_bytes(tmp_path / "film.mkv", b"whole again")
    assert not theirs.exists()


def test_a_part_that_was_swept_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = atomic.lock, []

    def late(stream: Any) -> None:
        if not swept:  # between the making of the part and its lock another writer of the same file begins
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        lock(stream)

    monkeypatch.setattr(atomic, "lock", late)
    write_bytes(tmp_path / "film.mkv", b"whole")
    assert len(swept) == 1
    assert (tmp_path / "film.mkv").read_bytes() == b"whole"


def test_a_new_file_is_what_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_bytes(tmp_path / "private", b"a prompt")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["a" * 250, "ä" * 120])
def test_a_name_as_long_as_the_system_takes(name: str, tmp_path: Path) -> None:
    with replacing(tmp_path / name):
        (left,) = tmp_path.iterdir()
    left.write_text("half")
    write_bytes(tmp_path / name, b"whole")
    assert os.listdir(tmp_path) == [name]


def test_two_writers_of_one_file_leave_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with replacing(path) as one, replacing(path) as two:
        one.write(b"one")
        two.write(b"two")
    assert path.read_bytes() == b"one"  # the last to end
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_half_characters_are_escaped(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x\ud800é")
    assert (tmp_path / "a").read_bytes() == b"x\\ud800" + "é".encode()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is a folder: give the name of a file in it"),
        ("none/a", "does not exist; create it or choose another"),
        ("file/a", "does not exist|Not a directory"),
        ("pipe", "a device or a pipe and no regular file"),
        ("nul\0l", "cannot be written"),
        ("x" * 300, "cannot be written"),
    ],
    ids=["folder", "nowhere", "below a file", "pipe", "nul", "long"],
)
def test_where_no_file_can_be_is_said_before_anything_is_written(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(InputError, match=said):
        write_bytes(tmp_path / name, b"new")
    assert sorted(os.listdir(tmp_path)) == before


def failing(path: Path, error: OSError, moved_to: Path | None) -> None:
    """A file of which the writing ends in an error, its folder moved away before."""
    with replacing(path):
        if moved_to is not None:
            path.parent.rename(moved_to)
        raise error


@pytest.mark.parametrize(
    ("number", "is_gone", "remedy"),
    [
        (errno.ENOSPC, False, "free some space or choose another place"),
        (errno.EDQUOT, False, "free some space or choose another place"),
        (errno.EFBIG, True, "free some space or choose another place"),
        (errno.EIO, False, "choose another place"),
        (errno.EIO, True, "the folder '{folder}' is gone; bring its drive back or choose another place"),
    ],
)
def test_the_remedy_is_that_of_what_went_wrong(number: int, is_gone: bool, remedy: str, tmp_path: Path) -> None:
    """Whether the file was there before or not."""
    for name in ("new", "old"):
        folder = tmp_path / name / "drive"
        folder.mkdir(parents=True)
        if name == "old":
            (folder / "x").write_bytes(b"before")
        with pytest.raises(InputError) as caught:
            failing(folder / "x", OSError(number, "why"), tmp_path / name / "away" if is_gone else None)
        assert str(caught.value) == f"'{folder / 'x'}' could not be written (why): {remedy.format(folder=folder)}."
