"""Makes every call inside a step or a command fail once: the failure must change nothing.

The calls are those of the engine, of the model and of torch in a step, an edit, a branch, going back and so on, in
every preset and in modes where rows are coded, dropped or in pages.

    python -m tests.benchmarks.failed_steps [--modes paged,h2o] [--phases decode] [--first-and-last]
        [--architecture mistral]

Budgets, windows, groups and pages are those of a tiny model, so that each of them is full within a few steps. Every
failure that left something changed is printed with its place.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.spec.cache import PRESETS
from tests.engine.session.failing import PHASES, failures, small
from tests.engine.session.test_stepper_failures import LOSSY

LONGEST = 300  # characters printed of a failure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--modes", default="")
    parser.add_argument("--architecture", default="tiniest", help="of tests/engine/tiny.py")
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--first-and-last", action="store_true", help="of the calls of each line these alone")
    args = parser.parse_args()
    modes = {
        **{name: small(preset.spec) for name, preset in PRESETS.items()},
        **{f"{k} (test)": LOSSY[k] for k in LOSSY},
    }

    def numbers(count: int) -> Iterable[int]:
        return {1, count} if args.first_and_last else range(1, count + 1)

    num_failed = num_sites = num_bad = 0
    for name in args.modes.split(",") if args.modes else modes:
        for phase in args.phases.split(","):
            began = time.process_time()
            # 16 codes of 2 bits fill a word, and a head of the tiniest has 8 channels
            is_too_small = args.architecture == "tiniest" and name == "kivi-2"
            architecture = "llama" if is_too_small else args.architecture
            try:
                found = failures(modes[name], phase, numbers, architecture, of_torch=True)
            except Exception as error:
                num_bad += 1
                print(f"{name}, {phase}: {type(error).__name__}: {error}", flush=True)
                continue
            num_failed, num_sites, num_bad = (
                num_failed + found.num_failed, num_sites + found.num_sites, num_bad + len(found.not_undone)
            )  # fmt: skip
            print(
                f"{name}, {phase}: {found.num_failed} calls of {found.num_sites} lines failed, {found.num_missed} were "
                f"done another way or not reached, {len(found.not_undone)} left something changed; "
                f"{time.process_time() - began:.0f} s",
                flush=True,
            )
            for one in found.not_undone:
                print(f"    {one[:LONGEST]}", flush=True)
    print(f"{num_failed} failures at {num_sites} lines, {num_bad} of them not undone")
    sys.exit(bool(num_bad))


if __name__ == "__main__":
    main()
