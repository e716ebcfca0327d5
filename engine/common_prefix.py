"""The length of the common prefix of two sequences."""

from __future__ import annotations

from collections.abc import Sequence


def num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading tokens of two lists, or characters of two texts, are equal."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:  # the usual case, and much faster
        return shorter
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)
