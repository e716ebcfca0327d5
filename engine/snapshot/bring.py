"""A cache of somebody else's loop, written as a snapshot: what `save_cache` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.cache.contract import HeldRows
from engine.cache.layers.foreign import foreign_rows
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.model.text import TokenTexts
from engine.model.tokenizer import tokenizer_fingerprint
from engine.snapshot.format import DTYPE_NAMES, MAX_TOKENS, VERSION, LayerEntry, Manifest, SequenceEntry
from engine.snapshot.gather import created, piece_tensors, written_by
from engine.snapshot.manifest import written
from engine.snapshot.preview import preview_of
from engine.snapshot.pyramid import pyramid_for, pyramid_of
from engine.snapshot.write import Later, Snapshot, write_snapshot

WHY_NOT = "another program's cache was brought in: it says nothing of how decoding goes on"


def bring(cache: Any, path: Path, tokens: Any, tokenizer: Any, model: Any, batch: int = 0, notes: str = "") -> Path:
    """Write the snapshot of a cache; see `engine.snapshot.save_cache`."""
    for _ in write_snapshot(brought(cache, tokens, tokenizer, model, batch, notes), path):
        pass
    return path


def brought(
    cache: Any, tokens: Any, tokenizer: Any = None, model: Any = None, batch: int = 0, notes: str = ""
) -> Snapshot:
    """The snapshot of a cache, ready to be written."""
    rows = {index: (of_batch(held, batch, index), slides) for index, (held, slides) in foreign_rows(cache).items()}
    if not rows:
        raise InputError("The cache holds no K and V yet: save it after the first forward.")
    num_tokens = max(held.stop for held, _ in rows.values())
    ids = token_ids(tokens, batch)
    if ids is not None and len(ids) < num_tokens:
        raise InputError(
            f"The cache holds {num_tokens:,} tokens and {len(ids):,} ids were given: give all that were fed."
        )
    entries = tuple(_entry(index, held, slides) for index, (held, slides) in rows.items())
    tensors: dict[str, torch.Tensor | Later] = {"positions": torch.arange(num_tokens)[None]}
    for entry in entries:
        held = rows[entry.index][0]
        tensors |= {entry.name("keys"): held.keys, entry.name("values"): held.values}
    tensors["preview"] = preview_of(lambda index: rows[index][0], entries)
    pyramid = pyramid_for(num_tokens, entries)
    tensors |= pyramid_of(lambda index: rows[index][0], entries, pyramid, num_tokens)
    if ids is not None:
        tensors["token_ids"] = torch.tensor([ids[:num_tokens]])
    if ids is not None and tokenizer is not None:
        text_of = TokenTexts(tokenizer)
        pieces = (text_of(token_id).encode("utf-8", "backslashreplace") for token_id in ids[:num_tokens])
        tensors |= piece_tensors("token_texts", pieces)
    follows = ids[num_tokens] if ids is not None and len(ids) > num_tokens else None
    manifest = Manifest(
        VERSION,
        num_tokens,
        **_model_facts(model, entries),
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        cache=type(cache).__name__,
        provenance="as stored now",
        notes=notes,
        created=created(),
        written_by=written_by(),
        why_not=WHY_NOT,
        layers=entries,
        pyramid=pyramid,
        sequence=SequenceEntry(num_prompt_tokens=num_tokens, sampled=follows),
    )
    return Snapshot(tensors, written(manifest))


def of_batch(held: HeldRows, batch: int, index: int) -> HeldRows:
    """One sequence of the batch."""
    if not 0 <= batch < held.keys.shape[0]:
        raise InputError(f"There is no sequence {batch}: the batch has {held.keys.shape[0]}, counted from 0.")
    for part in (held.keys, held.values):
        if str(part.dtype).removeprefix("torch.") not in DTYPE_NAMES.values():
            raise InputError(f"Layer {index} holds {part.dtype}: give rows in float32, float16 or bfloat16.")
    if held.keys.dtype != held.values.dtype:
        raise InputError(
            f"Layer {index} has keys in {held.keys.dtype} and values in {held.values.dtype}: give one dtype."
        )
    return HeldRows(held.keys[batch : batch + 1].detach(), held.values[batch : batch + 1].detach(), held.first)


def token_ids(tokens: Any, batch: int) -> list[int] | None:
    """Token ids from a list, an array or a tensor, `[n]` or `[B, n]`; None where none were given."""
    if tokens is None:
        return None
    try:
        ids = torch.as_tensor(tokens)
        ids = ids[batch] if ids.dim() == 2 else ids
        found = [int(token_id) for token_id in ids.reshape(-1).tolist()]
    except (TypeError, ValueError, RuntimeError, IndexError, OverflowError):
        raise InputError("The tokens are no token ids: give whole numbers, one for each token fed.") from None
    if ids.is_floating_point() or any(not 0 <= token_id <= MAX_TOKENS for token_id in found):
        raise InputError("The tokens are no token ids: give whole numbers from 0 up.")
    return found


def _entry(index: int, held: HeldRows, slides: bool) -> LayerEntry:
    _, heads, count, key_dim = held.keys.shape
    dtype = str(held.keys.dtype).removeprefix("torch.")
    kind = "sliding" if slides else "full"
    return LayerEntry(index, kind, heads, tuple(range(heads)), key_dim, held.values.shape[3], dtype, count, held.first)


def _model_facts(model: Any, entries: tuple[LayerEntry, ...]) -> dict[str, Any]:
    """What is known of a model of transformers: its name, config and kinds of layers."""
    facts: dict[str, Any] = {"dtype": entries[0].dtype}
    config = getattr(model, "config", None)
    if config is None:
        return facts
    facts |= {
        "model": str(getattr(config, "_name_or_path", "") or type(model).__name__),
        "architecture": type(model).__name__,
        "config": config.to_json_string(use_diff=False),
    }
    try:
        kinds = tuple(layer.kind for layer in CacheGeometry.from_config(config).layers)
    except InputError:  # an architecture whose layers are not known can be looked at all the same
        return facts
    return facts | ({"layer_kinds": kinds} if len(kinds) > entries[-1].index else {})
