"""A soak of the page pool: random operations on it, on a reference of plain lists and on a memory made of token ids.

    python tests/benchmarks/pool_soak.py --ops 10000000 --seed 7 [--verify-every 1000]

The pool, the reference and the memory are `tests/engine/cache/paged/pool_world.py`, which the tests drive too.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine.cache.paged.pool_world import PoolWorld, random_operation


@dataclass(frozen=True)
class SoakResult:
    """How a soak went; it raised if anything was wrong."""

    num_operations: int
    num_refused: int
    operations_per_second: float


def soak(num_operations: int, seed: int, verify_every: int) -> SoakResult:
    """Random operations over both duplicate policies and several page sizes; a new pool every 5,000 operations.

    `check()` and the reference follow after every operation; the memory is read back every `verify_every`.
    """
    rng = random.Random(seed)
    start = time.perf_counter()
    num_refused = 0
    world: PoolWorld | None = None
    for operation in range(num_operations):
        if world is None or operation % 5_000 == 0:
            num_refused += world.num_refused if world else 0
            world = PoolWorld(
                num_pages=rng.choice((2, 6, 12, 20)),
                page_size=rng.choice((1, 2, 4)),
                replaces=rng.choice([False, True]),
                num_host_pages=rng.choice((1, 5)),
            )
        random_operation(world, rng)
        world.check()
        if operation % verify_every == 0:
            world.verify()
    if world is not None:
        for seq_id in list(world.rows):
            world.free(seq_id)
        world.verify()
        num_refused += world.num_refused
    return SoakResult(num_operations, num_refused, num_operations / (time.perf_counter() - start))


def main() -> None:
    parser = argparse.ArgumentParser(description="random operations on the page pool against a plain reference")
    parser.add_argument("--ops", type=int, default=10**5, help="operations to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verify-every", type=int, default=25, help="operations between two reads of the whole memory")
    arguments = parser.parse_args()
    result = soak(arguments.ops, arguments.seed, arguments.verify_every)
    print(
        f"{result.num_operations:,} operations, {result.num_refused:,} refused for lack of pages, "
        f"{result.operations_per_second:,.0f} operations per second, no fault"
    )


if __name__ == "__main__":
    main()
