"""How much of their beginnings two sequences have in common."""

from __future__ import annotations

from collections.abc import Sequence


def num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many tokens of two lists, or characters of two texts, are the same before the first that differs."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:  # most often, and much faster
        return shorter
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)
