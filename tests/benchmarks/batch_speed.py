"""Tokens per second of eight paged sequences decoded together, over those of one; same model, one run.

    python tests/benchmarks/batch_speed.py [--short] [--threads 2] [--contexts 32,1024] [--batch 8] [--device cuda]

The sequences differ in length by one token each, so that nothing is padded away. Target: 2.5 times as many.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.device import device_now
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import cache_preset
from engine.spec.sampling import Prompt
from tests.benchmarks.protocol import add_places, header, paired, places_of, progress, seconds_since


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
    began = device_now(session.model.device)
    for _ in range(steps):
        session.step()
    return len(session.sequences) * steps / seconds_since(began, session.model.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--contexts", default="32,1024")
    parser.add_argument("--batch", type=int, default=8)
    add_places(parser)
    args = parser.parse_args()
    pairs, steps = (3, 4) if args.short else (7, 16)
    for place in places_of(args):
        model = place.model()
        print(f"{place.words()}, paged; tokens per second of all sequences")
        print(header("one", f"{args.batch}"))
        for context in map(int, args.contexts.split(",")):
            progress(f"context {context} …")
            one, several = decoding(model, 1, context), decoding(model, args.batch, context)
            found = paired(partial(speed, one, steps), partial(speed, several, steps), pairs)
            print(found.row(place.named(f"context {context:,}"), "tok/s"), flush=True)


if __name__ == "__main__":
    main()
