"""What is told of moments and of what they take, in words."""

from __future__ import annotations

from app.draw.format import byte_size, thousands
from engine.wire.status import EngineStatus


def steps_words(count: int) -> str:
    """`1 moment`, `12 moments`."""
    return f"{thousands(count)} {'moment' if count == 1 else 'moments'}"


def kept_words(status: EngineStatus | None) -> str:
    """What moments take that are kept to be returned to, and how much they may; empty where none is."""
    if status is None or not status.kept:
        return ""
    return f" · kept {byte_size(status.kept_bytes)} of {byte_size(status.kept_limit)}"
