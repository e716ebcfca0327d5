"""Tokens per second of eight paged sequences decoded together, over those of one; same model, one run.

    python tests/benchmarks/batch_speed.py [--short] [--threads 2] [--contexts 32,1024] [--batch 8]

The sequences differ in length by one token each, so that nothing is padded away. Target: 2.5 times as many.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.presets import cache_preset
from engine.spec.sampling import Prompt
from tests.benchmarks.protocol import header, paired, progress, smollm_shape


def decoding(model: LoadedModel, batch: int, context: int) -> Session:
    """A session that has read so many prompts, the first of `context` tokens."""
    session = Session(model, cache_preset("paged").spec)
    for number in range(batch):
        session.submit(Prompt(token_ids=tuple(range(3 + number, 3 + context))))
    while session.is_prefilling:
        session.step()
    session.step()
    return session


def speed(session: Session, steps: int) -> float:
    """Tokens per second of all its sequences."""
    began = time.perf_counter()
    for _ in range(steps):
        session.step()
    return len(session.sequences) * steps / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--contexts", default="32,1024")
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    pairs, steps = (3, 4) if args.short else (7, 16)
    model = smollm_shape(args.threads)
    print(f"SmolLM2-135M's shape, float32, CPU, {args.threads} threads, paged; tokens per second of all sequences")
    print(header("one", f"{args.batch}"))
    for context in map(int, args.contexts.split(",")):
        progress(f"context {context} …")
        one, several = decoding(model, 1, context), decoding(model, args.batch, context)
        found = paired(partial(speed, one, steps), partial(speed, several, steps), pairs)
        print(found.row(f"context {context:,}", "tok/s"), flush=True)


if __name__ == "__main__":
    main()
