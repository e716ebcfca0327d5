"""Which rows of a sweep are best for their bytes: the Pareto front of bytes against damage. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.wire.measurements import SweepRow, Unavailable

LEAST_KL = 1e-8  # below it float32 cannot tell two distributions apart


def front(num_bytes: Sequence[float], damage: Sequence[float]) -> tuple[int, ...]:
    """The points with less damage than everything that takes no more bytes, by rising bytes."""
    best, found = math.inf, []
    for index in sorted(range(len(num_bytes)), key=lambda i: (num_bytes[i], damage[i])):
        if damage[index] < best:
            best = damage[index]
            found.append(index)
    return tuple(found)


def best_by_text(rows: Sequence[SweepRow | Unavailable]) -> dict[str, tuple[str, ...]]:
    """For each text the modes that no other beats in bytes and KL; what keeps nothing and recomputes is left out."""
    by_text: dict[str, list[SweepRow]] = {}
    for row in rows:
        if isinstance(row, SweepRow) and row.kv_bytes > 0:
            by_text.setdefault(row.text, []).append(row)
    return {text: tuple(some[i].cache for i in front_of(some)) for text, some in by_text.items()}


def front_of(rows: Sequence[SweepRow]) -> tuple[int, ...]:
    """The front by bytes and KL; a KL that rounding explains is none."""
    kl = [row.mean_kl if row.mean_kl >= LEAST_KL else 0.0 for row in rows]
    return front([row.kv_bytes for row in rows], kl)
