"""Memory that observing takes: the engine's process with everything captured and a wall and a head watched, over the
same process with nothing captured; both decode SmolLM2-135M's shape in float32 at the same context.

    python -m tests.benchmarks.observe_memory [--short] [--context 8192] [--steps 400]

The limit is 250 MB. Beside it stands what each of the later steps has added, which is what records of steps are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

LIMIT = 250e6  # bytes


def decoding(is_looking: bool, context: int, steps: int) -> dict[str, float]:
    """Bytes of a process in the middle of decode steps behind a prompt of `context` tokens, and at their end."""
    from engine.look.watch import Watcher
    from engine.session.session import Session
    from engine.spec.cache import cache_preset
    from engine.spec.sampling import Prompt
    from engine.wire.commands import Watched
    from engine.wire.pictures import HeadRequest, WallRequest
    from tests.benchmarks.protocol import smollm_shape

    session = Session(
        smollm_shape(os.cpu_count() or 1), cache_preset("growing").spec, capture="everything" if is_looking else "off"
    )
    session.submit(Prompt(token_ids=(1,) * context))
    while session.is_prefilling:
        session.step()
    watcher, own = Watcher(), psutil.Process()
    if is_looking:
        pictures = WallRequest(0, 0, 0, "keys", False, 400, 8), HeadRequest(0, 0, "values", 0, 0, 0, 0, 600)
        watcher.watch(session, tuple(Watched(picture, id=number) for number, picture in enumerate(pictures, 1)))
    found = []
    for _ in range(2):
        for _ in range(steps // 2):
            record = session.step()
            if is_looking:
                watcher.after_step(session, record, is_last=False)
        found.append(own.memory_info().rss)
    return {"middle": found[0], "end": found[1]}


def child(is_looking: bool, context: int, steps: int) -> dict[str, float]:
    """`decoding` in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(int(is_looking)), str(context), str(steps)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"a run ended early:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        is_looking, context, steps = map(int, sys.argv[2:])
        print(json.dumps(decoding(bool(is_looking), context, steps)))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--short", action="store_true", help="512 tokens and 60 steps")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    from tests.benchmarks.protocol import Paired, header

    context, steps = (512, 60) if args.short else (args.context, args.steps)
    print(header("at most", "found"))
    looking, bare = (child(is_looking, context, steps) for is_looking in (True, False))
    taken = max(0.0, looking["end"] - bare["end"])
    print(Paired((LIMIT / 2**20,), (taken / 2**20,)).row(f"looking at {context:,} tokens", "MiB"))
    for name, found in (("looking", looking), ("nothing captured", bare)):
        print(f"{name}: each later step adds {(found['end'] - found['middle']) / (steps // 2) / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
