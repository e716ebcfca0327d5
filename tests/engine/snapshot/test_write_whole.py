"""A snapshot file is whole or not there: kills, cancelling, full disks, links, places that cannot be written."""

from __future__ import annotations

import json
import os
import random
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from engine.errors import InputError
from engine.snapshot import write
from engine.snapshot.write import Snapshot, header_of, write_snapshot
from tests.benchmarks.export_kills import kills
from tests.effort import effort
from tests.engine.kills import kill_me, killed
from tests.engine.snapshot.exports import session_of
from tests.engine.snapshot.sessions import snapshot as of_session

OLD = b"the old file, whole"


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.suffix == ".safetensors" and p.name != "x.safetensors"]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(OLD)
    return path


@pytest.fixture
def snapshot() -> Snapshot:
    session, seq_id = session_of()
    return of_session(session, seq_id)


def test_a_kill_at_any_byte_leaves_the_old_file(target: Path, snapshot: Snapshot, monkeypatch: Any) -> None:
    monkeypatch.setattr(write, "CHUNK_BYTES", 64)
    chance = random.Random(5)
    for _ in range(effort(15, 40)):
        deadly = chance.randrange(snapshot.num_bytes)

        def work(deadly: int = deadly) -> None:
            for done in write_snapshot(snapshot, target):
                if done >= deadly:
                    kill_me()

        assert killed(work)
        assert target.read_bytes() == OLD
        assert leftovers(target.parent) == [], "a part is never mistaken for a snapshot"


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_kill_at_any_call_leaves_the_old_file_or_the_new(
    target: Path, snapshot: Snapshot, call: str, monkeypatch: Any
) -> None:
    """`open` is called only to flush the folder, after the rename: from there on the new file is the whole one."""
    real = getattr(os, call)
    for when in ("before", "after"):
        target.write_bytes(OLD)

        def deadly(*args: Any, when: str = when, **kwargs: Any) -> Any:
            result = real(*args, **kwargs) if when == "after" else None
            kill_me()
            return result

        def work(deadly: Callable[..., Any] = deadly) -> None:
            # mkstemp opens too: it takes the real one
            progress = write_snapshot(snapshot, target)
            next(progress)
            setattr(os, call, deadly)
            for _ in progress:
                pass

        assert killed(work)
        if call == "open" or (call == "replace" and when == "after"):
            with safe_open(target, framework="pt") as opened:
                assert opened.metadata()["format"] == "kvloupe-snapshot"
        else:
            assert target.read_bytes() == OLD
        assert leftovers(target.parent) == []


def test_a_kill_anywhere_leaves_the_old_file_or_the_new_and_nothing_else() -> None:
    """The long form is `tests/benchmarks/export_kills.py`."""
    num_kills = effort(30, 60)
    tally = kills(num_kills, seed=3)
    assert (tally.lost, tally.partial, tally.stray) == (0, 0, 0)
    assert sum(count for fate, count in tally.outcomes.items() if fate.startswith("killed")) > num_kills / 2
    assert any(fate.endswith("the new file") and fate.startswith("killed") for fate in tally.outcomes)


def test_the_next_export_clears_what_a_kill_left_and_nothing_of_a_living_one(target: Path, snapshot: Snapshot) -> None:
    def work() -> None:
        dying = write_snapshot(snapshot, target)
        next(dying)
        kill_me()

    living = write_snapshot(snapshot, target)
    next(living)
    assert killed(work)
    assert len(list(target.parent.iterdir())) == 3, "the old file, a living part and a dead one"
    list(write_snapshot(snapshot, target))
    assert len(list(target.parent.iterdir())) == 2
    list(living)
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    with safe_open(target, framework="pt") as opened:
        assert opened.metadata()["format"] == "kvloupe-snapshot"


