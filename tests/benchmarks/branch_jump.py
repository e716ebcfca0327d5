"""How long going from the tip of one branch to that of another takes: by a swap when both are kept, and by a replay.

    python tests/benchmarks/branch_jump.py [--tokens 2000] [--threads 1]

SmolLM2-135M's shape with random weights. A swap should stay within one frame, 16 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.session.session import Session
from engine.spec.cache import cache_preset
from engine.spec.sampling import Prompt
from tests.benchmarks.protocol import smollm_shape
from tests.engine.tiny import prompt_ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=12, help="after the branches part")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    args = parser.parse_args()
    model = smollm_shape(args.threads)
    for name in ("growing", "paged", "dynamic"):
        session = Session(model, cache_preset(name).spec)
        seq_id = session.submit(Prompt(token_ids=tuple(t % 120 for t in prompt_ids(args.tokens))))
        while session.is_prefilling:
            parted = session.step().step
        tips = []
        for number in range(2):
            began = time.perf_counter()
            session.go_to(parted)
            back = (time.perf_counter() - began) * 1e3
            session.force(seq_id, tuple(range(10 + number, 10 + number + args.steps)))
            for _ in range(args.steps):
                tip = session.step().step
            tips.append(tip)
        jumps = []
        for number in range(20):
            began = time.perf_counter()
            how = session.go_to(tips[number % 2])
            jumps.append((time.perf_counter() - began) * 1e3)
        session.kept.clear()
        began = time.perf_counter()
        again = session.go_to(tips[0])
        took = (time.perf_counter() - began) * 1e3
        print(
            f"{name}: {args.tokens:,} tokens; back to where they part {back:.1f} ms; tip to tip "
            f"{statistics.median(jumps):.2f} ms "
            f"(worst {max(jumps):.2f}; {how}); without it {took:.0f} ms ({again})"
        )


if __name__ == "__main__":
    main()
