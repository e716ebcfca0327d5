"""What writing a snapshot costs over writing and flushing the same bytes, and how much memory it takes.

    python tests/benchmarks/snapshot_write.py [--short] [--megabytes 1024] [--caches growing,paged] [--folder .]

Target: at least 0.8 of the speed of the plain writes (a ratio of at most 1.25), at most 64 MB beside the cache. CPU
seconds of both are told as well: what else runs on the machine does not change them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
import torch

from engine.cache.contract import StoredCache, StoredLayer, StoredPart
from engine.history.state import SequenceState, SharedList
from engine.model.loader import LoadedModel, load
from engine.session.session import Session
from engine.session.states import LiveSequence
from engine.snapshot.export import export
from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.model import ModelSpec
from engine.spec.sampling import SamplingParams
from engine.wire.exporting import Export
from tests.benchmarks.protocol import header, paired, progress

LAYERS, HEADS, DIM, CHUNK = 16, 8, 64, 8 << 20
TOKEN_BYTES = LAYERS * 2 * HEADS * DIM * 4


def wide_model() -> LoadedModel:
    """A model of small layers with a wide cache."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": DIM,
        "hidden_size": 64,
        "intermediate_size": 64,
        "vocab_size": 256,
        "max_position_embeddings": 1 << 20,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), "utf-8")
        return load(ModelSpec(f"shape:{path}", dtype="float32", device="cpu"))


def filled(model: LoadedModel, num_tokens: int, spec: CacheSpec) -> Session:
    """A session whose cache holds random rows of so many tokens."""
    session, layers = Session(model, CacheSpec("growing")), {}
    for index in range(LAYERS):
        keys, values = (StoredPart({"rows": torch.randn(1, HEADS, num_tokens, DIM)}) for _ in range(2))
        layers[index] = StoredLayer(keys, values, num_tokens, num_tokens, torch.float32)
    cache = session.live.mode.new_cache(0, 0)
    cache.restore(StoredCache(num_tokens, layers))
    sequence = SequenceState(SharedList([3] * num_tokens), num_tokens, SamplingParams(), num_tokens)
    session.live.add(LiveSequence(0, sequence, cache))
    session.history.begin_at(0, 0, sequence, session.cache, None, {})
    if spec != session.cache:
        session.set_cache(tuned(spec, num_pages=num_tokens // spec.page_size + 2) if spec.is_paged else spec)
    return session


def plain_write(source: Path, target: Path) -> float:
    """Seconds to write and flush the bytes of a file that is in memory."""
    content = memoryview(source.read_bytes())
    began = time.perf_counter()
    with target.open("wb") as stream:
        for start in range(0, len(content), CHUNK):
            stream.write(content[start : start + CHUNK])
        stream.flush()
        os.fsync(stream.fileno())
    took = time.perf_counter() - began
    target.unlink()
    return took


def cpu_of(work: Callable[[], float]) -> float:
    """CPU seconds of all threads."""
    began = time.process_time()
    work()
    return time.process_time() - began


def snapshot_write(session: Session, target: Path) -> float:
    """Seconds to write a snapshot to a new file, as the plain bytes are: deleting an old one would take time."""
    target.unlink(missing_ok=True)
    began = time.perf_counter()
    for _ in export(session, Export(target, 0)):
        pass
    return time.perf_counter() - began


def extra_memory(session: Session, target: Path) -> int:
    """Bytes of the process while it writes, at most, less those before."""
    process, peak, is_done = psutil.Process(), 0, threading.Event()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # heap memory left by earlier writes would hide what this one takes
    before = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    snapshot_write(session, target)
    is_done.set()
    thread.join()
    return max(0, peak - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--caches", default="growing,paged")
    parser.add_argument("--folder", type=Path, default=Path("."))
    args = parser.parse_args()
    megabytes = 256 if args.short else args.megabytes
    num_tokens, model = megabytes * 1_000_000 // TOKEN_BYTES, wide_model()
    print(f"{LAYERS} layers, {num_tokens:,} tokens, {num_tokens * TOKEN_BYTES / 1e6:,.0f} MB of K and V; seconds")
    print(header("write", "snapshot"))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name in args.caches.split(","):
            progress(f"{name} …")
            session, target = filled(model, num_tokens, cache_named(name)), Path(folder) / "x.safetensors"
            snapshot_write(session, target)

            def plain(target: Path = target) -> float:
                return plain_write(target, target.with_name("plain"))

            def ours(target: Path = target, session: Session = session) -> float:
                return snapshot_write(session, target)

            found = paired(plain, ours, 3 if args.short else 7)
            gigabytes = target.stat().st_size / 1e9
            extra = extra_memory(session, target) / 1e6
            fastest = gigabytes / min(found.b)
            cpu = f"CPU {cpu_of(plain):.2f} and {cpu_of(ours):.2f} s"
            print(found.row(name, "s"), f" {fastest:.2f} GB/s, {extra:.0f} MB beside the cache, {cpu}", flush=True)
            del session


if __name__ == "__main__":
    main()
