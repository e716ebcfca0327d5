"""Decode speed against transformers' generate with its dynamic cache; same threads, same model, one run.

    python tests/benchmarks/decode_speed.py [--short] [--threads 2] [--caches growing,paged] [--contexts 16,4096]

Statistics, candidates and attention rows are captured, as in the window. The context is filled with random K and V:
what is in them does not change the speed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import DynamicCache

from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.capture import CaptureLevel
from engine.spec.presets import cache_preset
from engine.spec.sampling import Prompt
from tests.benchmarks.protocol import GREEDY, header, native_attention, paired, progress, smollm_shape


def random_rows(model: LoadedModel, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for layer in model.info.geometry.attention_layers:
        shape = (1, layer.num_kv_heads, tokens, layer.key_dim)
        rows.append((torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)))
    return rows


@torch.inference_mode()
def filled_session(model: LoadedModel, spec: CacheSpec, context: int, capture: CaptureLevel = "rows") -> Session:
    """A session that stands after `context` tokens."""
    session = Session(model, spec, capture=capture)
    seq_id = session.submit(Prompt(token_ids=(1,) * context))
    sequence, cache = session.sequence(seq_id), session.cache_of(seq_id)
    cache.begin(context)
    cache.plan_forward(context)
    for layer, (keys, values) in enumerate(random_rows(model, context)):
        cache.live.update(keys, values, layer)
    cache.commit(context)
    sequence.num_tokens, sequence.sampled = context, 5
    return session


def ours(model: LoadedModel, spec: CacheSpec, context: int, tokens: int) -> float:
    """Tokens per second of our session."""
    session = filled_session(model, spec, context)
    session.step()
    began = time.perf_counter()
    for _ in range(tokens):
        session.step()
    return tokens / (time.perf_counter() - began)


@torch.inference_mode()
def generate(model: LoadedModel, context: int, tokens: int) -> float:
    """Tokens per second of transformers' generate, greedy, dynamic cache, its own attention."""
    cache = DynamicCache(config=model.model.config)
    for layer, (keys, values) in enumerate(random_rows(model, context)):
        cache.update(keys, values, layer)
    ids = torch.ones(1, context + 1, dtype=torch.long)
    with native_attention(model):
        warm = model.model.generate(ids, past_key_values=cache, max_new_tokens=1, **GREEDY)
        began = time.perf_counter()
        model.model.generate(warm, past_key_values=cache, max_new_tokens=tokens, **GREEDY)
        return tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--caches", default="growing")
    parser.add_argument("--contexts", default="16,4096")
    args = parser.parse_args()
    pairs, tokens = (3, 8) if args.short else (7, 24)
    model = smollm_shape(args.threads)
    print(f"SmolLM2-135M's shape, float32, CPU, {args.threads} threads, statistics captured; tokens per second")
    print(header("generate", "ours"))
    for context in map(int, args.contexts.split(",")):
        for name in args.caches.split(","):
            progress(f"context {context}, {name} …")
            spec = cache_preset(name).spec

            def a(context: int = context) -> float:
                return generate(model, context, tokens)

            def b(context: int = context, spec: CacheSpec = spec) -> float:
                return ours(model, spec, context, tokens)

            print(paired(a, b, pairs).row(f"context {context:,} · {name}", "tok/s"), flush=True)


if __name__ == "__main__":
    main()
