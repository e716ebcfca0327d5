"""What an operation of the page pool costs at a million pages over a thousand.

    python tests/benchmarks/page_pool.py [--small 1024] [--large 1048576] [--samples 201]

Both pools are full of cached pages before and after every window, so that every page taken evicts another.
`--order sequences` (the default) leaves them as serving does: whole sequences in random order, each freed last page
first. `--order pages` shuffles single pages, so that neighbours in the order of reuse share no cache line.

The two sizes take turns sample by sample, the order swapped each time, so that a busy machine slows both alike. Medians
of microseconds per operation, the ratio of the medians, and the quartiles of the ratio of neighbours. One operation is
one page, or one token for "append a token". The events are made and dropped as in the engine; the garbage collector
stays on.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.cache.paged.pool import PagePool
from engine.cache.paged.table import PageTable
from tests.benchmarks.protocol import note_ratios

PAGE_SIZE = 16
NUM_PAGES = 64  # pages of one sequence, taken or given back in one sample


@dataclass
class Bench:
    """A pool, and an endless supply of prompts that are not cached."""

    pool: PagePool
    order: str
    next_token: int = 0

    def fresh_tokens(self) -> list[int]:
        self.next_token += 1
        return [self.next_token] * (NUM_PAGES * PAGE_SIZE + 1)

    def fill(self, rng: random.Random) -> None:
        """Leave every page cached."""
        pool = self.pool
        groups: list[list[int]] = []
        while pool.num_available_pages:
            table = pool.open_table(0)
            pool.append(table, min(NUM_PAGES, pool.num_available_pages) * PAGE_SIZE)
            pool.commit(table, self.fresh_tokens())
            groups += [table.page_ids] if self.order == "sequences" else [[page_id] for page_id in table.page_ids]
            pool.events.clear()
        rng.shuffle(groups)
        for group in groups:
            table = pool.open_table(0)
            table.page_ids, table.num_tokens = group, len(group) * PAGE_SIZE
            pool.release(table)
            pool.events.clear()

    def cache(self, table: PageTable) -> None:
        """Give the pages of a sequence back to the prefix cache."""
        self.pool.commit(table, self.fresh_tokens())
        self.pool.release(table)

    def cached_table(self) -> tuple[PageTable, list[int]]:
        tokens = self.fresh_tokens()
        table = self.pool.open_table(0)
        self.pool.append(table, NUM_PAGES * PAGE_SIZE)
        self.pool.commit(table, tokens)
        self.pool.events.clear()
        return table, tokens


Step = Callable[[], object]
Parts = Iterator[tuple[Step, int]]  # the measured step and its number of operations; the rest is clean-up
Operation = Callable[[Bench], Parts]


def evict_and_allocate(bench: Bench) -> Parts:
    table = bench.pool.open_table(0)
    yield lambda: bench.pool.append(table, NUM_PAGES * PAGE_SIZE), NUM_PAGES
    bench.cache(table)


def append_token(bench: Bench) -> Parts:
    table = bench.pool.open_table(0)

    def decode() -> None:
        append = bench.pool.append
        for _ in range(NUM_PAGES * PAGE_SIZE):
            append(table, 1)

    yield decode, NUM_PAGES * PAGE_SIZE
    bench.cache(table)


def allocate(bench: Bench) -> Parts:
    """Take free pages that hold nothing to evict, as a pool without a prefix cache does."""
    bench.pool.evict(list(islice(bench.pool._free, NUM_PAGES)))
    yield from evict_and_allocate(bench)


def commit(bench: Bench) -> Parts:
    table, tokens = bench.pool.open_table(0), bench.fresh_tokens()
    bench.pool.append(table, NUM_PAGES * PAGE_SIZE)
    yield lambda: bench.pool.commit(table, tokens), NUM_PAGES
    bench.pool.release(table)


def look_up(bench: Bench) -> Parts:
    table, tokens = bench.cached_table()
    yield lambda: bench.pool.match_prefix(tokens), NUM_PAGES
    bench.pool.release(table)


def adopt(bench: Bench) -> Parts:
    table, tokens = bench.cached_table()
    bench.pool.release(table)
    match = bench.pool.match_prefix(tokens)
    yield lambda: bench.pool.adopt(table, match), NUM_PAGES
    bench.pool.release(table)


def fork(bench: Bench) -> Parts:
    table, _ = bench.cached_table()
    forks: list[PageTable] = []
    yield lambda: forks.append(bench.pool.fork(table, 1)), NUM_PAGES
    for each in [*forks, table]:
        bench.pool.release(each)


def free(bench: Bench) -> Parts:
    table, _ = bench.cached_table()
    yield lambda: bench.pool.release(table), NUM_PAGES


def slide(bench: Bench) -> Parts:
    table, _ = bench.cached_table()
    yield lambda: bench.pool.slide(table, table.num_tokens), NUM_PAGES
    bench.pool.release(table)


def truncate(bench: Bench) -> Parts:
    table, _ = bench.cached_table()
    yield lambda: bench.pool.truncate(table, 0), NUM_PAGES


OPERATIONS: dict[str, Operation] = {
    "append a token": append_token,
    "allocate": allocate,
    "evict and allocate": evict_and_allocate,
    "commit": commit,
    "prefix look-up": look_up,
    "adopt (share cached)": adopt,
    "fork (share used)": fork,
    "free": free,
    "slide": slide,
    "truncate": truncate,
}


def sample(operation: Operation, bench: Bench) -> float:
    """Microseconds per operation; preparation and clean-up are not counted."""
    parts = operation(bench)
    step, num_operations = next(parts)
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    next(parts, None)
    bench.pool.events.clear()
    return seconds / num_operations * 1e6


def pairs_of(operation: Operation, small: Bench, large: Bench, num_samples: int) -> list[tuple[float, float]]:
    """Neighbouring samples of both sizes, after a warm-up."""
    pairs = []
    for turn in range(num_samples + 5):
        order = (small, large) if turn % 2 == 0 else (large, small)
        times = {id(bench): sample(operation, bench) for bench in order}
        pairs.append((times[id(small)], times[id(large)]))
    return pairs[5:]


def main() -> None:
    parser = argparse.ArgumentParser(description="Page pool operations at a small and a large pool size")
    parser.add_argument("--small", type=int, default=1024, help="pages of the small pool")
    parser.add_argument("--large", type=int, default=2**20, help="pages of the large pool")
    parser.add_argument("--samples", type=int, default=201, help="pairs of samples per operation")
    parser.add_argument("--order", choices=("sequences", "pages"), default="sequences", help="what was shuffled")
    arguments = parser.parse_args()
    small, large = (
        Bench(PagePool(num_pages, PAGE_SIZE), arguments.order) for num_pages in (arguments.small, arguments.large)
    )
    for bench in (small, large):
        bench.fill(random.Random(1))
    print(f"{'operation':<22}{arguments.small:>10,} pages{arguments.large:>12,} pages{'ratio':>8}{'quartiles':>14}")
    sides = f"{arguments.small:,} pages", f"{arguments.large:,} pages"
    for name, operation in OPERATIONS.items():
        pairs = pairs_of(operation, small, large, arguments.samples)
        small_us, large_us = (statistics.median(column) for column in zip(*pairs, strict=True))
        low, _, high = statistics.quantiles((big / little for little, big in pairs), n=4)
        note_ratios(name, "µs", *zip(*pairs, strict=True), sides=sides)
        print(f"{name:<22}{small_us:>13.2f} us{large_us:>15.2f} us{large_us / small_us:>8.2f}{low:>9.2f}-{high:.2f}")


if __name__ == "__main__":
    main()
