"""Snapshots: the cache of a sequence in one file, written, opened, checked, compared, and gone on from."""

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
    """Write the cache of any loop as a snapshot that KV Loupe opens; returns its path.

    `past_key_values` is any cache of transformers, or a list of pairs `(keys, values)`, one a layer, each
    `[B, H_kv, S, D]` or `[H_kv, S, D]`. `tokens` are the ids that were fed, and maybe the one that comes next;
    `tokenizer` gives their texts, `model` its config and name. `batch` says which sequence of the batch. Raises
    `InputError` where the cache cannot be read or the file cannot be written.
    """
    from engine.snapshot.bring import bring  # torch, only when there is something to write

    return bring(past_key_values, Path(path), tokens, tokenizer, model, batch, notes)
