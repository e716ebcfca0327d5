"""Random programs on the history of a session, each compared with what was and with a fresh session.

    python -m tests.benchmarks.random_histories [--seconds 60] [--seed 0] [--operations 20]
    python -m tests.benchmarks.random_histories --programs 20000 --seed 700 --operations 7

For a while on models of several architectures, or so many short programs on the tiniest, in every mode in turn. A
program depends on its seed alone, which is printed if it fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine.session.histories import MODES, TINIEST, Program, operations_of, play, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--programs", type=int, default=0, help="so many short ones, however long they take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=20)
    args = parser.parse_args()
    end, modes = time.monotonic() + args.seconds, list(MODES)

    def seeds() -> Iterator[int]:
        seed = args.seed
        while seed < args.seed + args.programs if args.programs else time.monotonic() < end:
            yield seed
            seed += 1

    def one(seed: int) -> Program:
        if args.programs:
            return play((TINIEST, modes[seed % len(modes)]), operations_of(seed, args.operations))
        return run(seed, args.operations)

    count, failed, compared, done = 0, 0, 0, Counter[str]()
    for seed in seeds():
        count += 1
        try:
            program = one(seed)
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}", flush=True)
        else:
            compared += program.num_compared
            done.update(word for word in program.done if word.isalpha())
    took = time.process_time() / max(1, count) * 1e3
    print(f"{count} programs, {took:.1f} ms each, {failed} failed; {compared} moments compared; {dict(done)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
