"""The Pareto front of a sweep: the modes with the least damage for their bytes. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.wire.measurements import SweepRow, Unavailable

LEAST_KL = 1e-8  # a smaller KL is explained by float32 rounding


def front(num_bytes: Sequence[float], damage: Sequence[float]) -> tuple[int, ...]:
    """Indices of the points that have less damage than all points with no more bytes, by ascending bytes."""
    best, found = math.inf, []
    for index in sorted(range(len(num_bytes)), key=lambda i: (num_bytes[i], damage[i])):
        if damage[index] < best:
            best = damage[index]
            found.append(index)
    return tuple(found)


def best_by_text(rows: Sequence[SweepRow | Unavailable]) -> dict[str, tuple[str, ...]]:
    """For each text the modes on the Pareto front of bytes and KL, without modes that keep nothing and recompute."""
    by_text: dict[str, list[SweepRow]] = {}
    for row in rows:
        if isinstance(row, SweepRow) and row.kv_bytes > 0:
            by_text.setdefault(row.text, []).append(row)
    return {text: tuple(some[i].cache for i in front_of(some)) for text, some in by_text.items()}


def front_of(rows: Sequence[SweepRow]) -> tuple[int, ...]:
    """Indices of the rows on the front of bytes and KL; a KL that rounding explains counts as 0."""
    kl = [row.mean_kl if row.mean_kl >= LEAST_KL else 0.0 for row in rows]
    return front([row.kv_bytes for row in rows], kl)
