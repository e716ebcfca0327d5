"""Writes a session as a Python script that repeats it with `engine` alone and compares the results. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from engine.errors import InputError
from engine.files.atomic import write_text
from engine.history.tree import needed_for
from engine.saved.document import Unusable, check
from engine.saved.named import decoded, encoded
from engine.saved.session import SavedSession
from engine.snapshot.convert import records_of
from engine.snapshot.format import PARTS
from engine.snapshot.read import SnapshotFile
from engine.spec.model import RESOURCES
from engine.wire.records import SequenceAdded, SequenceStep, StepRecord
from engine.wire.tree import Node

SCRIPT = RESOURCES / "replay_session.py"
DATA_LINE = 'DATA = json.loads("{}")'
MISSING = (
    "Steps between the first token and the last are missing, and a script repeats all of them: export it where they "
    "were made, or with all steps."
)
MAX_NODES_BYTES = 4 << 20  # limit of the nodes in a snapshot's manifest


def write_session(data: Mapping[str, Any], path: Path) -> None:
    """Write a Python script that repeats the session of `session_data` with `engine` alone and compares every number of
    its steps."""
    text = SCRIPT.read_text("utf-8")
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
