"""Exports for other programs: a Python script beside a snapshot, the steps as a table or a trace, and a session as a
script that replays it. No torch."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from engine.errors import InputError
from engine.files.atomic import replacing, writable_target, write_text
from engine.history.table import COLUMNS, step_csv, step_table
from engine.history.tree import needed_for
from engine.saved.document import Unusable, check
from engine.saved.named import decoded, encoded
from engine.saved.session import SavedSession
from engine.snapshot.read import SnapshotFile
from engine.spec.bookmark import Bookmark
from engine.spec.cache import cache_name
from engine.spec.codec import PARTS
from engine.spec.model import RESOURCES
from engine.wire.records import SequenceAdded, SequenceStep, StepRecord
from engine.wire.tree import Node

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


# ---- a session as a script that repeats it with `engine` alone and compares the results ------------------------------

SESSION_SCRIPT = RESOURCES / "replay_session.py"
DATA_LINE = 'DATA = json.loads("{}")'
MISSING = (
    "Steps between the first token and the last are missing, and a script repeats all of them: export it where they "
    "were made, or with all steps."
)
MAX_NODES_BYTES = 4 << 20  # limit of the nodes in a snapshot's manifest


def write_session(data: Mapping[str, Any], path: Path) -> None:
    """Write a Python script that repeats the session of `session_data` with `engine` alone and compares every number of
    its steps."""
    text = SESSION_SCRIPT.read_text("utf-8")
    assert DATA_LINE in text
    content = json.dumps(data, separators=(",", ":"))
    write_text(path, text.replace(DATA_LINE, f"DATA = json.loads({content!r})"))


def session_data(nodes: tuple[Node, ...], records: Sequence[StepRecord], **facts: Any) -> dict[str, Any]:
    """The nodes that led to a sequence, as a session in the form of its own file (`resources/session-format.md`), the
    numbers of their steps to compare, and the facts that the script reads: of the model, the `seq_id`, the `token_ids`
    in its cache at the end, and `checksums`, of `checksum_kind`, of K and V at the end by name; empty if unknown."""
    steps = {node.step for node in nodes}
    numbers = {
        record.step: {part.seq_id: _numbers_of(part) for part in record.sequences}
        for record in records
        if record.step in steps
    }
    return {"session": json.loads(encoded(SavedSession(nodes=nodes, live=nodes[-1].step))), "numbers": numbers} | facts


def _numbers_of(part: SequenceStep) -> dict[str, Any]:
    return {
        "entropy": part.entropy,
        "surprisal": part.surprisal,
        "logprobs": {candidate.token_id: candidate.logprob for candidate in part.candidates},
    }


# ---- the nodes to be repeated ----------------------------------------------------------------------------------------


def nodes_to(at: int, records: Iterable[StepRecord], others: Mapping[int, Node]) -> tuple[Node, ...]:
    """The history nodes from the first token to `at`, and those that their changes refer to: recorded steps, and
    `others`. Raises `InputError` if one is missing."""
    known = {**others, **{record.step: Node.of(record) for record in records}}
    found = [known[step] for step in needed_for(at, known.get)]
    here = {node.step for node in found}
    if not found or any(node.parent not in here if node.parent is not None else not node.changes for node in found):
        raise InputError(MISSING)
    return tuple(found)


def unrecorded_nodes(step: int | None, records: Sequence[StepRecord], nodes: Mapping[int, Node]) -> str:
    """The history nodes that led to `step` and are not recorded steps, mainly edits, as JSON in the form of the session
    file. An empty list if a step on the path was not recorded, since then it could not be repeated."""
    recorded = {record.step for record in records}
    at = step
    while at is not None:
        node = nodes.get(at)
        if at not in recorded and (node is None or node.work is not None):
            return "[]"
        at = node.parent if node is not None else None
    try:
        found = nodes_to(step, records, nodes) if step is not None else ()
    except InputError:
        return "[]"
    content = encoded(tuple(node for node in found if node.step not in recorded))
    return content.decode() if len(content) <= MAX_NODES_BYTES else "[]"


def sequence_in(file: SnapshotFile) -> dict[str, Any]:
    """The data of the sequence of a snapshot; raises `InputError` if it has no steps."""
    manifest, records = file.manifest, with_changes(file, records_of(file))
    others = {node.step: node for node in _nodes_in(file)}
    recorded = {record.step for record in records}
    at = manifest.step if manifest.step in recorded | others.keys() else records[-1].step
    assert at is not None, "it is one of those"
    nodes = nodes_to(at, records, others)
    try:
        check(SavedSession(nodes=nodes, live=at))
    except Unusable as error:
        raise InputError(f"'{file.path}' cannot be written as a script: {error}.") from None
    is_whole = all(len(entry.heads) == entry.num_kv_heads for entry in manifest.layers)
    stands_there = at == manifest.step and nodes[-1].cache == manifest.cache_spec
    sums = manifest.checksums if is_whole and stands_there and manifest.form == "stored" else {}
    return session_data(
        nodes,
        records,
        model=manifest.model,
        fingerprint=manifest.fingerprint,
        dtype=manifest.dtype,
        num_threads=0,
        seq_id=manifest.sequence.seq_id,
        token_ids=file.token_ids if stands_there else (),
        checksum_kind=manifest.checksum_kind,
        checksums={name: digits for name, digits in sums.items() if is_row_tensor(name)},
    )


def _nodes_in(file: SnapshotFile) -> tuple[Node, ...]:
    try:
        return decoded(file.manifest.moments, tuple[Node, ...])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(f"'{file.path}' is damaged: its steps cannot be read ({str(error)[:120]}).") from None


def with_changes(file: SnapshotFile, records: list[StepRecord]) -> list[StepRecord]:
    """Add the changes to records of an older program that did not record them: there must be one sequence with its
    prompt, and consecutive steps. Raises `InputError` if there are several sequences, or a step is missing."""
    entry, computed = file.manifest.sequence, 0
    if any(record.changes for record in records):
        return records
    for record in records:
        if [part.seq_id for part in record.sequences] != [entry.seq_id]:
            raise InputError(
                "Steps of several sequences, and what began them was not recorded: export the table instead."
            )
        part = record.sequences[0]
        if part.first_position != computed:
            raise InputError(MISSING)
        computed = part.num_tokens
    prompt = (*file.token_ids, *file.waiting_ids)[: entry.num_prompt_tokens]
    begun = (SequenceAdded(entry.seq_id, prompt, entry.sampling),)
    parents = [None, *(record.step for record in records)]
    return [
        replace(record, parent=parent, changes=() if number else begun)
        for number, (record, parent) in enumerate(zip(records, parents, strict=False))
    ]


def is_row_tensor(name: str) -> bool:
    """Whether a tensor of a snapshot is K or V of a layer, or a part of them."""
    words = name.split(".")
    return len(words) > 2 and words[0] == "layers" and words[2] in PARTS
