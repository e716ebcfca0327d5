"""A model of a billion parameters at 4,096 tokens on a CPU: the memory of its process, and the window's answer times.

    python tests/benchmarks/large_shape.py [--short] [--dtype bfloat16] [--context 4096] [--no-window]

Only the shape is real: Llama 3.2 1B's, with random weights. The first line is the memory of the engine's process beyond
one that has imported torch and transformers, over what it may be: the model, its cache and 300 MB. The others are how
late a precise timer of the window comes while the engine decodes and exports (at most 16 ms in 99 of 100, never 100),
and from a key or a click to the painted picture, 95 of 100 within 50 ms, when looking back and when choosing a head. A
step is printed without a target: on a CPU the forward is nearly all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

ROOM = 300 << 20  # bytes beside model and cache
LLAMA_1B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 16, "hidden_size": 2048,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192,
    "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": True, "eos_token_id": None,
}  # fmt: skip
SHORT = {**LLAMA_1B, "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 2048, "vocab_size": 32000}
LIMITS_MS = {"late p99": 16.0, "late max": 100.0, "scrub": 50.0, "select": 50.0}
STEPS = 24


def memory(source: str, dtype: str, context: int) -> dict[str, float]:
    """Bytes of a process that decodes at that context: before the model, at the end, and what model and cache are."""
    from engine.model.loader import load
    from engine.session.session import Session
    from engine.spec.cache import cache_preset
    from engine.spec.model import ModelSpec
    from engine.spec.sampling import Prompt

    own = psutil.Process()
    before = own.memory_info().rss
    model = load(ModelSpec(source, dtype=dtype, device="cpu"))  # type: ignore[arg-type]
    session = Session(model, cache_preset("paged").spec)
    session.submit(Prompt(token_ids=(1,) * context))
    while session.is_prefilling:
        session.step()
    for _ in range(STEPS):
        session.step()
    return {
        "before": before,
        "after": own.memory_info().rss,
        "model": model.info.weight_bytes,
        "cache": session.bytes().reserved,
    }


def answering(source: str, context: int, folder: str) -> dict[str, float]:
    from tests.benchmarks import live_window

    live_window.PROMPT_TOKENS = context
    return live_window.answering("process", source, "paged", STEPS, folder)


def child(*arguments: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    display = {} if os.environ.get("DISPLAY") else {"QT_QPA_PLATFORM": os.environ.get("QT_QPA_PLATFORM", "offscreen")}
    done = subprocess.run(
        [sys.executable, __file__, "--child", *arguments],
        env={**os.environ, **display, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"a run ended early:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def run_child(kind: str, source: str, *rest: str) -> None:
    found = memory(source, rest[0], int(rest[1])) if kind == "memory" else answering(source, int(rest[0]), rest[1])
    print(json.dumps(found), flush=True)
    os._exit(0)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        run_child(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a small model and 512 tokens: does it run at all")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--no-window", action="store_true")
    args = parser.parse_args()
    from tests.benchmarks.protocol import Paired, header, progress

    context, mib = 512 if args.short else args.context, 1 << 20
    print(header("at most", "found"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**(SHORT if args.short else LLAMA_1B), "torch_dtype": args.dtype}), "utf-8")
        source = f"shape:{path}"
        progress(f"memory at {context:,} tokens …")
        sizes = child("memory", source, args.dtype, str(context))
        allowed, taken = sizes["model"] + sizes["cache"] + ROOM, sizes["after"] - sizes["before"]
        print(Paired((allowed / mib,), (taken / mib,)).row(f"memory at {context:,} tokens", "MiB"), flush=True)
        if args.no_window or find_spec("PySide6") is None:
            print("the window was left out")
            return
        progress("the window …")
        answers = child("window", source, str(context), folder)
        for name, limit in LIMITS_MS.items():
            print(Paired((limit,), (answers[name],)).row(f"window, {name}", "ms"), flush=True)
        print(f"a step, its forward included: {answers['step']:.0f} ms")


if __name__ == "__main__":
    main()
