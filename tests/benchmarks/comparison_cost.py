"""What a comparison of two cache modes costs over the two runs one after the other; same threads, same model, one run.

    python tests/benchmarks/comparison_cost.py [--short] [--threads 2] [--context 512] [--steps 100] [--against
    kivi-2,h2o]

Both ways compute the same tokens; the comparison compares logits, newest rows and attention at every step. Seconds of
processor time, which what else runs on the machine hardly changes. Target: at most 1.2."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.analysis.comparison import Comparison, ComparisonFollower, LiveRun
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_named
from engine.spec.sampling import Prompt
from tests.benchmarks.protocol import header, paired, progress, smollm_shape


def begun(model: LoadedModel, cache: CacheSpec, ids: tuple[int, ...], steps: int) -> tuple[Session, int]:
    """A session whose sequence has its next tokens forced."""
    session = Session(model, cache)
    seq_id = session.submit(Prompt(token_ids=ids))
    session.force(seq_id, ids[: steps + 1])
    return session, seq_id


def alone(model: LoadedModel, caches: tuple[CacheSpec, ...], ids: tuple[int, ...], steps: int) -> float:
    """Seconds of processor time of the runs one after the other."""
    began = time.process_time()
    for cache in caches:
        session, seq_id = begun(model, cache, ids, steps)
        while session.sequence(seq_id).num_tokens < len(ids) + steps:
            session.step()
    return time.process_time() - began


def together(model: LoadedModel, a: CacheSpec, b: CacheSpec, ids: tuple[int, ...], steps: int) -> float:
    """Seconds of processor time of both in lock-step."""
    began = time.process_time()
    session, seq_id = begun(model, a, ids, steps)
    comparison: Comparison | None = None
    while session.sequence(seq_id).num_tokens < len(ids) + steps:
        session.step()
        if comparison is None:
            follower = ComparisonFollower(model, b, ids)
            comparison = Comparison(LiveRun(session, seq_id, "A"), follower.run, session.text_of, follower)
        for _ in comparison.catch_up():
            pass
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--against", default="kivi-2,h2o")
    args = parser.parse_args()
    model, steps = smollm_shape(args.threads), 30 if args.short else args.steps
    ids = tuple(torch.randint(3, 49_000, (args.context,), generator=torch.Generator().manual_seed(0)).tolist())
    print(f"SmolLM2-135M's shape, float32, {args.threads} threads, {args.context} tokens, {steps} steps; CPU seconds")
    print(header("two runs", "comparison"))
    for name in args.against.split(","):
        progress(f"growing and {name} …")
        caches = CacheSpec(), cache_named(name)

        def one(caches: tuple[CacheSpec, CacheSpec] = caches) -> float:
            return alone(model, caches, ids, steps)

        def two(caches: tuple[CacheSpec, CacheSpec] = caches) -> float:
            return together(model, *caches, ids, steps)

        print(paired(one, two, 2 if args.short else 7).row(f"growing and {name}", "s"), flush=True)


if __name__ == "__main__":
    main()
