"""What the prefix cache would hit with another pool, from the chains that were stored: an estimate, since a stream does
not say where requests begin, and those that store nothing are not in it."""

from __future__ import annotations

from array import array
from collections import OrderedDict

# What a trace remembers at most: 16 MB of blocks, and as much of events.
MOST = 1 << 22


class Trace:
    """Every block by number with the one before it (0: none), and of every chain stored its last block and how many of
    it were new."""

    def __init__(self) -> None:
        self._parents, self._last, self._new = array("I", [0]), array("I"), array("I")

    def block(self, parent: int) -> int:
        """The number of a new block."""
        if len(self._parents) == MOST:
            return 0
        self._parents.append(parent)
        return len(self._parents) - 1

    def add(self, last: int, num_new: int) -> None:
        if last and len(self._last) < MOST:
            self._last.append(last)
            self._new.append(num_new)

    @property
    def num_events(self) -> int:
        return len(self._last)

    def hit_ratio(self, num_blocks: int) -> float:
        """Blocks found over blocks asked for, with the least recently used of `num_blocks` evicted first, the end of a
        chain before its beginning. A chain that grows by one block at its end is a request that decodes on."""
        pool: OrderedDict[int, None] = OrderedDict()
        ends: set[int] = set()
        asked = hits = 0
        for last, num_new in zip(self._last, self._new, strict=True):
            chain, at = [], last
            while at:
                chain.append(at)
                at = self._parents[at]
            if num_new == 1 and len(chain) > 1 and chain[1] in ends:
                ends.discard(chain[1])
            else:
                asked += len(chain)
                for block in reversed(chain):
                    if block not in pool:
                        break
                    hits += 1
            ends.add(last)
            for block in chain:
                pool[block] = None
                pool.move_to_end(block)
            while len(pool) > num_blocks:
                pool.popitem(last=False)
        return hits / asked if asked else 0.0

    def rows(self, num_blocks: int) -> tuple[tuple[int, float], ...]:
        """`(blocks, hit ratio)` from a quarter of so many blocks to eight times as many."""
        sizes = {max(1, round(num_blocks * 2 ** (step / 2))) for step in range(-4, 7)} if num_blocks else set()
        rows: list[tuple[int, float]] = []
        for size in sorted(sizes):
            if rows and rows[-1][0] >= len(self._parents):
                break  # everything fits already
            rows.append((size, round(self.hit_ratio(size), 4)))
        return tuple(rows)
