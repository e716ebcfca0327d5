"""Exports for other programs: a Python script beside a snapshot, and the steps as a table or a trace. No torch."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engine.errors import InputError
from engine.files.atomic import replacing, writable_target, write_text
from engine.snapshot.read import SnapshotFile
from engine.spec.bookmark import Bookmark
from engine.spec.cache import cache_name
from engine.spec.model import RESOURCES
from engine.wire.exporting import COLUMNS, step_csv, step_table
from engine.wire.records import StepRecord

SCRIPT = RESOURCES / "open_snapshot.py"
NAME_LINE = 'SNAPSHOT = "cache.safetensors"'
FIRST_WORDS = b'"""Go on from a snapshot of KV Loupe'


def write_script(snapshot: Path, path: Path) -> None:
    """Write a script that continues from a snapshot with torch, transformers and safetensors alone. It must be in the
    folder of the snapshot, whose name it contains."""
    check_script(path)
    if path.resolve().parent != snapshot.resolve().parent:
        raise InputError(f"The script opens the snapshot beside it: write it into the folder of '{snapshot}'.")
    text = SCRIPT.read_text("utf-8")
    assert NAME_LINE in text
    write_text(path, text.replace(NAME_LINE, f"SNAPSHOT = {snapshot.name!a}"))


def script_beside(snapshot: Path) -> Path:
    """The path of a snapshot's script; raises `InputError` if another file is there."""
    path = snapshot.with_suffix(".py")
    if path == snapshot:
        raise InputError(f"The script would be called '{path}' like its snapshot: end the snapshot in .safetensors.")
    check_script(path)
    return path


def check_script(path: Path) -> None:
    """Raise `InputError` if there is a file at `path` that is no such script, so that it is not replaced."""
    try:
        with writable_target(path).open("rb") as stream:
            is_ours = stream.read(len(FIRST_WORDS)) == FIRST_WORDS
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror}): give the snapshot another name.") from None
    if not is_ours:
        raise InputError(
            f"'{path}' is there and no script of a snapshot: rename it, or give the snapshot another name."
        )


def write_table(records: Sequence[StepRecord], path: Path, bookmarks: Sequence[Bookmark] = ()) -> None:
    """Write the steps, with bookmarks, as a table: Parquet if the file name ends so and pyarrow is installed, else
    CSV."""
    if path.suffix != ".parquet":
        write_text(path, step_csv(records, bookmarks))
        return
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError("Parquet needs pyarrow, which is not installed: install it, or name a .csv file.") from None
    columns = zip(*step_table(records, bookmarks), strict=True)
    with replacing(path) as stream:
        parquet.write_table(arrow.table({name: list(c) for name, c in zip(COLUMNS, columns, strict=True)}), stream)


def records_of(file: SnapshotFile) -> list[StepRecord]:
    """The step records; raises `InputError` if the snapshot has none."""
    records = list(file.records)
    if not records:
        raise InputError(f"'{file.path}' has no steps in it: export it with its steps.")
    return records


# ---- a trace of timings --------------------------------------------------------------------------------------------


def write_trace(records: Iterable[StepRecord], path: Path) -> None:
    """Write the timings of all steps in the trace format of Perfetto and Chrome."""
    write_text(path, json.dumps({"traceEvents": list(trace_events(records)), "displayTimeUnit": "ms"}))


def trace_events(records: Iterable[StepRecord]) -> Iterable[dict[str, Any]]:
    """The events of a trace: one slice per step, in it one per phase in the order of execution, and the bytes of the
    cache as a counter. Times are in microseconds from the beginning of the first step."""
    yield {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "KV Loupe"}}
    origin: float | None = None
    for record in records:
        timings = record.timings
        end = record.wall_time * 1e6
        begin = end - timings.total_ms * 1e3
        origin = begin if origin is None else origin
        at = begin - origin
        computed = sum(len(step.token_ids) for step in record.sequences)
        facts = {"step": record.step, "cache": cache_name(record.cache), "tokens": computed}
        yield _slice(f"{record.phase} {record.step}", at, timings.total_ms, facts)
        for name in ("prepare", "forward", "sample", "observe"):
            took_ms = getattr(timings, f"{name}_ms")
            yield _slice(name, at, took_ms, {})
            at += took_ms * 1e3
        counted = {"stored": record.num_bytes.stored, "reserved": record.num_bytes.reserved}
        yield {"name": "cache bytes", "ph": "C", "pid": 1, "ts": end - origin, "args": counted}


def _slice(name: str, at_us: float, took_ms: float, facts: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": 1, "tid": 1, "ts": at_us, "dur": took_ms * 1e3, "args": facts}
