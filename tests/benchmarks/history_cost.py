"""What history costs: the marks of a step, as a part of it; a change between exact modes, and the way back over all
steps in modes that are not exact, as parts of the prefill that would fill the cache anew.

    python -m tests.benchmarks.history_cost [--short] [--tokens 2000] [--steps 60] [--threads 1]

SmolLM2-135M's shape with random weights, in processor time, which other programs disturb less. Targets: 3 % of a step,
0.1 of a prefill for a change, 0.2 for the way back.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.history.state import SequenceState
from engine.session.session import Session
from engine.spec.cache import cache_preset
from engine.spec.sampling import Prompt
from tests.benchmarks.protocol import note_ratios, smollm_shape
from tests.engine.tiny import prompt_ids

EXACT = ("growing", "paged", "dynamic", "static")
LOSSY = ("streamingllm", "h2o", "snapkv", "tova", "fp8", "int8", "paged-int8", "kivi-4")


def prefilled(session: Session, num_tokens: int) -> tuple[int, float]:
    """A sequence with so many tokens, and the seconds that reading them took."""
    seq_id = session.submit(Prompt(token_ids=tuple(t % 120 for t in prompt_ids(num_tokens))))
    began = time.process_time()
    while session.is_prefilling:
        session.step()
    return seq_id, time.process_time() - began


def marks_share(session: Session, steps: int) -> float:
    """The share of a decode step spent on the marks of all owners and the node of the tree, in the median step."""
    history, spent = session.history, [0.0]
    add, chosen = history.add, SequenceState.chosen

    def timed(work: Any) -> Any:
        def run(*args: Any) -> Any:
            began = time.process_time()
            try:
                return work(*args)
            finally:
                spent[0] += time.process_time() - began

        return run

    history.add = timed(add)  # type: ignore[method-assign]
    SequenceState.chosen = timed(chosen)  # type: ignore[method-assign]
    shares = []
    try:
        for _ in range(steps):
            spent[0], began = 0.0, time.process_time()
            session.step()
            shares.append(spent[0] / (time.process_time() - began))
    finally:
        history.add = add  # type: ignore[method-assign]
        SequenceState.chosen = chosen  # type: ignore[method-assign]
    return statistics.median(shares)


def way_back(session: Session, seq_id: int, steps: int) -> tuple[float, str]:
    """Seconds of going back over so many steps, the median of three, and the words that say how it was done."""
    first = session.step().step
    took, how = [], ""
    for number in range(3):
        session.force(seq_id, tuple(range(10 + number, 10 + number + steps)))
        for _ in range(steps):
            session.step()
        began = time.process_time()
        how = session.go_to(first)
        took.append(time.process_time() - began)
    return statistics.median(took), how


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="512 tokens and 20 steps")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    num_tokens, steps = (512, 20) if args.short else (args.tokens, args.steps)
    model = smollm_shape(args.threads)
    prefills: list[float] = []
    changes: dict[str, float] = {}
    ways: dict[str, float] = {}
    for first in EXACT:
        session = Session(model, cache_preset(first).spec)
        seq_id, prefill_s = prefilled(session, num_tokens)
        prefills.append(prefill_s)
        session.force(seq_id, tuple(range(10, 10 + steps)))
        print(f"{first}: marks are {marks_share(session, steps):.2%} of a step", flush=True)
        for second in EXACT:
            if second == first:
                continue
            took = []
            for _ in range(3):
                began = time.process_time()
                how = session.set_cache(cache_preset(second).spec)
                took.append(time.process_time() - began)
                session.set_cache(cache_preset(first).spec)
            changes[f"{first} to {second}"] = statistics.median(took)
            ratio = statistics.median(took) / prefill_s
            print(f"    to {second}: {ratio:.4f} of a prefill of {num_tokens:,} tokens ({how})", flush=True)
        session.close()
    for name in LOSSY:
        session = Session(model, cache_preset(name).spec)
        seq_id, prefill_s = prefilled(session, num_tokens)
        ways[name], how = way_back(session, seq_id, steps)
        print(f"{name}: back over {steps} steps {ways[name] / prefill_s:.4f} of a prefill ({how})", flush=True)
        session.close()
    prefill_s = statistics.median(prefills)
    for what, found in (("change", changes), (f"way back over {steps} steps", ways)):
        slowest = max(found, key=lambda name: found[name])
        note_ratios(f"slowest {what} at {num_tokens:,} tokens: {slowest}", "s", (prefill_s,), (found[slowest],))


if __name__ == "__main__":
    main()
