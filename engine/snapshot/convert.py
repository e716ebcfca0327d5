"""A snapshot for other programs: a plain script beside it, its steps as a table and as a trace. No torch."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import InputError
from engine.files.atomic import replacing, write_text
from engine.snapshot.read import SnapshotFile
from engine.spec.model import RESOURCES
from engine.spec.presets import cache_name
from engine.wire.records import SequenceStep, StepRecord
from engine.wire.step_table import COLUMNS, step_csv, step_table

SCRIPT, SESSION = RESOURCES / "open_snapshot.py", RESOURCES / "replay_session.py"
DATA_LINE = 'DATA = json.loads("{}")'
NAME_LINE = 'SNAPSHOT = "cache.safetensors"'


def write_script(file: SnapshotFile, path: Path) -> None:
    """A script that goes on from the snapshot with torch, transformers and safetensors alone; it lies beside the
    snapshot, whose name it has."""
    if path.resolve().parent != file.path.resolve().parent:
        raise InputError(f"The script opens the snapshot beside it: write it into the folder of '{file.path}'.")
    text = SCRIPT.read_text("utf-8")
    assert NAME_LINE in text
    write_text(path, text.replace(NAME_LINE, f"SNAPSHOT = {json.dumps(file.path.name)}"))


def write_table(file: SnapshotFile, path: Path) -> None:
    """The steps as a table: CSV, or Parquet where the name ends so and pyarrow is there."""
    records = records_of(file)
    if path.suffix != ".parquet":
        write_text(path, step_csv(records))
        return
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError("Parquet needs pyarrow, which is not installed: install it, or name a .csv file.") from None
    columns = zip(*step_table(records), strict=True)
    with replacing(path) as stream:
        parquet.write_table(arrow.table({name: list(c) for name, c in zip(COLUMNS, columns, strict=True)}), stream)


def records_of(file: SnapshotFile) -> list[StepRecord]:
    """The step records; raises `InputError` where the snapshot has none."""
    records = list(file.records)
    if not records:
        raise InputError(f"'{file.path}' has no steps in it: export it with its steps.")
    return records


# ---- the session as a script ---------------------------------------------------------------------------------------


def write_session(file: SnapshotFile, path: Path) -> None:
    """A Python script that repeats the session with `engine` alone and compares every number of its steps."""
    text = SESSION.read_text("utf-8")
    assert DATA_LINE in text
    data = json.dumps(session_data(file), separators=(",", ":"))
    write_text(path, text.replace(DATA_LINE, f"DATA = json.loads({data!r})"))


def session_data(file: SnapshotFile) -> dict[str, Any]:
    """What is needed to repeat the steps of one sequence, from its first token on; raises `InputError` where a snapshot
    lacks it."""
    manifest, records = file.manifest, records_of(file)
    seq_id = manifest.sequence.seq_id
    if any([step.seq_id for step in record.sequences] != [seq_id] for record in records):
        raise InputError(f"'{file.path}' has steps of several sequences: a script repeats one.")
    steps = [record.sequences[0] for record in records]
    if steps[0].first_position or any(a.num_tokens != b.first_position for a, b in pairwise(steps)):
        raise InputError(f"'{file.path}' lacks steps between its first token and its last: export it with all of them.")
    caches = list(dict.fromkeys(record.cache for record in records))
    prompt = [*file.token_ids, *file.waiting_ids][: manifest.sequence.num_prompt_tokens]
    return {
        "model": manifest.model,
        "fingerprint": manifest.fingerprint,
        "dtype": manifest.dtype,
        "sampling": msgspec.to_builtins(manifest.sequence.sampling),
        "caches": [msgspec.to_builtins(spec) for spec in caches],
        "prompt": prompt,
        "steps": [_step_data(step, caches.index(record.cache)) for record, step in zip(records, steps, strict=True)],
    }


def _step_data(step: SequenceStep, cache: int) -> dict[str, Any]:
    return {
        "cache": cache,
        "fed": list(step.token_ids),
        "num_tokens": step.num_tokens,
        "entropy": step.entropy,
        "surprisal": list(step.surprisal),
        "logprobs": {str(candidate.token_id): candidate.logprob for candidate in step.candidates},
    }


# ---- a trace of timings --------------------------------------------------------------------------------------------


def write_trace(file: SnapshotFile, path: Path) -> None:
    """The timings of all steps in the trace format that Perfetto and Chrome open."""
    write_text(path, json.dumps({"traceEvents": list(trace_events(records_of(file))), "displayTimeUnit": "ms"}))


def trace_events(records: Iterable[StepRecord]) -> Iterable[dict[str, Any]]:
    """A slice for each step, within it one for each phase in the order in which they were done, and the bytes held as a
    counter. Times are microseconds, counted from the begin of the first step."""
    yield {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "KV Loupe"}}
    origin: float | None = None
    for record in records:
        timings = record.timings
        end = record.wall_time * 1e6
        begin = end - timings.total_ms * 1e3
        origin = begin if origin is None else origin
        at = begin - origin
        fed = sum(len(step.token_ids) for step in record.sequences)
        facts = {"step": record.step, "cache": cache_name(record.cache), "tokens": fed}
        yield _slice(f"{record.phase} {record.step}", at, timings.total_ms, facts)
        for name in ("prepare", "forward", "sample", "observe"):
            took_ms = getattr(timings, f"{name}_ms")
            yield _slice(name, at, took_ms, {})
            at += took_ms * 1e3
        counted = {"stored": record.num_bytes.stored, "reserved": record.num_bytes.reserved}
        yield {"name": "cache bytes", "ph": "C", "pid": 1, "ts": end - origin, "args": counted}


def _slice(name: str, at_us: float, took_ms: float, facts: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": 1, "tid": 1, "ts": at_us, "dur": took_ms * 1e3, "args": facts}
