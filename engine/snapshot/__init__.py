"""Snapshots: the cache of a sequence in one file. This package writes, opens, checks, compares and resumes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save_cache(
    past_key_values: Any,
    path: str | Path,
    tokens: Any = None,
    tokenizer: Any = None,
    *,
    model: Any = None,
    batch: int = 0,
    notes: str = "",
) -> Path:
    """Write a cache of transformers, or K and V of any other program, as a snapshot that KV Loupe opens; returns its
    path.

    `past_key_values` is any cache of transformers, or a list of pairs `(keys, values)`, one per layer, each `[B, H_kv,
    S, D]` or `[H_kv, S, D]`. `tokens` are the ids that were computed, optionally followed by the one that comes next;
    `tokenizer` gives their texts, `model` its config, name and fingerprint; with `tokens` and `model` decoding can go
    on from the file. `batch` is the index of the sequence in the batch.
    Raises `InputError` if the cache cannot be read or the file cannot be written.
    """
    from engine.snapshot.foreign import write_cache  # imports torch, so only when something is written

    return write_cache(past_key_values, Path(path), tokens, tokenizer, model, batch, notes)
