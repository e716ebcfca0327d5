"""What writing and opening a snapshot costs.

    python tests/benchmarks/snapshot_speed.py [--short]

Writing: against `write` and `fsync` of the same bytes, and the memory that it takes beside the cache. Opening: from the
path to the rows of one head on the screen (1,000 of them), a large file over a small one. Both files are warm.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.snapshot.bring import brought
from engine.snapshot.read import SnapshotFile
from engine.snapshot.write import CHUNK_BYTES, Snapshot, write_snapshot
from tests.benchmarks.protocol import header, paired

HEADS, DIM, LAYERS = 8, 64, 8
PAIRS, SHORT_PAIRS = 7, 2


def snapshot_of(num_bytes: int) -> Snapshot:
    """A cache of about so many bytes, of random numbers."""
    num_tokens = num_bytes // (2 * LAYERS * HEADS * DIM * 4)
    shape = (1, HEADS, num_tokens, DIM)
    return brought([(torch.randn(shape), torch.randn(shape)) for _ in range(LAYERS)], list(range(num_tokens)))


def plain_write(snapshot: Snapshot, path: Path) -> float:
    """Seconds to write the same bytes, and nothing but them."""
    parts = [t for t in snapshot.tensors.values() if isinstance(t, torch.Tensor)]
    views = [memoryview(t.contiguous().view(torch.uint8).numpy().reshape(-1)) for t in parts]
    began = time.perf_counter()
    with path.open("wb") as stream:
        for view in views:
            for start in range(0, len(view), CHUNK_BYTES):
                stream.write(view[start : start + CHUNK_BYTES])
        stream.flush()
        os.fsync(stream.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return took


def our_write(snapshot: Snapshot, path: Path) -> float:
    began = time.perf_counter()
    for _ in write_snapshot(snapshot, path):
        pass
    took = time.perf_counter() - began
    path.unlink()
    return took


def first_look_ms(path: Path) -> float:
    began = time.perf_counter()
    with SnapshotFile(path) as file:
        file.rows(LAYERS // 2, "keys", HEADS // 2, range(1000))
    return (time.perf_counter() - began) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="100 MB, 2 pairs")
    parser.add_argument("--megabytes", type=int, default=1000)
    arguments = parser.parse_args()
    megabytes, pairs = (100, SHORT_PAIRS) if arguments.short else (arguments.megabytes, PAIRS)
    large, small = snapshot_of(megabytes * 10**6), snapshot_of(10 * 10**6)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        our_write(large, folder / "x")
        extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(header("plain", "ours"))
        print(paired(lambda: plain_write(large, folder / "a"), lambda: our_write(large, folder / "b"), pairs).row(
            f"write {large.num_bytes / 1e9:.2f} GB", "s"
        ))  # fmt: skip
        print(f"memory beside the cache: {extra:.0f} MiB\n")
        for snapshot, path in ((large, folder / "large"), (small, folder / "small")):
            for _ in write_snapshot(snapshot, path):
                pass
        print(header("10 MB", f"{megabytes} MB"))
        looks = paired(lambda: first_look_ms(folder / "small"), lambda: first_look_ms(folder / "large"), 10 * pairs)
        print(looks.row("open and look at 1,000 rows", "ms"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
