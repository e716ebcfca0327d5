"""Whether what a cache reserves at once fits into the memory that is free: asked before anything is allocated."""

from __future__ import annotations

import torch

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.memory import free_bytes
from engine.predict.bytes import Fill, predict
from engine.predict.capacity import context_length, reserved_length
from engine.spec.cache import CacheSpec


def check_reserved(spec: CacheSpec, geometry: CacheGeometry, dtype: str, device: torch.device) -> None:
    """Refuse a static or allocated cache that is larger than the memory that is free."""
    if spec.form not in ("static", "allocated"):
        return
    needed = sum(need.reserved for need in predict(spec, geometry, Fill(1, 1), dtype))
    num_tokens = reserved_length(spec, context_length(geometry))
    check_room(f"A cache of {num_tokens:,} reserved tokens", needed, free_bytes(device))


def check_room(what: str, num_bytes: int, free: int) -> None:
    """Refuse what is larger than the memory that is free."""
    if num_bytes > free:
        raise InputError(
            f"{what} takes {num_bytes / 2**30:,.1f} GiB and {free / 2**30:,.1f} GiB are free: ask for less."
        )
