"""Write a cache as one safetensors file: atomically, with progress, and without a second copy of it in memory.

See `engine.files.atomic` for how."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.errors import InputError
from engine.files.atomic import replacing
from engine.look.rows_at import RowsAt
from engine.model.loader import LoadedModel

FORMAT = "kvloupe-snapshot"
FORMAT_VERSION = 1
CHUNK_BYTES = 8 << 20

DTYPE_CODES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What is to be written: tensors by name, and the manifest, all strings."""

    tensors: Mapping[str, torch.Tensor]
    manifest: Mapping[str, str]

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


def snapshot_of(
    model: LoadedModel,
    past: RowsAt,
    token_ids: list[int],
    cache_name: str,
    seed: int,
    step: int | None,
    notes: str,
) -> Snapshot:
    """The rows of every layer that has K and V, as views, with what one must know to use them. Refuses a step whose
    rows are not known any more."""
    if not past.is_known:
        raise InputError("The rows of that step are no longer known as they were: rewind there first, then export.")
    num_tokens = past.num_tokens
    tensors: dict[str, torch.Tensor] = {
        "token_ids": torch.tensor([token_ids[:num_tokens]]),
        "positions": torch.arange(num_tokens)[None],
    }
    first_positions = {}
    for layer in model.info.geometry.attention_layers:
        rows = past.rows(layer.index)
        if rows is None:
            continue
        tensors[f"layers.{layer.index}.keys"] = rows.keys
        tensors[f"layers.{layer.index}.values"] = rows.values
        first_positions[layer.index] = rows.first
        if rows.positions is not None:
            tensors[f"layers.{layer.index}.positions"] = rows.positions
    if not first_positions:
        raise InputError("There is no K and V to export yet: run a prompt in a model and a cache mode that keep them.")
    info = model.info
    manifest = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "model": info.name,
        "architecture": info.architecture,
        "fingerprint": info.fingerprint,
        "random_weights": json.dumps(info.random_weights),
        "config": model.model.config.to_json_string(use_diff=False),
        "cache": cache_name,
        "provenance": past.provenance,
        "dtype": info.dtype,
        "seed": str(seed),
        "step": json.dumps(step),
        "num_tokens": str(num_tokens),
        "layer_kinds": json.dumps([layer.kind for layer in info.geometry.layers]),
        "first_positions": json.dumps(first_positions),
        "notes": notes,
    }
    return Snapshot(tensors, manifest)


def write_snapshot(snapshot: Snapshot, path: Path) -> Iterator[int]:
    """Write, yielding the bytes written so far. Closing the iterator early leaves no trace.

    Raises `InputError` when the place cannot be written or the disk is full; the old file, if any, stays as it was.
    """
    with replacing(path) as stream:
        stream.write(header_of(snapshot))
        done = 0
        for tensor in snapshot.tensors.values():
            for part in byte_chunks(tensor):
                stream.write(part)
                done += len(part)
                yield done


def header_of(snapshot: Snapshot) -> bytes:
    """The safetensors header: its length as eight little-endian bytes, then JSON padded to a multiple of eight."""
    entries: dict[str, object] = {"__metadata__": dict(snapshot.manifest)}
    offset = 0
    for name, tensor in snapshot.tensors.items():
        size = tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": DTYPE_CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def byte_chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in order, a bounded piece at a time: no copy of the whole is ever made."""
    rows = tensor.flatten(0, -3) if tensor.dim() > 2 else tensor[None]
    for matrix in rows:
        row_bytes = max(1, matrix[0].numel() * matrix.element_size()) if matrix.dim() and matrix.shape[0] else 1
        for part in matrix.split(max(1, CHUNK_BYTES // row_bytes)):
            yield memoryview(part.contiguous().cpu().view(torch.uint8).numpy().reshape(-1))
