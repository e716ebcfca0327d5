"""Kills exports at random moments: afterwards the old file or the new one must be there, whole, and nothing else.

    python tests/benchmarks/export_kills.py --kills 1000 --seed 7 [--short]

A child process exports over a file and kills itself after a random number of bytes, or before or after one of its calls
of the system. Then the file must be the old one or the new one, to the last checksum; and after the next export nothing
else may lie in the folder.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.snapshot import write
from engine.snapshot.foreign import snapshot_of_cache
from engine.snapshot.verify import verified
from engine.snapshot.write import Snapshot, write_snapshot
from tests.engine.kills import kill_me, killed

CALLS = ("open", "fsync", "replace", "fdopen", "chmod", "unlink", "stat", "listdir")
CHUNK_BYTES = 512


@dataclass
class Tally:
    """How the kills ended: which file was there, and what else was left in the folder."""

    outcomes: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    partial: int = 0
    stray: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.partial or self.stray)


def small_snapshot(value: float) -> Snapshot:
    """A file of some 20 kilobytes."""
    rows = torch.full((1, 2, 64, 16), value)
    return snapshot_of_cache([(rows, rows + 1)], list(range(64)))


def at_byte(snapshot: Snapshot, target: Path, deadly: int) -> Callable[[], None]:
    def work() -> None:
        for done in write_snapshot(snapshot, target):
            if done >= deadly:
                kill_me()

    return work


def at_call(snapshot: Snapshot, target: Path, name: str, number: int, is_after: bool) -> Callable[[], None]:
    """Kill the process at the `number`-th call of that name."""

    def work() -> None:
        real, calls = getattr(os, name), 0

        def deadly(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls <= number:
                return real(*args, **kwargs)
            if is_after:
                real(*args, **kwargs)
            return kill_me()

        setattr(os, name, deadly)
        for _ in write_snapshot(snapshot, target):
            pass

    return work


def trial(folder: Path, chance: random.Random, tally: Tally) -> None:
    """One killed export over an old file, which another process may have open."""
    target = folder / "x.safetensors"
    old, new = small_snapshot(1.0), small_snapshot(2.0)
    list(write_snapshot(old, target))
    before = target.read_bytes()
    if chance.random() < 0.5:
        where, work = "byte", at_byte(new, target, chance.randrange(new.num_bytes))
    else:
        where = chance.choice(CALLS)
        work = at_call(new, target, where, chance.randrange(3), chance.random() < 0.5)
    with target.open("rb") as reader:
        has_died = killed(work)
        tally.partial += reader.read() != before
    if not target.exists():
        tally.lost += 1
    else:
        is_old = target.read_bytes() == before
        tally.partial += not (is_old or verified(target).is_sound)
        fate = f"killed at {where}" if has_died else "ended well"
        tally.outcomes[f"{fate}: the {'old' if is_old else 'new'} file"] += 1
    list(write_snapshot(new, target))
    tally.stray += sum(each != target for each in folder.iterdir())


def kills(count: int, seed: int) -> Tally:
    """Kill so many exports, one after the other."""
    chance, tally = random.Random(seed), Tally()
    chunk, write.CHUNK_BYTES = write.CHUNK_BYTES, CHUNK_BYTES
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(count):
                trial(Path(folder), chance, tally)
    finally:
        write.CHUNK_BYTES = chunk
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="50 kills")
    arguments = parser.parse_args()
    tally = kills(50 if arguments.short else arguments.kills, arguments.seed)
    for outcome, count in sorted(tally.outcomes.items()):
        print(f"{count:>6,}  {outcome}")
    print(f"{tally.lost} lost, {tally.partial} partial, {tally.stray} stray files")
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
