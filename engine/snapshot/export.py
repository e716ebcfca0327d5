"""Exports a live session or an opened snapshot, as a snapshot or for other programs. The window and the command line
both use this module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from engine.cache.contract import InPieces
from engine.errors import InputError
from engine.files.atomic import writable_target
from engine.snapshot import npz
from engine.snapshot.convert import (
    is_row_tensor,
    nodes_to,
    script_beside,
    sequence_in,
    session_data,
    write_script,
    write_session,
    write_table,
    write_trace,
)
from engine.snapshot.format import WRITTEN_KIND, Array, LayerEntry
from engine.snapshot.gather import cut, snapshot_of
from engine.snapshot.read import SnapshotFile
from engine.snapshot.write import Snapshot, checksum_of, header_of, pieces, write_snapshot
from engine.wire.exporting import Export, ExportEstimate
from engine.wire.records import StepRecord

if TYPE_CHECKING:
    from engine.session.session import Session

    Source = Session | SnapshotFile


def export(source: Source, command: Export) -> Iterator[tuple[int, int]]:
    """Write what a command asks for. Yields progress (bytes written, of all). Closing the iterator early leaves the
    file that was there before. Raises `InputError` if it cannot be written."""
    writable_target(command.path)  # before anything is computed
    match command.kind:
        case "snapshot":
            yield from _snapshot(source, command)
        case "npz":
            snapshot = _as_numbers(source, command)
            total = _npz_bytes(snapshot)
            for done in npz.write_npz(_members(snapshot), command.path):
                yield done, total
        case "table":
            write_table(_records(command), command.path, command.bookmarks)
        case "trace":
            write_trace(_records(command), command.path)
        case "session":
            write_session(_repeated(source, command), command.path)


def estimate(source: Source, command: Export) -> ExportEstimate:
    """What an export would write, without its records; raises `InputError` if the export would be refused."""
    if command.kind in ("table", "trace", "session"):
        return ExportEstimate(0, 0, 0, "")
    is_snapshot = command.kind == "snapshot"
    snapshot = gathered(source, command) if is_snapshot else _as_numbers(source, command)
    header = len(header_of(snapshot)) if is_snapshot else 0
    num_layers = len(msgspec.json.decode(snapshot.manifest["layers"]))
    num_tokens = int(snapshot.manifest["num_tokens"])
    size = snapshot.num_bytes + header if is_snapshot else _npz_bytes(snapshot)
    return ExportEstimate(size, num_tokens, num_layers, snapshot.manifest["why_not"])


def gathered(source: Source, command: Export) -> Snapshot:
    """The snapshot that a command asks for, before it is written."""
    return cut(source, command) if isinstance(source, SnapshotFile) else snapshot_of(source, command)


def _snapshot(source: Source, command: Export) -> Iterator[tuple[int, int]]:
    script = script_beside(command.path) if command.with_script else None
    snapshot = gathered(source, command)
    total = snapshot.num_bytes
    for done in write_snapshot(snapshot, command.path):
        yield done, total
    if script is not None:
        try:
            write_script(command.path, script)
        except InputError as error:
            raise InputError(
                f"The snapshot '{command.path}' was written, and not the script beside it: {error}"
            ) from None


# ---- for NumPy ---------------------------------------------------------------------------------------------------


def _as_numbers(source: Source, command: Export) -> Snapshot:
    """The tensors of an npz file, with coded rows dequantised."""
    snapshot = gathered(source, replace(command, form="rows", records=()))
    kept = {name: t for name, t in snapshot.tensors.items() if name in npz.SMALL_TENSORS or npz.is_layer_tensor(name)}
    for entry in msgspec.json.decode(snapshot.manifest["layers"], type=tuple[LayerEntry, ...]):
        kept |= {name: torch.from_numpy(array) for name, array in npz.placement(entry).items()}
    return Snapshot(kept, snapshot.manifest)


def _npz_bytes(snapshot: Snapshot) -> int:
    """Bytes of all arrays in the dtypes of NumPy."""
    return sum(math.prod(t.shape) * _numpy_dtype(t).itemsize for t in snapshot.tensors.values())


def _numpy_dtype(tensor: torch.Tensor | InPieces) -> torch.dtype:
    """The dtype of a tensor in NumPy, which has no bfloat16: float32 instead."""
    return torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype


def _members(snapshot: Snapshot) -> Iterator[npz.Member]:
    for name, tensor in snapshot.tensors.items():
        dtype = _numpy_dtype(tensor)
        numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype.str
        yield name, numpy_dtype, tuple(tensor.shape), _arrays(tensor, dtype)


def _arrays(tensor: torch.Tensor | InPieces, dtype: torch.dtype) -> Iterator[Array]:
    for part in pieces(tensor):
        yield np.asarray(part.to(dtype).numpy())


# ---- from the records --------------------------------------------------------------------------------------------


def _records(command: Export) -> tuple[StepRecord, ...]:
    if not command.records:
        raise InputError("There are no steps to write yet: send a prompt first.")
    return command.records


def _repeated(source: Source, command: Export) -> dict[str, Any]:
    if isinstance(source, SnapshotFile):
        return sequence_in(source)
    session, records = source, _records(command)
    info, sequence = session.model.info, session.sequence(command.seq_id)
    is_now = command.num_tokens in (None, sequence.num_tokens)
    at = session.last_step if is_now else records[-1].step
    assert at is not None, "there are records"
    return session_data(
        nodes_to(at, records, session.history.tree.nodes),
        records,
        model=info.name,
        fingerprint=info.fingerprint,
        dtype=info.dtype,
        num_threads=info.num_threads,
        seq_id=command.seq_id,
        token_ids=sequence.token_ids[: sequence.num_tokens] if is_now else (),
        checksum_kind=WRITTEN_KIND,
        checksums=_checksums(session, command),
    )


def _checksums(session: Session, command: Export) -> dict[str, str]:
    """Checksums of K and V at the exported step; empty if its rows are no longer known."""
    try:
        tensors = snapshot_of(session, Export(Path("unwritten"), command.seq_id, command.num_tokens)).tensors
    except InputError:
        return {}
    return {name: checksum_of(tensors[name], WRITTEN_KIND) for name in filter(is_row_tensor, tensors)}