def test_cancel_at_any_moment_leaves_no_trace(target: Path, snapshot: Snapshot, monkeypatch: Any) -> None:
    monkeypatch.setattr(write, "CHUNK_BYTES", 256)
    steps = sum(1 for _ in write_snapshot(snapshot, target.with_name("other")))
    target.with_name("other").unlink()
    for stop in (1, 2, steps // 2, steps - 1, steps):
        progress = write_snapshot(snapshot, target)
        for _ in range(stop):
            next(progress)
        progress.close()  # type: ignore[attr-defined]
        assert target.read_bytes() == OLD
        assert [p.name for p in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("notes", ["", "a", "ab", "Zoë", "\ud800", "x" * 1001])
def test_tensors_begin_at_a_multiple_of_eight(notes: str) -> None:
    """Whoever maps the file into memory reads numbers where they are aligned."""
    header = header_of(Snapshot({"a": torch.zeros(3)}, {"notes": notes}))
    length = int.from_bytes(header[:8], "little")
    assert len(header) == 8 + length
    assert length % 8 == 0
    assert json.loads(header[8:])["a"] == {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(target: Path, snapshot: Snapshot, share: float) -> None:
    """The system refuses to let a file grow further, as a full disk does."""
    whole = snapshot.num_bytes + len(header_of(snapshot))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(whole * share), hard))
    try:
        with pytest.raises(InputError, match="could not be written") as caught:
            list(write_snapshot(snapshot, target))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert target.read_bytes() == OLD
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def test_places_that_cannot_be_written(tmp_path: Path, snapshot: Snapshot) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for path in (
        tmp_path / "folder",
        tmp_path / "none" / "x.safetensors",
        tmp_path / "file" / "x.safetensors",
        tmp_path / ("n" * 300),
        tmp_path / "a\0b",
        Path("/proc/x.safetensors"),
    ):
        with pytest.raises(InputError) as caught:
            list(write_snapshot(snapshot, path))
        assert str(path) in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path, snapshot: Snapshot) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "here").mkdir()
    real, link = tmp_path / "real" / "a.safetensors", tmp_path / "here" / "b.safetensors"
    real.write_bytes(OLD)
    real.chmod(0o600)
    link.symlink_to(Path("..") / "real" / "a.safetensors")
    list(write_snapshot(snapshot, link))
    assert os.readlink(link) == "../real/a.safetensors"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600, "who may read it is its owner's choice"
    with safe_open(real, framework="pt") as opened:
        assert opened.metadata()["format"] == "kvloupe-snapshot"
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["b.safetensors"]
    dangling = tmp_path / "here" / "c.safetensors"
    dangling.symlink_to(tmp_path / "real" / "new.safetensors")
    list(write_snapshot(snapshot, dangling))
    assert dangling.is_symlink()
    assert (tmp_path / "real" / "new.safetensors").is_file()


def test_what_is_no_regular_file_is_refused_and_left_alone(tmp_path: Path, snapshot: Snapshot) -> None:
    pipe, loop, to_device = tmp_path / "pipe", tmp_path / "loop", tmp_path / "null"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    to_device.symlink_to("/dev/null")
    for path in (pipe, to_device, Path("/dev/null")):
        with pytest.raises(InputError, match="no regular file"):
            list(write_snapshot(snapshot, path))
    with pytest.raises(InputError, match="cannot be written"):
        list(write_snapshot(snapshot, loop))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loop", "null", "pipe"]
    assert all(path.is_symlink() for path in (loop, to_device))


@pytest.mark.parametrize(
    "name", ["film.mkv.part", ".film.mkv.part", ".film.mkv.download.part", ".film.mkv.a1b2c3d4.part"]
)
def test_an_export_leaves_strangers_files_alone(tmp_path: Path, snapshot: Snapshot, name: str) -> None:
    stranger = tmp_path / name
    stranger.write_text("half a film")
    list(write_snapshot(snapshot, tmp_path / "film.mkv"))
    assert stranger.read_text() == "half a film"


def test_what_no_reader_would_open_is_not_written(target: Path) -> None:
    session, seq_id = session_of()
    for kept, said in (
        (of_session(session, seq_id, notes="x" * (17 << 20)), "its header has"),
        (
            Snapshot({}, {**of_session(session, seq_id).manifest, "num_tokens": str((1 << 24) + 1)}),
            "about num_tokens .Expected `int` <= 16777216",
        ),
    ):
        with pytest.raises(InputError, match=f"cannot be kept as a snapshot: .*{said}"):
            list(write_snapshot(kept, target))
        assert target.read_bytes() == OLD
        assert [p.name for p in target.parent.iterdir()] == [target.name]
