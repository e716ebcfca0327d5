"""Tokens per second of a run of 200 tokens, one sequence, against transformers' generate; same model, one run.

    python tests/benchmarks/run_speed.py [--short] [--tokens 200] [--cache paged] [--device cuda] [--dtype bfloat16]

The first row is over generate with its dynamic cache, the second over its static one, whose forward transformers
compiles on a GPU (on a CPU it does not, and the row says so). Ours goes as it does in a run: the next forward is
launched before the token of the last one is read, and what is measured of a step is read late. A short prompt is part
of every run, on all sides. Targets on a GPU: at least 10 and 1.5.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.device import device_now
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import cache_preset
from engine.spec.sampling import Prompt
from tests.benchmarks.protocol import (
    GREEDY,
    add_places,
    header,
    native_attention,
    paired,
    places_of,
    progress,
    seconds_since,
)

PROMPT = tuple(range(3, 19))


@torch.inference_mode()
def generate(model: LoadedModel, tokens: int, cache: str) -> float:
    """Tokens per second of transformers' generate, greedy, in its `dynamic` or `static` cache."""
    with native_attention(model):
        began = device_now(model.device)
        ids = torch.tensor([PROMPT], device=model.device)
        named = {"cache_implementation": cache} if cache != "dynamic" else {}
        made = model.model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, **named, **GREEDY)
        took = seconds_since(began, model.device)
    assert made.shape[1] == len(PROMPT) + tokens
    return tokens / took


def ours(session: Session, tokens: int) -> float:
    """Tokens per second of a new sequence of a session, which is removed again."""
    began = device_now(session.model.device)
    seq_id = session.submit(Prompt(token_ids=PROMPT, has_start=True))
    while len(session.sequence(seq_id).token_ids) < len(PROMPT) + tokens:
        session.step_late()
    session.observer.complete()
    took = seconds_since(began, session.model.device)
    count = len(session.sequence(seq_id).token_ids) - len(PROMPT)
    session.remove(seq_id)
    session.forget_history()
    return count / took


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--cache", default="paged")
    add_places(parser)
    args = parser.parse_args()
    for place in places_of(args):
        model = place.model()
        session = Session(model, cache_preset(args.cache).spec)
        print(f"{place.words()}, {args.tokens} tokens, {args.cache}; tokens per second")
        print(header("generate", "ours"))
        static = "static and compiled" if model.device.type == "cuda" else "static, not compiled"
        for cache, name in (("dynamic", "dynamic"), ("static", static)):
            progress(f"{name} …")
            a, b = partial(generate, model, args.tokens, cache), partial(ours, session, args.tokens)
            print(paired(a, b, 2 if args.short else 7).row(place.named(f"over {name}"), "tok/s"), flush=True)


if __name__ == "__main__":
    main()
