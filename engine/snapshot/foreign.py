"""Writes the caches of other programs as snapshots: those passed to `save_cache`, those in npz files, and those
of llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.cache.contract import HeldRows
from engine.cache.layers.handles import foreign_rows
from engine.counted import counted
from engine.errors import InputError
from engine.files.text import kind_of, model_beside
from engine.geometry.dimensions import CacheGeometry
from engine.look.source import chosen
from engine.model.source import find_source, fingerprint
from engine.model.tokenizer import TokenTexts, tokenizer_fingerprint
from engine.predict.capacity import is_pageable
from engine.snapshot.format import (
    CODE_OF_DTYPE,
    MAX_TOKENS,
    WITHOUT_STATES,
    Array,
    LayerEntry,
    Manifest,
    SequenceEntry,
)
from engine.snapshot.gather import Contents, Tensors, part_of, piece_tensors
from engine.snapshot.llama_state import ModelOfState, read_state, refuse_gguf
from engine.snapshot.npz import ForeignCache, from_npz
from engine.snapshot.write import Snapshot, write_snapshot
from engine.spec.cache import CacheSpec
from engine.spec.codec import Part
from engine.spec.model import BUNDLED, RESOURCES, ModelSpec
from engine.wire.exporting import Export

WHY_NOT = "another program's cache was brought in: it says nothing of how decoding goes on"
GOES_ON_AS = CacheSpec("dynamic")  # the mode that a cache brought in with its model goes on in: transformers' own


def write_cache(
    cache: Any, path: Path, tokens: Any, tokenizer: Any, model: Any, batch: int = 0, notes: str = ""
) -> Path:
    """Write the snapshot of a cache; see `engine.snapshot.save_cache`."""
    for _ in write_snapshot(snapshot_of_cache(cache, tokens, tokenizer, model, batch, notes), path):
        pass
    return path


def snapshot_of_cache(
    cache: Any, tokens: Any, tokenizer: Any = None, model: Any = None, batch: int = 0, notes: str = ""
) -> Snapshot:
    """The snapshot of a cache, ready to be written. Raises `InputError` if the cache holds no K and V."""
    rows = {index: (of_batch(held, batch, index), slides) for index, (held, slides) in foreign_rows(cache).items()}
    if not rows:
        raise InputError("The cache holds no K and V yet: save it after the first forward.")
    num_tokens = max(held.stop for held, _ in rows.values())
    ids = token_ids(tokens, batch)
    if ids is not None and len(ids) < num_tokens:
        raise InputError(
            f"The cache holds {counted(num_tokens, 'token')} and the ids of {len(ids):,} were given: "
            "give all that were computed."
        )
    is_quantised = any(hasattr(layer, "_dequantize") for layer in getattr(cache, "layers", ()))
    why_not = "its rows are quantised, and were written as numbers" if is_quantised else ""
    fields = {"cache": type(cache).__name__, "notes": notes}
    return _snapshot(rows, num_tokens, ids, tokenizer, model, why_not, fields=fields)


def snapshot_of_file(path: Path, model: ModelOfState | None = None) -> Snapshot:
    """The snapshot of another program's file: a state file of llama.cpp with its `model` (by default the one beside
    it), else an npz. Raises `InputError` where it cannot be read."""
    match kind_of(path):
        case "" if model is None or path.suffix == ".npz":
            return snapshot_of_arrays(from_npz(path), path)
        case "gguf":
            raise refuse_gguf(path)
    if (model := model or model_beside(path)) is None:
        raise InputError(
            f"'{path}' does not say of which model it is: put that model's .gguf or config.json beside it, "
            "choose it where Open… asks for it, or run kvloupe-engine snapshot import with --gguf or --config."
        )
    return snapshot_of_arrays(read_state(path, model), path)


def snapshot_of_arrays(cache: ForeignCache, path: Path) -> Snapshot:
    """The snapshot of the cache of another program's file, with its rows at their original positions."""
    pairs = [tuple(map(_tensor, (layer.keys, layer.values))) for layer in cache.layers.values()]
    found = foreign_rows(pairs)
    rows = {
        index: (_placed(of_batch(found[number][0], 0, index), layer.positions), False)
        for number, (index, layer) in enumerate(cache.layers.items())
        if number in found
    }
    if not rows:
        raise InputError(f"'{path}' holds no K and V: save a cache in which something was computed.")
    num_tokens = cache.num_tokens or max(held.stop for held, _ in rows.values())
    if max(held.stop for held, _ in rows.values()) > num_tokens:
        raise InputError(
            f"'{path}' has rows behind its {counted(num_tokens, 'token')}: give the ids of all that were computed."
        )
    return _snapshot(rows, num_tokens, token_ids(cache.token_ids, 0), fields=cache.fields)


