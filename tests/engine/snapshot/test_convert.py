"""Snapshots for other programs: a script that goes on with the same tokens, tables, traces, sessions as scripts."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from engine.errors import InputError
from engine.history.table import COLUMNS
from engine.model.loader import LoadedModel, load
from engine.session.session import Session
from engine.snapshot.convert import (
    is_row_tensor,
    records_of,
    sequence_in,
    trace_events,
    write_script,
    write_session,
    write_table,
    write_trace,
)
from engine.snapshot.export import export
from engine.snapshot.read import SnapshotFile
from engine.spec.bookmark import Bookmark, OnStep
from engine.spec.cache import PRESETS
from engine.spec.model import RESOURCES, ModelSpec
from engine.spec.sampling import DrawRule, LogitBias, Prompt, SamplingParams
from engine.wire.exporting import Export
from engine.wire.records import StepRecord
from tests.effort import effort
from tests.engine.snapshot.exports import in_process
from tests.engine.snapshot.sessions import begun, kept, step
from tests.engine.snapshot.test_resume import SPECS

TEXT = "Once upon a time there was a little boy who lived by the sea, and every morning he went down to the"
MODEL = RESOURCES / "demo_model"


@pytest.fixture(scope="module")
def bundled() -> Iterator[LoadedModel]:
    threads = torch.get_num_threads()
    yield load(ModelSpec("bundled", dtype="float32", device="cpu", num_threads=1))
    torch.set_num_threads(threads)


def told(model: LoadedModel, name: str, steps: int = 8, sampling: SamplingParams | None = None) -> Session:
    session = Session(model, PRESETS[name].spec)
    session.submit(Prompt(text=TEXT, sampling=sampling or SamplingParams()))
    for _ in range(steps):
        step(session)
    return session


RUN_BOTH = """
import runpy, sys
sys.argv = ["go.py", sys.argv[1], "--steps", "6"]
runpy.run_path("go.py", run_name="__main__")
assert not [name for name in sys.modules if name.split(".")[0] == "engine"], "it knows nothing of this program"
sys.path.insert(0, {root!r})
sys.argv = ["again.py", "--threads", "1"]
runpy.run_path("again.py", run_name="__main__")
"""


@pytest.mark.parametrize("name", effort([*PRESETS][::2], [*PRESETS]))
def test_the_script_goes_on_with_the_same_tokens_from_every_preset(
    name: str, bundled: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = told(bundled, name)
    with SnapshotFile(kept(session, tmp_path / "a b.safetensors")) as file:
        write_script(file.path, tmp_path / "go.py")
    assert "engine" not in re.findall(r"^(?:from|import) (\w+)", (tmp_path / "go.py").read_text(), re.MULTILINE)
    out = in_process(tmp_path / "go.py", capsys, monkeypatch, str(MODEL), "--steps", "8")
    for _ in range(8):
        step(session)
    assert json.loads(out.splitlines()[0]) == session.sequence(0).token_ids[-8:]


@pytest.mark.parametrize("draws", get_args(DrawRule))
def test_it_samples_as_the_session_does_and_computes_what_is_forced(
    draws: DrawRule,
    bundled: LoadedModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampling = SamplingParams(0.9, top_k=50, top_p=0.9, min_p=0.01, seed=11, draws=draws)
    session = told(bundled, "growing", sampling=sampling)
    session.force(0, (17, 18, 19))
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        write_script(file.path, tmp_path / "go.py")
    out = in_process(tmp_path / "go.py", capsys, monkeypatch, str(MODEL), "--steps", "12")
    for _ in range(12):
        step(session)
    assert json.loads(out.splitlines()[0]) == session.sequence(0).token_ids[-12:]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_it_steers_the_logits_as_the_session_does(
    temperature: float,
    bundled: LoadedModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, biased = (told(bundled, "growing", sampling=SamplingParams(temperature, seed=11)) for _ in range(2))
    for _ in range(10):
        step(plain)
    usual = plain.sequence(0).token_ids[-10:]
    bias = LogitBias(((7, 100.0), (9, 99.5)), (usual[0], usual[-1]), (5, 7, 9, *usual[:2]))
    biased.set_sampling(SamplingParams(temperature, seed=11, bias=bias), 0)
    with SnapshotFile(kept(biased, tmp_path / "x.safetensors")) as file:
        write_script(file.path, tmp_path / "go.py")
    out = in_process(tmp_path / "go.py", capsys, monkeypatch, str(MODEL), "--steps", "10")
    for _ in range(10):
        step(biased)
    expected = biased.sequence(0).token_ids[-10:]
    assert json.loads(out.splitlines()[0]) == expected
    assert expected != usual


def test_scripts_in_a_process_of_their_own(bundled: LoadedModel, tmp_path: Path) -> None:
    """One knows nothing of this program; one repeats a session with it: the same tokens, and the same bytes."""
    session = told(bundled, "kivi-4")
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        write_script(file.path, tmp_path / "go.py")
    for _ in range(6):
        step(session)
    other = Session(bundled, PRESETS["int8"].spec)
    other.submit(Prompt(text=TEXT))
    records = tuple(step(other) for _ in range(6))
    for _ in export(other, Export(tmp_path / "again.py", 0, kind="session", records=records)):
        pass
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = RUN_BOTH.format(root=str(Path(__file__).resolve().parents[3]))
    done = subprocess.run(
        [sys.executable, "-c", code, MODEL], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    ids, *text, first, repeated, rows = done.stdout.split("\n")[:-1]
    assert json.loads(ids) == session.sequence(0).token_ids[-6:]
    assert "\n".join(text) == bundled.tokenizer.decode(json.loads(ids))  # type: ignore[union-attr]
    assert first == "6 steps repeated; the number that is farthest off is off by 0"
    assert json.loads(repeated) == other.sequence(0).token_ids[: other.sequence(0).num_tokens]
    count = 2 * 2 * len(bundled.info.geometry.layers)  # codes and scales, of K and of V
    assert rows == f"{count} of {count} tensors of K and V have the same bytes"


def test_some_of_the_layers_are_not_gone_on_from(
    bundled: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with SnapshotFile(kept(told(bundled, "growing"), tmp_path / "x.safetensors", layers=(0, 2, 3))) as file:
        write_script(file.path, tmp_path / "go.py")
    with pytest.raises(SystemExit, match=r"Layers 1, 4, 5 were not written: decoding cannot go on from it\."):
        in_process(tmp_path / "go.py", capsys, monkeypatch, str(MODEL), "--steps", "5")


@pytest.mark.parametrize("architecture", ["gemma3_text", "mistral", "deepseek_v3", "gpt2"])
def test_windows_and_other_architectures(architecture: str, tmp_path: Path) -> None:
    """The functions of the script, on models that are not on the disk."""
    session = begun(SPECS["growing"], architecture=architecture)
    path = kept(session, tmp_path / "x.safetensors")
    script: dict[str, Any] = {"__name__": "script", "__file__": str(path)}
    exec(compile((RESOURCES / "open_snapshot.py").read_text("utf-8"), "script", "exec"), script)
    model = session.model.model
    model.set_attn_implementation(session.model.native_attention)
    try:
        with script["safe_open"](path, framework="pt") as file:
            cache = script["cache_of"](file, file.metadata(), model.config)
            sequence = json.loads(file.metadata()["sequence"])
        ids = script["go_on"](model, cache, 30, sequence, 6)
    finally:
        model.set_attn_implementation("kvloupe")
    for _ in range(6):
        step(session)
    assert ids == session.sequence(0).token_ids[-6:]


# ---- steps -------------------------------------------------------------------------------------------------------


def with_records(tmp_path: Path, model: LoadedModel, changes: dict[int, str]) -> tuple[Path, list[StepRecord]]:
    """A session that changes its mode at some steps, with all of its records."""
    session = Session(model, PRESETS["growing"].spec)
    session.submit(Prompt(text=TEXT, sampling=SamplingParams(0.8, seed=3)))
    records = []
    for number in range(9):
        if number in changes:
            session.set_cache(PRESETS[changes[number]].spec)
        if number == 4:
            session.force(0, (99, 101))
        records.append(step(session))
    return kept(session, tmp_path / "x.safetensors", records=tuple(records)), records


def test_the_steps_as_a_table(bundled: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    path, records = with_records(tmp_path, bundled, {})
    with SnapshotFile(path) as file:
        write_table(records_of(file), tmp_path / "x.csv")
        with pytest.raises(InputError, match="needs pyarrow"):
            write_table(records_of(file), tmp_path / "x.parquet")
    rows = list(csv.DictReader((tmp_path / "x.csv").open()))
    assert tuple(rows[0]) == COLUMNS
    assert [int(row["step"]) for row in rows] == [record.step for record in records]
    assert [int(row["sampled"]) for row in rows] == [record.sequences[0].sampled for record in records]
    assert not (tmp_path / "x.parquet").exists()


def test_parquet_where_pyarrow_is(bundled: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path, records = with_records(tmp_path, bundled, {})
    with SnapshotFile(path) as file:
        noted = (Bookmark(OnStep(records[1].step), "here"),)
        write_table(records_of(file), tmp_path / "x.parquet", noted)
    assert parquet.read_table(tmp_path / "x.parquet")["notes"].to_pylist()[:3] == ["", '["step: here"]', ""]
    assert parquet.read_table(tmp_path / "x.parquet")["step"].to_pylist() == [record.step for record in records]


def test_the_timings_as_a_trace(bundled: LoadedModel, tmp_path: Path) -> None:
    path, records = with_records(tmp_path, bundled, {})
    with SnapshotFile(path) as file:
        write_trace(records_of(file), tmp_path / "x.json")
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    assert events == list(trace_events(records))
    steps = [event for event in events if event["ph"] == "X" and event["args"]]
    assert [event["args"]["step"] for event in steps] == [record.step for record in records]
    assert steps[3]["dur"] == pytest.approx(records[3].timings.total_ms * 1e3)
    inner = [e for e in events if e["ph"] == "X" and not e["args"]]
    for number, outer in enumerate(steps):
        parts = inner[4 * number : 4 * number + 4]
        assert [part["name"] for part in parts] == ["prepare", "forward", "sample", "observe"]
        assert parts[1]["dur"] == pytest.approx(records[number].timings.forward_ms * 1e3)
        assert parts[0]["ts"] == pytest.approx(outer["ts"])
        assert parts[-1]["ts"] + parts[-1]["dur"] == pytest.approx(outer["ts"] + outer["dur"])
    (counted, *_) = (e for e in events if e["ph"] == "C")
    assert counted["args"]["stored"] == records[0].num_bytes.stored


@pytest.mark.parametrize("changes", [{}, {3: "h2o", 6: "int8"}])
def test_the_session_as_a_script_repeats_every_number(
    changes: dict[int, str], bundled: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path, _ = with_records(tmp_path, bundled, changes)
    with SnapshotFile(path) as file:
        write_session(sequence_in(file), tmp_path / "again.py")
    out = in_process(tmp_path / "again.py", capsys, monkeypatch, "--threads", "1")
    steps, ids, rows = out.splitlines()
    assert steps == "9 steps repeated; the number that is farthest off is off by 0"
    with SnapshotFile(path) as file:
        assert json.loads(ids) == list(file.token_ids)
        same = [name for name in file.entries if is_row_tensor(name)]
    assert rows == f"{len(same)} of {len(same)} tensors of K and V have the same bytes"
    assert same


def test_it_notices_a_number_that_is_another_one(
    bundled: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, records = with_records(tmp_path, bundled, {})
    with SnapshotFile(path) as file:
        write_session(sequence_in(file), tmp_path / "again.py")
    text = (tmp_path / "again.py").read_text()
    entropy = json.dumps(records[5].sequences[0].entropy)
    assert text.count(entropy) == 1
    (tmp_path / "again.py").write_text(text.replace(entropy, "0.25"))
    with pytest.raises(SystemExit) as end:
        in_process(tmp_path / "again.py", capsys, monkeypatch, "--threads", "1")
    assert end.value.code == 1


def test_what_cannot_be_converted(bundled: LoadedModel, tmp_path: Path) -> None:
    path, records = with_records(tmp_path, bundled, {})
    bare = kept(told(bundled, "growing"), tmp_path / "bare.safetensors")
    with SnapshotFile(bare) as file:
        for read in (records_of, sequence_in):
            with pytest.raises(InputError, match="has no steps in it"):
                read(file)
        with pytest.raises(InputError, match="into the folder of"):
            write_script(file.path, tmp_path.parent / "x.py")
    session = told(bundled, "growing", steps=9)
    gap = kept(session, tmp_path / "gap.safetensors", records=tuple(records[2:]))
    with SnapshotFile(gap) as file, pytest.raises(InputError, match="are missing"):
        write_session(sequence_in(file), tmp_path / "x.out")
    assert path.exists()
    assert not (tmp_path / "x.out").exists()


def test_a_script_finds_its_snapshot_whatever_that_is_called(tmp_path: Path) -> None:
    for name in (
        "cache.safetensors",
        'a "b".safetensors',
        "\U0001f511 schl\u00fcssel's.safetensors",
        "undecodable \udcff",
    ):
        write_script(tmp_path / name, path := tmp_path / "go.py")
        line = next(line for line in path.read_text("ascii").splitlines() if line.startswith("SNAPSHOT = "))
        found: dict[str, str] = {}
        exec(line, found)
        assert found["SNAPSHOT"] == name
