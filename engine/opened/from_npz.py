"""An npz file of keys and values, opened as the snapshot that it would be."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from engine.errors import InputError
from engine.snapshot.bring import brought
from engine.snapshot.npz import from_npz
from engine.snapshot.read import SnapshotFile
from engine.snapshot.write import write_snapshot

SUFFIX = ".npz"


def opened_npz(path: Path) -> SnapshotFile:
    """The snapshot of an npz file, in a file of its own whose name is gone already. Raises `InputError` for a file that
    is none, and for one whose rows do not stand one behind the other from the first token on."""
    pairs, ids = from_npz(path)
    count = None if ids is None else ids.size
    if ids is not None and any(keys.ndim == 4 and keys.shape[2] < ids.size for keys, _ in pairs):
        raise InputError(
            f"'{path}' has fewer rows than its {count:,} tokens, and an npz does not say where they stand: open the "
            "snapshot that it was made from."
        )
    tensors = [(torch.from_numpy(keys.copy()), torch.from_numpy(values.copy())) for keys, values in pairs]
    with tempfile.TemporaryDirectory(prefix="kvloupe-", ignore_cleanup_errors=True) as folder:
        inside = Path(folder) / "opened.safetensors"
        for _ in write_snapshot(brought(tensors, None if ids is None else ids.reshape(-1).tolist()), inside):
            pass
        file = SnapshotFile(inside)
    file.path = path
    return file
