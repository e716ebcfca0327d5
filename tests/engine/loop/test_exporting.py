"""Exports through the loop: progress that never goes back, cancels that leave no trace, and the headless twin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.__main__ import main
from engine.loop import reporter
from engine.snapshot import write
from engine.snapshot.read import SnapshotFile
from engine.spec.sampling import NEWEST_DRAWS
from engine.wire.commands import Cancel, Run, Step
from engine.wire.events import Failed, StateChanged
from engine.wire.exporting import EstimateExport, Export, ExportCancelled, Exported, ExportEstimate
from engine.wire.records import StepRecord
from tests.engine.loop.driver import Driver, prompt
from tests.engine.tiny import write_config

OLD = b"what was there before"


@pytest.fixture
def begun(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Seven steps behind a prompt; everything that is written is told."""
    monkeypatch.setattr(write, "CHUNK_BYTES", 256)
    monkeypatch.setattr(reporter, "PROGRESS_INTERVAL_S", -1.0)
    driver.send(prompt(12, draws=NEWEST_DRAWS), Step(), Run(6))
    driver.rest()
    return driver


def records_of(driver: Driver) -> tuple[StepRecord, ...]:
    return tuple(driver.of(StepRecord))


def test_progress_is_told_in_bytes_and_never_goes_back(begun: Driver, tmp_path: Path) -> None:
    begun.send(Export(tmp_path / "x.safetensors", 0, records=records_of(begun), id=5))
    begun.wait_for(Exported)
    begun.rest()
    works = [event.status.work for event in begun.of(StateChanged) if event.status.work is not None]
    told = [work for work in works if work.label == "Writing x.safetensors"]
    assert len(told) > 10
    assert [work.done for work in told] == sorted(work.done for work in told)
    assert {work.reply_to for work in told} == {5}
    assert all(work.can_cancel and work.bytes_per_s is not None for work in told)
    assert told[-1].done == told[-1].total
    assert told[-1].bytes_per_s
    assert begun.status.work is None


@pytest.mark.parametrize("kind", ["snapshot", "npz"])
def test_a_cancel_in_the_middle_leaves_the_old_file(
    kind: Any, begun: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "x"
    path.parent.mkdir()
    path.write_bytes(OLD)
    real = write.pieces

    def cancelled(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        for number, part in enumerate(real(tensor)):
            if number == 1:
                begun.loop.send(Cancel())
            yield part

    monkeypatch.setattr("engine.snapshot.export.pieces", cancelled)
    monkeypatch.setattr(write, "pieces", cancelled)
    begun.send(Export(path, 0, kind=kind, id=8))
    assert begun.wait_for(ExportCancelled) == ExportCancelled(path, reply_to=8)
    begun.rest()
    assert not begun.of(Exported)
    assert path.read_bytes() == OLD
    assert [p.name for p in path.parent.iterdir()] == ["x"]
    monkeypatch.undo()
    begun.send(Export(path, 0, kind=kind))
    begun.wait_for(Exported)
    assert path.read_bytes() != OLD


def test_two_exports_to_one_name_are_whole_one_after_the_other(begun: Driver, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    begun.send(Export(path, 0, notes="first"), Export(path, 0, 13, notes="second"))
    begun.wait_for(Exported, 2)
    with SnapshotFile(path) as file:
        assert (file.manifest.notes, file.manifest.num_tokens) == ("second", 13)
    assert [p.name for p in tmp_path.iterdir() if p.name != "config.json"] == ["x.safetensors"]


def test_an_estimate_answers_or_says_why_not(begun: Driver, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    begun.send(EstimateExport(Export(path, 0), id=3))
    found = begun.wait_for(ExportEstimate)
    begun.send(Export(path, 0))
    assert begun.wait_for(Exported).num_bytes == found.num_bytes
    assert found.reply_to == 3
    begun.send(EstimateExport(Export(path, 0, layers=(9,)), id=4))
    failed = begun.wait_for(Failed)
    assert (failed.reply_to, failed.message) == (
        4,
        "There is no layer 9 to export: choose among 0, 1.",
    )


def test_what_the_loop_exports_is_what_the_command_line_exports(begun: Driver, tmp_path: Path) -> None:
    ids = ",".join(map(str, begun.session.sequence(0).token_ids[:12]))
    steps = begun.session.sequence(0).num_tokens - 12 + 1
    here, there = tmp_path / "window.safetensors", tmp_path / "headless.safetensors"
    command = Export(here, 0, notes="both", records=records_of(begun), layers=(1,), kv_heads=(0,))
    begun.send(command)
    begun.wait_for(Exported)
    source = f"shape:{write_config('llama', tmp_path)}"
    arguments = ["run", "--model", source, "--token-ids", ids, "--steps", str(steps), "--threads", "1", "--cache"]
    arguments += ["growing", "--export", str(there), "--notes", "both", "--export-layers", "1", "--export-heads", "0"]
    assert main(arguments) == 0
    with SnapshotFile(here) as a, SnapshotFile(there) as b:
        assert set(a.entries) == set(b.entries)
        for name in set(a.entries) - {"records", "records.offsets"}:
            assert a.array(name).tobytes() == b.array(name).tobytes(), name
        told = ("step", "phase", "cache")
        assert [[getattr(r, t) for t in told] for r in a.records] == [[getattr(r, t) for t in told] for r in b.records]
        ours, theirs = a.header.metadata, b.header.metadata
        differ = {name for name in ours if ours[name] != theirs[name]}
        assert differ <= {"created", "checksums", "header_checksum", "sequence"}
        sequences = [json.loads(each["sequence"]) for each in (ours, theirs)]
        assert [{**each, "stop": None} for each in sequences] == [{**sequences[0], "stop": None}] * 2