def _tensor(array: Array) -> torch.Tensor:
    """An array in the byte order of this machine, copied only if it cannot be used as it is."""
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["W"]))


def _placed(held: HeldRows, positions: Array | None) -> HeldRows:
    """Rows at the positions `[H, S]` that a file gives: consecutive ones, or with gaps where rows were evicted."""
    if positions is None:
        return held
    places = np.array(positions, np.int64)
    first = int(places[0, 0])
    if (places == np.arange(first, first + places.shape[1])).all():
        return HeldRows(held.keys, held.values, first)
    return HeldRows(held.keys, held.values, 0, torch.from_numpy(places))


def _snapshot(
    rows: dict[int, tuple[HeldRows, bool]],
    num_tokens: int,
    ids: list[int] | None,
    tokenizer: Any = None,
    model: Any = None,
    why_not: str = "",
    *,
    fields: dict[str, str],
) -> Snapshot:
    """The snapshot of rows by layer, each with whether the layer keeps a window. If there are more `ids` than
    `num_tokens`, the next one is the chosen token. `why_not`: why decoding cannot go on from these rows; `fields`: what
    else the manifest says, of a model that is not transformers' too."""
    entries = tuple(_entry(index, held, slides) for index, (held, slides) in rows.items())
    why_not = _why_not(model, ids, entries, num_tokens) or why_not
    tensors: Tensors = {"positions": torch.arange(num_tokens)[None]}
    if ids is not None:
        tensors["token_ids"] = torch.tensor([ids[:num_tokens]])
    if ids is not None and tokenizer is not None:
        text_of = TokenTexts(tokenizer)
        pieces = (text_of(token_id).encode("utf-8", "backslashreplace") for token_id in ids[:num_tokens])
        tensors |= piece_tensors("token_texts", pieces)
    stored: Tensors = {}
    for entry in entries:
        held = rows[entry.index][0]
        stored |= {entry.name("keys"): held.keys, entry.name("values"): held.values}
        if held.positions is not None:
            stored[entry.name("positions")] = held.positions
    follows = ids[num_tokens] if ids is not None and len(ids) > num_tokens else None
    manifest = Manifest(
        WITHOUT_STATES,
        num_tokens,
        **(_model_facts(model, entries) | fields),
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        cache_spec=None if why_not else GOES_ON_AS,
        why_not=why_not,
        layers=entries,
        sequence=SequenceEntry(num_prompt_tokens=num_tokens, sampled=follows),
    )

    def rows_of(entry: LayerEntry, name: Part) -> torch.Tensor:
        return chosen(rows[entry.index][0], name)

    contents = Contents(manifest, tensors, stored.get, rows_of, lambda _: "as stored now")
    return part_of(contents, Export(Path("unwritten"), 0, form="rows"))


def of_batch(held: HeldRows, batch: int, index: int) -> HeldRows:
    """The rows of one sequence of the batch. Raises `InputError` for a batch index or a dtype that is not possible."""
    if not 0 <= batch < held.keys.shape[0]:
        raise InputError(f"There is no sequence {batch}: the batch has {held.keys.shape[0]}, counted from 0.")
    for part in (held.keys, held.values):
        if str(part.dtype).removeprefix("torch.") not in CODE_OF_DTYPE:
            raise InputError(f"Layer {index} holds {part.dtype}: give rows in float32, float16 or bfloat16.")
    if held.keys.dtype != held.values.dtype:
        raise InputError(
            f"Layer {index} has keys in {held.keys.dtype} and values in {held.values.dtype}: give one dtype."
        )
    return HeldRows(held.keys[batch : batch + 1].detach(), held.values[batch : batch + 1].detach(), held.first)


