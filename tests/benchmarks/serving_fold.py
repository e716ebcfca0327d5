"""What does it cost to fold a large prefix cache from its KV events?

200,000 blocks of 16 tokens in chains that share beginnings, 50,000 of them evicted from their ends and 10,000 stored
again: processor seconds of decoding and folding, resident memory, and what a picture of the tree and an answer cost
then. Targets: 2 s and 450 MB for all, 50 ms for a picture.

    python tests/benchmarks/serving_fold.py [--short] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.serving.answers import rows_of
from engine.serving.events import Message
from engine.serving.explain import explain
from engine.serving.server import Server
from engine.serving.text import numbers
from tests.engine.serving.made_up import batch, removed, stored

BLOCK, CHAIN, BATCH = 16, 8, 4  # tokens in a block, blocks in an event, events in a batch


def stream(num_blocks: int) -> Iterator[Message]:
    chance = random.Random(7)
    ends: list[list[int]] = []
    events: list[dict[str, object]] = []
    of: dict[int, tuple[list[int], int | None]] = {}
    for first in range(0, num_blocks, CHAIN):
        chain = [number * 2_654_435_761 % (1 << 64) for number in range(first + 1, first + CHAIN + 1)]
        parent = chance.choice(chance.choice(ends)) if ends and chance.random() < 0.9 else None
        ids = [chance.randrange(50_000) for _ in range(BLOCK * CHAIN)]
        of[chain[0]] = ids, parent
        events.append(stored(chain, ids, parent, BLOCK))
        ends.append(chain)
    gone = ends[-num_blocks // 4 // CHAIN :]
    events += [removed(*reversed(chain)) for chain in reversed(gone)]
    events += [stored(chain, of[chain[0]][0], of[chain[0]][1], BLOCK) for chain in gone[: len(gone) // 5]]
    for number, at in enumerate(range(0, len(events), BATCH)):
        yield batch(number, *events[at : at + BATCH])


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a tenth of the blocks")
    parser.add_argument("--profile", action="store_true", help="of the fold")
    args = parser.parse_args()
    num_blocks = 20_000 if args.short else 200_000
    messages = list(stream(num_blocks))
    server, profile = Server(), cProfile.Profile()
    before = psutil.Process().memory_info().rss
    if args.profile:
        profile.runcall(server.fold, messages)
        profile.print_stats("tottime")
    else:
        spent = timed(lambda: server.fold(messages))
        counted = timed(lambda: [tree.settle() for tree in server.trees.values()])  # as the client does between pieces
        print(f"{spent + counted:.2f} s of processor to fold {num_blocks:,} blocks and count what is behind each")
    after = psutil.Process().memory_info().rss
    print(f"{after / 1e6:.0f} MB resident, {before / 1e6:.0f} of them before; {server.counts.live_blocks:,} live")
    ids = [*range(BLOCK * 40)]
    for what, work in (
        ("a picture of the tree", lambda: rows_of(server, numbers)),
        ("an answer", lambda: explain(server, ids)),
    ):
        print(f"{timed(work) * 1e3:.1f} ms for {what}")


if __name__ == "__main__":
    main()
