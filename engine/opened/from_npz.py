"""An npz file of keys and values, opened as the snapshot that it would be."""

from __future__ import annotations

import tempfile
from pathlib import Path

from engine.snapshot.bring import brought_npz
from engine.snapshot.read import SnapshotFile
from engine.snapshot.write import write_snapshot

SUFFIX = ".npz"


def opened_npz(path: Path) -> SnapshotFile:
    """The snapshot of an npz file, in a file of its own whose name is gone already. Raises `InputError` for a file that
    is none, and for one that does not say where its rows stand."""
    with tempfile.TemporaryDirectory(prefix="kvloupe-", ignore_cleanup_errors=True) as folder:
        inside = Path(folder) / "opened.safetensors"
        for _ in write_snapshot(brought_npz(path), inside):
            pass
        file = SnapshotFile(inside)
    file.path = path
    return file