def token_ids(tokens: Any, batch: int) -> list[int] | None:
    """Token ids from a list, an array or a tensor, `[n]` or `[B, n]`; None if there are none."""
    if tokens is None:
        return None
    try:
        ids = torch.as_tensor(tokens)
        ids = ids[batch] if ids.dim() == 2 else ids
        found = [int(token_id) for token_id in ids.reshape(-1).tolist()]
    except (TypeError, ValueError, RuntimeError, IndexError, OverflowError):
        raise InputError("The tokens are no token ids: give whole numbers, one for each token computed.") from None
    if ids.is_floating_point() or any(not 0 <= token_id <= MAX_TOKENS for token_id in found):
        raise InputError("The tokens are no token ids: give whole numbers from 0 up.")
    return found


def _entry(index: int, held: HeldRows, slides: bool) -> LayerEntry:
    _, heads, count, key_dim = held.keys.shape
    dtype = str(held.keys.dtype).removeprefix("torch.")
    kind = "sliding" if slides else "full"
    dims, has_positions = (key_dim, held.values.shape[3]), held.positions is not None
    return LayerEntry(index, kind, heads, tuple(range(heads)), *dims, dtype, count, held.first, has_positions)


def _why_not(model: Any, ids: list[int] | None, entries: tuple[LayerEntry, ...], num_tokens: int) -> str:
    """Why decoding cannot go on from rows that were brought in with this model; empty if it can."""
    if (config := getattr(model, "config", None)) is None:
        return WHY_NOT
    if ids is None:
        return "another program's cache was brought in without the ids of its tokens"
    try:
        return why_not_whole(entries, CacheGeometry.from_config(config), num_tokens)
    except InputError as error:
        return str(error).rstrip(".")


def why_not_whole(entries: tuple[LayerEntry, ...], geometry: CacheGeometry, num_tokens: int) -> str:
    """Which layer of a cache that was brought in lacks something that the next token reads; empty if none does."""
    kept = {layer.index: layer for layer in geometry.attention_layers}
    if geometry.has_encoder:
        return "another program's cache was brought in without the rows of its encoder"
    if not all(is_pageable(layer) or layer.kind in ("shared", "none") for layer in geometry.layers):
        return "another program's cache was brought in without its recurrent states"
    if kept.keys() != {entry.index for entry in entries}:
        return "it has other layers than its model"
    for entry in entries:
        window = kept[entry.index].window
        wanted = 0 if window is None else max(0, num_tokens - window + 1)
        if entry.has_positions or entry.first > wanted or entry.first + entry.num_rows != num_tokens:
            return f"layer {entry.index} lacks rows that the next token reads"
    return ""


def _model_facts(model: Any, entries: tuple[LayerEntry, ...]) -> dict[str, Any]:
    """What the manifest says about a model of transformers: its name, config and kinds of layers."""
    facts: dict[str, Any] = {"dtype": entries[0].dtype}
    config = getattr(model, "config", None)
    if config is None:
        return facts
    facts |= _origin(str(getattr(config, "_name_or_path", "")) or type(model).__name__)
    facts |= {
        "architecture": type(model).__name__,
        "config": config.to_json_string(use_diff=False),
    }
    try:
        kinds = tuple(layer.kind for layer in CacheGeometry.from_config(config).layers)
    except InputError:  # the snapshot can be shown even if the kinds of layers are unknown
        return facts
    return facts | ({"layer_kinds": kinds} if len(kinds) > entries[-1].index else {})


def _origin(name: str) -> dict[str, str]:
    """The name of a model that was loaded from this name or path, and the fingerprint of the weights there; without a
    fingerprint where they are not on this machine. What the model in memory computes is compared when decoding goes
    on."""
    is_bundled = Path(name).absolute() == (RESOURCES / "demo_model").absolute()
    try:
        source = find_source(ModelSpec(BUNDLED if is_bundled else name), lambda *_: None)
        return {"model": source.name, "fingerprint": fingerprint(source)}
    except (InputError, OSError):
        return {"model": name}
