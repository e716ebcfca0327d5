"""Decode speed against transformers' generate with its dynamic cache; same threads, same model, one run.

    python tests/benchmarks/decode_speed.py [--short] [--threads 2] [--caches growing,paged] [--contexts 16,4096]
                                          [--device cuda] [--dtype bfloat16]

Both take their steps in turn: the machine's speed varies more within a second than the two differ, and windows of a
second each showed dips that were none. Statistics, candidates and attention rows are captured, as in the window. The
context is filled with random K and V: what is in them does not change the speed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from msgspec import structs
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList

from engine.cache.layers.build import cache_argument
from engine.device import DeviceTime, device_now
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.model import CaptureLevel
from engine.spec.sampling import Prompt
from tests.benchmarks.protocol import (
    GREEDY,
    Paired,
    add_places,
    header,
    native_attention,
    places_of,
    progress,
    seconds_since,
)

WARM = 2  # warm-up steps that are not counted


def random_rows(model: LoadedModel, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for layer in model.info.geometry.attention_layers:
        shape = (1, layer.num_kv_heads, tokens, layer.key_dim)
        keys, values = (torch.randn(shape, generator=generator).to(model.device, model.model.dtype) for _ in range(2))
        rows.append((keys, values))
    return rows


@torch.inference_mode()
def filled_session(model: LoadedModel, spec: CacheSpec, context: int, capture: CaptureLevel = "rows") -> Session:
    """A session that stands after `context` tokens."""
    session = Session(model, spec, capture=capture)
    seq_id = session.submit(Prompt(token_ids=(1,) * context))
    live, cache = session.live.get(seq_id), session.cache_of(seq_id)
    cache.begin(context)
    cache.plan_forward(context)
    for layer, (keys, values) in enumerate(random_rows(model, context)):
        cache.model_cache.update(keys, values, layer)
    cache.commit(context)
    live.sequence = structs.replace(live.sequence, num_tokens=context, sampled=5)
    return session


class Ours(StoppingCriteria):  # type: ignore[misc]
    """Given to `generate` as a stopping criterion, so that one of our steps follows each of its steps; keeps the
    seconds of each step of both, on the clock of the device."""

    def __init__(self, session: Session, config: Any) -> None:
        self._session, self._config, self._captured = session, config, config._attn_implementation
        self._device = session.model.device
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self._left: DeviceTime | None = None

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if self._left is not None:
            self.theirs.append(seconds_since(self._left, self._device))
        native, self._config._attn_implementation = self._config._attn_implementation, self._captured
        began = device_now(self._device)
        self._session.step()
        self.ours.append(seconds_since(began, self._device))
        self._config._attn_implementation = native
        self._left = device_now(self._device)
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


@torch.inference_mode()
def in_turn(model: LoadedModel, spec: CacheSpec, context: int, steps: int) -> Paired:
    """Tokens per second, step by step, of transformers' generate, greedy, dynamic cache, its own attention, and of our
    session."""
    session, cache = filled_session(model, spec, context), DynamicCache(config=model.model.config)
    for layer, (keys, values) in enumerate(random_rows(model, context)):
        cache.update(keys, values, layer)
    ids = torch.ones(1, context + 1, dtype=torch.long, device=model.device)
    both = Ours(session, model.model.config)
    with native_attention(model):
        criteria = StoppingCriteriaList([both])
        new = steps + WARM + 1
        model.model.generate(
            ids, **{cache_argument(model.model): cache}, max_new_tokens=new, stopping_criteria=criteria, **GREEDY
        )
    pairs = list(zip(both.theirs, both.ours[1:], strict=True))[WARM:]
    return Paired(tuple(1 / theirs for theirs, _ in pairs), tuple(1 / ours for _, ours in pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--caches", default="growing")
    parser.add_argument("--contexts", default="16,4096")
    add_places(parser)
    args = parser.parse_args()
    steps = 8 if args.short else 48
    for place in places_of(args):
        model = place.model()
        print(f"{place.words()}, statistics captured; tokens per second")
        print(header("generate", "ours"))
        for context in map(int, args.contexts.split(",")):
            for name in args.caches.split(","):
                progress(f"context {context}, {name} …")
                found = in_turn(model, cache_preset(name).spec, context, steps)
                print(found.row(place.named(f"context {context:,} · {name}"), "tok/s"), flush=True)


if __name__ == "__main__":
    main()
