"""Exports of a live session: every kind reads back as what was there, and what cannot be written says why."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import InputError
from engine.model.loader import load
from engine.session.session import Session
from engine.snapshot import write
from engine.snapshot.convert import FIRST_WORDS
from engine.snapshot.export import estimate, export
from engine.snapshot.read import SnapshotFile
from engine.spec.cache import PRESETS
from engine.spec.edit import parse_numbers
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.exporting import Export
from engine.wire.records import StepRecord
from tests.engine.snapshot.sessions import begun, kept, small, step
from tests.engine.tiny import model_of, prompt_ids

OLD = b"what was there before"


def told(spec: str = "growing", steps: int = 5) -> tuple[Session, tuple[StepRecord, ...]]:
    """A session with the records of all its steps."""
    session = Session(model_of("llama"), small(spec) if spec != "growing" else PRESETS[spec].spec, prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(21)))
    records: list[StepRecord] = []
    while session.sequence(0).num_tokens < 21 + steps:
        records.append(step(session))
    return session, tuple(records)


def written(session: Session, command: Export) -> list[tuple[int, int]]:
    return list(export(session, command))


# ---- what is in them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["growing", "h2o", "kivi-4", "paged"])
def test_an_npz_is_that_of_the_snapshot(spec: str, tmp_path: Path) -> None:
    session = begun(small(spec) if spec != "growing" else PRESETS[spec].spec)
    progress = written(session, Export(tmp_path / "live.npz", 0, kind="npz"))
    assert progress == sorted(progress)
    assert progress[-1][0] == progress[-1][1]
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        list(export(file, Export(tmp_path / "file.npz", 0, kind="npz")))
    with np.load(tmp_path / "live.npz") as live, np.load(tmp_path / "file.npz") as other:
        assert set(live) == set(other)
        for name in live:
            assert live[name].dtype == other[name].dtype
            assert np.array_equal(live[name], other[name], equal_nan=True)


def test_an_npz_of_bfloat16_is_as_large_as_was_said(tmp_path: Path) -> None:
    session = Session(
        load(ModelSpec("bundled", dtype="bfloat16", device="cpu", num_threads=1)), PRESETS["growing"].spec
    )
    session.submit(Prompt(text="Once upon a time"))
    step(session)
    command = Export(tmp_path / "x.npz", 0, kind="npz")
    size = estimate(session, command).num_bytes
    assert written(session, command)[-1] == (size, size)
    with np.load(command.path) as arrays:
        assert size == sum(array.nbytes for array in arrays.values())


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [("growing", {}), ("growing", {"layers": (1,), "kv_heads": (0,)}), ("kivi-4", {"form": "rows"}), ("h2o", {})],
)
def test_an_estimate_is_what_is_written(spec: str, chosen: dict[str, Any], tmp_path: Path) -> None:
    session, _ = told(spec)
    command = Export(tmp_path / "x.safetensors", 0, **chosen)
    found = estimate(session, command)
    assert not list(tmp_path.iterdir()), "nothing is written to tell"
    written(session, command)
    assert found.num_bytes == (tmp_path / "x.safetensors").stat().st_size
    with SnapshotFile(tmp_path / "x.safetensors") as file:
        assert (found.num_layers, found.num_tokens) == (len(file.layers), file.manifest.num_tokens)
        assert found.why_not == file.manifest.why_not
    assert bool(found.why_not) == (spec == "kivi-4" or "layers" in chosen)


def test_layers_heads_steps_notes_and_view_are_what_was_chosen(tmp_path: Path) -> None:
    session, records = told(steps=8)
    notes, view = "<b>größer</b> \u202e \x00 {0}", json.dumps({"layout": "learn", "selection": {"layer": 1}})
    path = tmp_path / "<b>ü {0}.safetensors"
    written(
        session,
        Export(path, 0, 25, notes, layers=(1,), kv_heads=(1,), records=records[2:5], view=view),
    )
    with SnapshotFile(path) as file:
        assert [(entry.index, entry.heads) for entry in file.layers] == [(1, (1,))]
        assert [record.step for record in file.records] == [record.step for record in records[2:5]]
        assert (file.manifest.notes, file.manifest.view, file.manifest.num_tokens) == (notes, view, 25)
        held = session.cache_of(0).rows(1)
        assert held is not None
        assert np.array_equal(file.rows(1, "keys", 1), held.keys[0, 1, :25].numpy())


def test_a_table_and_a_trace_have_the_steps_that_were_chosen(tmp_path: Path) -> None:
    session, records = told()
    written(session, Export(tmp_path / "x.csv", 0, kind="table", records=records[1:3]))
    lines = (tmp_path / "x.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[0]) for line in lines] == [record.step for record in records[1:3]]
    written(session, Export(tmp_path / "x.json", 0, kind="trace", records=records[1:3]))
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    assert [event["args"]["step"] for event in events if "step" in event.get("args", {})] == [
        record.step for record in records[1:3]
    ]


def test_without_steps_there_is_no_table(tmp_path: Path) -> None:
    session, _ = told()
    for kind in ("table", "trace", "session"):
        with pytest.raises(InputError, match="send a prompt first"):
            written(session, Export(tmp_path / "x", 0, kind=kind))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_snapshot_with_its_script_beside_it(tmp_path: Path) -> None:
    session, _ = told()
    command = Export(tmp_path / "a b.safetensors", 0, with_script=True)
    for _ in range(2):  # the second time both are replaced
        written(session, command)
    assert (tmp_path / "a b.py").read_bytes().startswith(FIRST_WORDS)
    assert "SNAPSHOT = 'a b.safetensors'" in (tmp_path / "a b.py").read_text()


def test_a_script_of_somebody_else_is_left_alone_and_so_is_the_old_snapshot(tmp_path: Path) -> None:
    session, _ = told()
    (tmp_path / "mine.py").write_text("print('mine')")
    (tmp_path / "mine.safetensors").write_bytes(OLD)
    with pytest.raises(InputError, match="no script of a snapshot: rename it"):
        written(session, Export(tmp_path / "mine.safetensors", 0, with_script=True))
    with pytest.raises(InputError, match="like its snapshot"):
        written(session, Export(tmp_path / "x.py", 0, with_script=True))
    assert (tmp_path / "mine.py").read_text() == "print('mine')"
    assert (tmp_path / "mine.safetensors").read_bytes() == OLD


# ---- what cannot be written --------------------------------------------------------------------------------------


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file can become larger than 4 KiB."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("kind", ["snapshot", "npz", "table", "trace", "session"])
def test_a_full_disk_leaves_the_old_file_alone(kind: Any, tmp_path: Path, full_disk: None) -> None:
    session, records = told(steps=30)
    path = tmp_path / "x"
    path.write_bytes(OLD)
    with pytest.raises(InputError, match="free some space") as caught:
        written(session, Export(path, 0, kind=kind, records=records))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == OLD


def test_a_drive_that_vanishes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = told()
    monkeypatch.setattr(write, "CHUNK_BYTES", 256)
    folder = tmp_path / "drive"
    folder.mkdir()
    pieces = export(session, Export(folder / "x.safetensors", 0))
    next(pieces)
    folder.rename(tmp_path / "away")
    with pytest.raises(InputError, match=r"drive' is gone; bring its drive back or choose another place\.$"):
        list(pieces)
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["snapshot", "npz", "table", "trace", "session"])
def test_places_that_are_none_are_refused_before_anything_is_computed(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, records = told()
    monkeypatch.setattr("engine.snapshot.export.snapshot_of", lambda *_: pytest.fail("it was computed"))
    for path, why in (
        (tmp_path, "is a folder: give the name of a file in it"),
        (tmp_path / "no" / "x", "does not exist; create it or choose another"),
        (Path("/dev/null"), "no regular file: give the name of a file"),
    ):
        with pytest.raises(InputError, match=why):
            next(export(session, Export(path, 0, kind=kind, records=records)), None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="is read only; choose another"):
        next(export(session, Export(tmp_path / "x", 0, kind=kind, records=records)), None)
    assert not list(tmp_path.iterdir())


# ---- numbers as people write them --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3, 7", (0, 1, 2, 3, 7)), ("7,0", (0, 7)), (" 2 – 3 ,2", (2, 3)), ("", None), (" ALL ", None), ("5-5", (5,))],
)
def test_chosen_numbers(text: str, numbers: tuple[int, ...] | None) -> None:
    assert parse_numbers(text, "layers") == numbers


@pytest.mark.parametrize("text", ["3-0", "x", "1;2", "-1", "1-2-3", "0x3", "1.5", "1,,2", "99999999", "²"])
def test_what_names_no_numbers(text: str) -> None:
    with pytest.raises(InputError, match="names no layers") as caught:
        parse_numbers(text, "layers")
    assert "write" in str(caught.value)


def test_a_script_that_cannot_be_written_says_that_the_snapshot_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(snapshot: Path, path: Path) -> None:
        raise InputError("the disk is full.")

    monkeypatch.setattr("engine.snapshot.export.write_script", fail)
    session, _ = told()
    path = tmp_path / "x.safetensors"
    with pytest.raises(
        InputError, match=r"x\.safetensors' was written, and not the script beside it: the disk is full"
    ):
        written(session, Export(path, 0, with_script=True))
    with SnapshotFile(path) as file:
        assert file.manifest.num_tokens
