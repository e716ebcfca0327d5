"""A session for other programs: a plain script beside its snapshot, its steps as table, trace, script. No torch."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import InputError
from engine.files.atomic import replacing, writable_target, write_text
from engine.snapshot.format import PARTS
from engine.snapshot.read import SnapshotFile
from engine.spec.bookmark import Bookmark
from engine.spec.model import RESOURCES
from engine.spec.presets import cache_name
from engine.spec.sampling import SamplingParams
from engine.wire.changes import Change, SequenceAdded
from engine.wire.records import SequenceStep, StepRecord
from engine.wire.step_table import COLUMNS, step_csv, step_table

SCRIPT, SESSION = RESOURCES / "open_snapshot.py", RESOURCES / "replay_session.py"
DATA_LINE = 'DATA = json.loads("{}")'
NAME_LINE = 'SNAPSHOT = "cache.safetensors"'
FIRST_WORDS = b'"""Go on from a snapshot of KV Loupe'


def write_script(snapshot: Path, path: Path) -> None:
    """A script that goes on from a snapshot with torch, transformers and safetensors alone; it lies beside the
    snapshot, whose name it has."""
    check_script(path)
    if path.resolve().parent != snapshot.resolve().parent:
        raise InputError(f"The script opens the snapshot beside it: write it into the folder of '{snapshot}'.")
    text = SCRIPT.read_text("utf-8")
    assert NAME_LINE in text
    write_text(path, text.replace(NAME_LINE, f"SNAPSHOT = {json.dumps(snapshot.name)}"))


def script_beside(snapshot: Path) -> Path:
    """Where the script of a snapshot goes; raises `InputError` where something else is there already."""
    path = snapshot.with_suffix(".py")
    if path == snapshot:
        raise InputError(f"The script would be called '{path}' like its snapshot: end the snapshot in .safetensors.")
    check_script(path)
    return path


def check_script(path: Path) -> None:
    """Refuses to replace a file that is no such script."""
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
    """The steps, and what is noted of them, as a table: CSV, or Parquet where the name ends so and pyarrow is there."""
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
    """The step records; raises `InputError` where the snapshot has none."""
    records = list(file.records)
    if not records:
        raise InputError(f"'{file.path}' has no steps in it: export it with its steps.")
    return records


# ---- the session as a script ---------------------------------------------------------------------------------------


class OneSequence(msgspec.Struct, frozen=True):
    """A sequence with the records of all steps that led to it. `checksums`, of `checksum_kind`, are those of K and V
    after the last of them, by name; none where it stands elsewhere now."""

    model: str
    fingerprint: str
    dtype: str
    seq_id: int
    sampling: SamplingParams
    prompt: tuple[int, ...]
    records: Sequence[StepRecord]
    checksum_kind: str
    checksums: dict[str, str]


def write_session(told: OneSequence, path: Path) -> None:
    """A Python script that repeats the session with `engine` alone and compares every number of its steps."""
    text = SESSION.read_text("utf-8")
    assert DATA_LINE in text
    data = json.dumps(session_data(told), separators=(",", ":"))
    write_text(path, text.replace(DATA_LINE, f"DATA = json.loads({data!r})"))


def sequence_in(file: SnapshotFile) -> OneSequence:
    """The sequence of a snapshot; raises `InputError` where it has no steps."""
    manifest, records = file.manifest, records_of(file)
    is_whole = all(len(entry.heads) == entry.num_kv_heads for entry in manifest.layers)
    last = records[-1].of(manifest.sequence.seq_id)
    is_at_its_end = last is not None and last.num_tokens == manifest.num_tokens
    stands_there = manifest.cache_spec == records[-1].cache and is_at_its_end
    sums = manifest.checksums if is_whole and stands_there and manifest.form == "stored" else {}
    return OneSequence(
        manifest.model,
        manifest.fingerprint,
        manifest.dtype,
        manifest.sequence.seq_id,
        manifest.sequence.sampling,
        (*file.token_ids, *file.waiting_ids)[: manifest.sequence.num_prompt_tokens],
        records,
        manifest.checksum_kind,
        {name: digits for name, digits in sums.items() if is_row_tensor(name)},
    )


def is_row_tensor(name: str) -> bool:
    """Whether a tensor of a snapshot is K or V of a layer, or a part of them."""
    words = name.split(".")
    return len(words) > 2 and words[0] == "layers" and words[2] in PARTS


def session_data(told: OneSequence) -> dict[str, Any]:
    """What is needed to repeat all steps from the first token on, and what was done between them: turns of a
    conversation, forks, forced tokens, other modes. Raises `InputError` where something of it is missing."""
    records = told.records
    check_all_are_there(told)
    caches = list(dict.fromkeys(record.cache for record in records))
    changes: list[tuple[Change, ...]] = [record.changes for record in records]
    if not changes[0]:  # they were recorded without: there is one sequence, with its prompt
        changes[0] = (SequenceAdded(told.seq_id, told.prompt, told.sampling),)
    return {
        "model": told.model,
        "fingerprint": told.fingerprint,
        "dtype": told.dtype,
        "seq_id": told.seq_id,
        "caches": [msgspec.to_builtins(spec) for spec in caches],
        "steps": [
            {
                "step": record.step,
                "cache": caches.index(record.cache),
                "changes": msgspec.to_builtins(made),
                "parts": [_part_data(part) for part in record.sequences],
            }
            for record, made in zip(records, changes, strict=True)
        ],
        "checksum_kind": told.checksum_kind,
        "checksums": told.checksums,
    }


def check_all_are_there(told: OneSequence) -> None:
    """Refuse steps that do not follow on each other from the first token on."""
    records = told.records
    if any(record.changes for record in records):
        is_whole = records[0].parent is None and bool(records[0].changes)
        is_whole &= all(a.step == b.parent for a, b in pairwise(records))
    elif any([step.seq_id for step in record.sequences] != [told.seq_id] for record in records):
        raise InputError("Steps of several sequences, and what began them was not recorded: export the table instead.")
    else:
        steps = [record.sequences[0] for record in records]
        is_whole = not steps[0].first_position and all(a.num_tokens == b.first_position for a, b in pairwise(steps))
    if not is_whole:
        raise InputError(
            "Steps between the first token and the last are missing, or something was edited by hand between them: a "
            "script repeats all of them. Save the session instead, which keeps edits."
        )


def _part_data(part: SequenceStep) -> dict[str, Any]:
    return {
        "seq_id": part.seq_id,
        "fed": list(part.token_ids),
        "num_tokens": part.num_tokens,
        "entropy": part.entropy,
        "surprisal": list(part.surprisal),
        "logprobs": {str(candidate.token_id): candidate.logprob for candidate in part.candidates},
    }


# ---- a trace of timings --------------------------------------------------------------------------------------------


def write_trace(records: Iterable[StepRecord], path: Path) -> None:
    """The timings of all steps in the trace format that Perfetto and Chrome open."""
    write_text(path, json.dumps({"traceEvents": list(trace_events(records)), "displayTimeUnit": "ms"}))


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
