"""Random programs on the history of a session, each compared with what was and with a fresh session, for a while.

    python tests/benchmarks/random_histories.py [--seconds 60] [--seed 0] [--operations 20]

Every program is the same for its seed, which is told where one fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine.session.histories import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=20)
    args = parser.parse_args()
    end, seed, compared, done = time.monotonic() + args.seconds, args.seed, 0, Counter[str]()
    failed = 0
    while time.monotonic() < end:
        try:
            program = run(seed, args.operations)
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}", flush=True)
        else:
            compared += program.num_compared
            done.update(word for word in program.done if word.isalpha())
        seed += 1
    print(f"{seed - args.seed} programs, {failed} failed; {compared} moments compared; {dict(done)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
