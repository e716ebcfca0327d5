"""From the command to open a snapshot to its first picture: a file of 1 GB over one of 10 MB, and a sparse one of 4 GB.

The files are of the shape of a model of 8 billion parameters, as an export writes them, extremes beside the rows
included; their numbers are zeros that take no room on the disk, and the header and the extremes are real. The clock
begins when the command is sent to an engine that lives already, and ends when the wall is there. Memory is that of a
process of its own, with torch in it, after the wall, a head and a row of the 4 GB file; beside it stands what the same
process has before it opens anything.

    python tests/benchmarks/snapshot_open.py [--short]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.cache.contract import Scattered
from engine.client.thread import ThreadClient
from engine.opened.file import OpenedSnapshot
from engine.snapshot.format import VERSION, LayerEntry, Manifest, manifest_strings
from engine.snapshot.write import LazyTensor, Snapshot, header_of, pyramid_for, pyramid_of
from engine.spec.cache import CacheSpec
from engine.wire.commands import OpenSnapshot, Watch, Watched
from engine.wire.events import Failed, Restarted
from engine.wire.pictures import HeadRequest, RowRequest, WallPicture, WallRequest
from tests.benchmarks.protocol import note_ratios

LAYERS, HEADS, DIMS = 32, 8, 128
BYTES_PER_TOKEN = 2 * LAYERS * HEADS * DIMS * 2
SIZES = {"10 MB": 10 << 20, "1 GB": 1 << 30, "4 GB": 4 << 30}
WALL = (120, 16)  # columns and rows of a thumbnail in a window of 1600 x 1000


def unmade() -> torch.Tensor:
    raise AssertionError("nothing is written but the header")


def sparse(path: Path, num_bytes: int) -> Path:
    """A snapshot of about so many bytes, whose numbers are holes in the file."""
    n = max(1, num_bytes // BYTES_PER_TOKEN)
    heads = tuple(range(HEADS))
    layers = tuple(LayerEntry(i, "full", HEADS, heads, DIMS, DIMS, "bfloat16", n) for i in range(LAYERS))
    pyramid = pyramid_for(n, layers)
    rows = LazyTensor(torch.bfloat16, (1, HEADS, n, DIMS), unmade)
    tensors: dict[str, torch.Tensor | Scattered | LazyTensor] = {
        layer.name(part): rows for layer in layers for part in ("keys", "values")
    }
    for layer in layers:
        tensors |= pyramid_of(lambda *_: unmade(), layer, pyramid, n)
    tensors |= {name: LazyTensor(torch.int64, (1, n), unmade) for name in ("token_ids", "positions")}
    manifest = Manifest(VERSION, n, dtype="bfloat16", cache_spec=CacheSpec(), step=0, layers=layers, pyramid=pyramid)
    snapshot = Snapshot(tensors, manifest_strings(manifest))
    header = header_of(snapshot)
    with path.open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + snapshot.num_bytes)
    return path


def first_picture_ms(client: ThreadClient, path: Path) -> float:
    """From the command to the wall."""
    request = WallRequest(0, 1, 1, "keys", False, *WALL)
    began = time.perf_counter()
    client.send(OpenSnapshot(path, id=1))
    waits_for_file = True
    while True:
        for event in client.drain():
            if isinstance(event, Failed):
                raise SystemExit(event.message)
            if isinstance(event, Restarted) and waits_for_file:
                waits_for_file = False
                client.send(Watch((Watched(request, id=2),)))
            if isinstance(event, WallPicture):
                return (time.perf_counter() - began) * 1e3
        time.sleep(0.0002)


def memory(path: Path) -> None:
    """Print the memory of this process, which is one of its own."""
    own = psutil.Process()
    before = own.memory_info().rss
    snapshot = OpenedSnapshot(path)
    n, step = snapshot.num_tokens, snapshot.last_step or 0
    requests = (
        WallRequest(0, n, n, "keys", False, *WALL),
        HeadRequest(0, n, "keys", 3, 2, 0, n, 800),
        RowRequest(0, n, n // 2),
    )
    for request in requests:
        snapshot.take(request)
    print(
        json.dumps({"before": before, "after": own.memory_info().rss, "read": snapshot.file.bytes_read, "step": step})
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer openings")
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory is not None:
        memory(given.memory)
        return
    with tempfile.TemporaryDirectory() as folder:
        files = {name: sparse(Path(folder) / f"{size}.safetensors", size) for name, size in SIZES.items()}
        client = ThreadClient()
        first_picture_ms(client, files["10 MB"])  # torch is there from here on
        found: dict[str, list[float]] = {name: [] for name in files}
        for _ in range(7 if given.short else 31):
            for name, path in files.items():
                found[name].append(first_picture_ms(client, path))
        client.close(5.0)
        print(f"{'file':>8} {'first picture':>14} {'slowest':>10} {'over 10 MB':>11}")
        for name, times in found.items():
            ratio = statistics.median(np.divide(times, found["10 MB"]))
            if name != "10 MB":
                note_ratios(f"first picture of {name}", "ms", found["10 MB"], times)
            print(f"{name:>8} {statistics.median(times):>11.1f} ms {max(times):>7.1f} ms {ratio:>11.2f}")
        told = subprocess.run(
            [sys.executable, __file__, "--memory", str(files["4 GB"])], capture_output=True, text=True, check=True
        )
        sizes = json.loads(told.stdout)
        after, before, read = (sizes[name] / 2**20 for name in ("after", "before", "read"))
        print(f"memory with 4 GB open: {after:.0f} MiB, {before:.0f} MiB before it; {read:.1f} MiB read")


if __name__ == "__main__":
    main()
