"""Takes the rows of a snapshot into a session: resumes decoding with its model, bit for bit, or edits with them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs

from engine.cache.contract import StoredCache, StoredLayer, StoredPart, StoredTable
from engine.cache.paged.pool import PoolExhausted
from engine.errors import InputError
from engine.geometry.dimensions import LayerGeometry
from engine.history.state import Move, SequenceState, SharedList, to_force
from engine.look.source import chosen
from engine.model.loader import LoadedModel
from engine.model.tokenizer import tokenizer_fingerprint
from engine.predict.capacity import is_pageable
from engine.session.edits import RowsFrom, check_shapes, heads_of, places_among
from engine.session.session import Session
from engine.session.states import LiveSequence
from engine.snapshot.foreign import GOES_ON_AS, why_not_whole
from engine.snapshot.format import (
    CODE_OF_DTYPE,
    DTYPE_NAMES,
    MARKS,
    SCORES,
    LayerEntry,
    checksum,
    part_shapes,
    table_name,
)
from engine.snapshot.read import SnapshotFile, do_ascend
from engine.snapshot.verify import check_essentials
from engine.snapshot.write import DTYPES
from engine.spec.cache import CacheSpec
from engine.spec.codec import PARTS, Part
from engine.spec.edit import Overwrite
from engine.spec.sampling import Prompt

NUM_COMPARED = 64  # tokens of another program's cache that are computed again, to be compared
MAX_DIFFERENCE = 0.1  # of the size of K or V of a layer; rounding gives 0.02 in bfloat16, other weights or ids some 1


def resumed(model: LoadedModel, file: SnapshotFile) -> Session:
    """A session with the sequence of a snapshot, ready to step; raises `InputError` with the reason of
    `why_not_resumable`, or if the contents do not fit the cache."""
    check_essentials(file)
    reason = why_not_resumable(model, file)
    spec = file.manifest.cache_spec
    if reason or spec is None:
        raise InputError(f"'{file.path}' can be viewed and not gone on from: {reason}.")
    stored, sequence = stored_cache(file, model.device), sequence_of(file)
    logits = tensor_of(file, "logits", model.device) if "logits" in file else None
    if is_brought_in(file):
        check_computes(model, file)
        if sequence.sampled is None:
            sequence, logits = choose_next(model, file, stored, sequence)
    return _restored(model, file, stored, sequence, logits)


def _restored(
    model: LoadedModel, file: SnapshotFile, stored: StoredCache, sequence: SequenceState, logits: torch.Tensor | None
) -> Session:
    """A session that holds one sequence and what was stored of its cache."""
    spec = file.manifest.cache_spec or CacheSpec()
    session = Session(model, spec)
    session.open_rows = rows_of_file
    seq_id, mode = file.manifest.sequence.seq_id, session.live.mode
    step = file.manifest.step or 0
    sequence = structs.replace(sequence, computed_by=(step, seq_id), moves=(Move(-1, 0, spec),))
    cache = mode.new_cache(seq_id, sequence.num_prompt_tokens)
    mode.check_holds(seq_id, sequence, cache)
    try:
        cache.restore(stored)
    except PoolExhausted as error:
        raise InputError(f"'{file.path}' does not fit into its page pool ({error}): it was changed.") from None
    cache.register_prefix(sequence.token_ids)
    session.live.add(LiveSequence(seq_id, sequence, cache, logits))
    attention = attention_of(file, model.device)
    session.history.begin_at(step, seq_id, sequence, spec, logits, attention)
    session.pin_first_state()
    return session


def why_not_resumable(model: LoadedModel, file: SnapshotFile) -> str:
    """Why decoding cannot continue from a snapshot with this model, in words; empty if it can."""
    manifest, info = file.manifest, model.info
    if manifest.why_not:
        return manifest.why_not
    if manifest.cache_spec is None:
        return "it says nothing of its cache mode"
    is_known = manifest.fingerprint or not is_brought_in(file)
    if is_known and manifest.fingerprint != info.fingerprint:
        return f"it was made with other weights or another config than '{info.name}' has now"
    is_known = manifest.tokenizer_fingerprint or not is_brought_in(file)
    if is_known and manifest.tokenizer_fingerprint != tokenizer_fingerprint(model.tokenizer):
        return f"the tokenizer of '{info.name}' is another one than it was made with"
    if manifest.dtype != info.dtype:
        return f"it was made in {manifest.dtype} and the model runs in {info.dtype}: load it in that dtype"
    return misfit(model, file)


def is_brought_in(file: SnapshotFile) -> bool:
    """Whether another program made the rows: no step of this one did. Such a file names its model only where that was
    loaded from a folder, and its tokenizer only where that was given."""
    return file.manifest.step is None and file.manifest.cache_spec is not None


def misfit(model: LoadedModel, file: SnapshotFile) -> str:
    """What in a file does not fit the model, although the fingerprint is the same; empty if everything fits."""
    manifest, geometry = file.manifest, model.info.geometry
    kept = {layer.index: layer for layer in geometry.attention_layers}
    if {layer.index for layer in manifest.layers} != set(kept):
        return "it has other layers than the model"
    for entry in manifest.layers:
        layer = kept[entry.index]
        here = (len(entry.heads), entry.num_kv_heads, entry.key_dim, entry.value_dim, entry.dtype)
        if here != (layer.num_kv_heads, layer.num_kv_heads, layer.key_dim, layer.value_dim, model.info.dtype):
            return f"layer {entry.index} has other dimensions than the model's"
        if not _is_written_as(entry, layer, manifest.cache_spec or CacheSpec()):
            return f"layer {entry.index} is written in another codec than its cache mode has"
    if misfit := _state_misfit(model, file):
        return misfit
    if is_brought_in(file):
        if manifest.cache_spec != GOES_ON_AS:
            return "it names no step, and no cache mode that another program's cache goes on in"
        if lacking := why_not_whole(manifest.layers, geometry, manifest.num_tokens):
            return lacking
    vocab, sequence = model.vocab_size, manifest.sequence
    ids = file.array("token_ids")
    follows = (*sequence.forced, *file.waiting_ids, *(() if sequence.sampled is None else (sequence.sampled,)))
    if int(ids.min()) < 0 or int(ids.max()) >= vocab or any(not 0 <= token_id < vocab for token_id in follows):
        return "it has token ids that the model does not have"
    if sequence.stop is None and not follows and not is_brought_in(file):
        return "no token was chosen to follow, and none of its prompt waits"
    if sequence.num_prompt_tokens > manifest.num_tokens + len(file.waiting_ids):
        return "its prompt has more tokens than it holds"
    if "logits" in file and file.entries["logits"].shape != (vocab,):
        return "its logits are of another vocabulary"
    return _table_misfit(file)


def _state_misfit(model: LoadedModel, file: SnapshotFile) -> str:
    """Which recurrent state of the file does not fit the model in layer, shape or dtype; empty if all do. A mode that
    recomputes everything needs no states."""
    if not file.manifest.states and (file.manifest.cache_spec or CacheSpec()).recomputes:
        return ""
    sizes = dict[int, int]()
    for state in file.manifest.states:
        sizes[state.layer] = sizes.get(state.layer, 0) + math.prod(file.entries[state.name].shape)
    layers = model.info.geometry.layers
    wanted = {layer.index: layer.state_elements for layer in layers if layer.kind == "linear" or layer.state_elements}
    if sizes.keys() != wanted.keys():
        return "it has the states of other layers than the model"
    other = next((i for i, count in wanted.items() if count is not None and count != sizes[i]), None)
    if other is not None:
        return f"the state of layer {other} has another size than the model's"
    made = states_after_one_token(model) if file.manifest.states else []
    for state in file.manifest.states:
        entry, own = file.entries[state.name], made[state.layer].get(state.key)
        if own is None or entry.shape != own.shape:
            here = "none" if own is None else list(own.shape)
            return f"the state '{state.name}' has the shape {list(entry.shape)}, and that of the model {here}"
        if DTYPES[entry.dtype] != own.dtype:
            dtypes = DTYPE_NAMES[entry.dtype], str(own.dtype).removeprefix("torch.")
            return f"the state of layer {state.layer} is in {dtypes[0]}, and the model computes in {dtypes[1]}"
    return ""


def states_after_one_token(model: LoadedModel) -> list[dict[str, torch.Tensor]]:
    """The recurrent states of each layer after one token; their shapes and dtypes are the same after any token."""
    session = Session(model, CacheSpec(), capture="off", surprisal=False, is_scratch=True)
    cache = session.cache_of(session.submit(Prompt(token_ids=(0,))))
    session.step()
    return [layer.stored_states() for layer in cache.layers]


def _is_written_as(entry: LayerEntry, layer: LayerGeometry, spec: CacheSpec) -> bool:
    # not coded either: rows of layers that have a state, and those of an encoder, stay exact
    if not is_pageable(layer):
        return all(entry.part(name).codec == "exact" for name in PARTS)
    if spec.layout == "quantized":
        return all(entry.part(name).codec in ("exact", "transformers-fp8") for name in PARTS)
    codings = spec.codec.at(entry.index)
    return all(
        (part.codec, part.group, part.residual) == (coding.name, coding.group, coding.residual)
        and (part.num_coded in (0, entry.num_rows) or coding.is_kivi)
        and (not coding.is_kivi or part.num_coded in (0, coding.num_coded(entry.num_rows, name)))
        and not (coding.is_kivi and part.num_coded and part.quantised_at is None)
        for name, coding in zip(PARTS, codings, strict=True)
        for part in (entry.part(name),)
    )


def _table_misfit(file: SnapshotFile) -> str:
    """Which page table disagrees with the number of rows, their positions or the cache mode; empty if none does."""
    manifest = file.manifest
    spec = manifest.cache_spec or CacheSpec()
    in_tables = {index for table in manifest.tables for index in table.layers}
    if spec.is_paged != bool(manifest.tables):
        return "its page tables and its cache mode contradict each other"
    for number, table in enumerate(manifest.tables):
        ids = file.array(table_name(number))
        size, count = table.page_size, manifest.num_in_tables
        held = [place for place, page_id in enumerate(ids.tolist()) if page_id]
        num_held = sum(min(size, count - place * size) for place in held)
        if size != spec.page_size or not held or held[-1] != len(ids) - 1:
            return f"page table {number} is not one of its cache mode"
        if any(manifest.layer(index).num_rows != num_held for index in table.layers):
            return f"page table {number} has other rows than its layers"
    for entry in manifest.layers:
        if entry.index not in in_tables and spec.is_paged and entry.kind != "cross":
            return f"layer {entry.index} is in no page table"
        if entry.has_positions and spec.retention.keeps_all:
            return f"layer {entry.index} lacks rows that its cache mode keeps"
        if entry.has_positions and not do_ascend(file.array(entry.name("positions")), manifest.num_tokens):
            return f"layer {entry.index} has rows at impossible positions"
        masks = [file.entries[name] for what in MARKS if (name := entry.name(what)) in file.entries]
        if any(not 0 < mask.shape[1] <= manifest.num_tokens or manifest.edited_from is None for mask in masks):
            return f"rows of layer {entry.index} were marked by hand that it does not have"
    return ""


# ---- caches of other programs ------------------------------------------------------------------------------------


def check_computes(model: LoadedModel, file: SnapshotFile) -> None:
    """Raise `InputError` unless the model computes the rows of the file from its tokens, up to rounding: other weights,
    padding, other positions and ids that do not belong to the rows are found so. The first tokens are computed again,
    or all where every layer has lost its first ones."""
    is_cut = all(entry.first for entry in file.layers)
    count = file.manifest.num_tokens if is_cut else min(file.manifest.num_tokens, NUM_COMPARED)
    session = Session(model, CacheSpec(), capture="off", surprisal=False, is_scratch=True)
    cache = session.cache_of(session.submit(Prompt(token_ids=file.token_ids[:count])))
    while session.is_prefilling:
        session.step()
    for entry in file.layers:
        held = cache.rows(entry.index)
        assert held is not None, "the layer is an attention layer of the model"
        first = max(held.first, entry.first)
        for name in PARTS:
            own = chosen(held, name)[0, :, first - held.first :].float()
            theirs = tensor_of(file, entry.name(name), own.device)[0, :, first - entry.first : count - entry.first]
            # what is compared has run through other attention code, in the model's dtype
            if not (own - theirs).norm() <= MAX_DIFFERENCE * own.norm():
                raise InputError(
                    f"'{file.path}' can be viewed and not gone on from: the {name} of layer {entry.index} are not "
                    f"those that '{model.info.name}' computes of its tokens. Give save_cache the model and the ids "
                    "that made the rows; rows that were padded, moved or changed cannot go on here."
                )


def choose_next(
    model: LoadedModel, file: SnapshotFile, stored: StoredCache, sequence: SequenceState
) -> tuple[SequenceState, torch.Tensor]:
    """The sequence with the token chosen that follows, and the logits `[V]` of its last token: that token is computed
    again from the rows before it, and the rows of the file stay."""
    count = stored.num_tokens - 1
    windows = {layer.index: layer.window for layer in model.info.geometry.attention_layers}
    lacks = any(
        layer.first > max(0, count - window + 1)
        for index, layer in stored.layers.items()
        if (window := windows[index]) is not None
    )
    if lacks:
        raise InputError(
            f"'{file.path}' can be viewed and not gone on from: it does not say which token comes next, and a row "
            "that is needed to compute it has left its window. Give save_cache the id of the next token as well, "
            "behind those that were computed."
        )
    if count:
        session = _restored(model, file, _without_last(stored), structs.replace(sequence, num_tokens=count), None)
    else:
        session = Session(model, CacheSpec(), is_scratch=True)
        session.submit(Prompt(token_ids=tuple(sequence.token_ids)))
    session.step()
    (live,) = session.live
    assert live.logits is not None
    return structs.replace(sequence, sampled=live.sequence.sampled, stop=live.sequence.stop), live.logits


def _without_last(stored: StoredCache) -> StoredCache:
    """A stored cache of exact, consecutive rows without the row of its last token."""

    def cut(layer: StoredLayer) -> StoredLayer:
        keys, values = (StoredPart({"rows": part.tensors["rows"][:, :, :-1]}) for part in (layer.keys, layer.values))
        return replace(layer, keys=keys, values=values, num_tokens=layer.num_tokens - 1, num_rows=layer.num_rows - 1)

    layers = {index: cut(layer) for index, layer in stored.layers.items()}
    return replace(stored, num_tokens=stored.num_tokens - 1, layers=layers)


# ---- reading tensors ---------------------------------------------------------------------------------------------


def tensor_of(file: SnapshotFile, name: str, device: torch.device) -> torch.Tensor:
    """A tensor of the file, in its own memory; raises `InputError` if its checksum is wrong."""
    entry, content, total = file.entries[name], bytearray(), checksum(file.manifest.checksum_kind)
    for piece in file.pieces(name):
        content += piece
        total.update(piece)
    if total.hexdigest() != file.manifest.checksums.get(name):
        raise InputError(f"'{file.path}' is damaged: '{name}' has another checksum. Take another copy of it.")
    dtype = DTYPES[entry.dtype]
    if not content:
        return torch.zeros(entry.shape, dtype=dtype, device=device)
    return torch.frombuffer(content, dtype=dtype).reshape(entry.shape).to(device)


def stored_cache(file: SnapshotFile, device: torch.device) -> StoredCache:
    """The cache in the form in which it was stored."""
    manifest = file.manifest
    layers = {entry.index: _stored_layer(file, entry, device) for entry in manifest.layers}
    tables = tuple(
        StoredTable(table.layers, table.page_size, tuple(file.array(table_name(number)).tolist()), table.window)
        for number, table in enumerate(manifest.tables)
    )
    states: dict[int, dict[str, torch.Tensor]] = {}
    for state in manifest.states:
        states.setdefault(state.layer, {})[state.key] = tensor_of(file, state.name, device)
    ended_at, edited_from = manifest.prompt_ended_at, manifest.edited_from
    return StoredCache(manifest.num_tokens, layers, ended_at, tables, edited_from, states)


def _stored_layer(file: SnapshotFile, entry: LayerEntry, device: torch.device) -> StoredLayer:
    keys, values = (_stored_part(file, entry, name, device) for name in PARTS)
    beside = {what: entry.name(what) for what in ("positions", *SCORES)}
    found: dict[str, Any] = {what: tensor_of(file, name, device) for what, name in beside.items() if name in file}
    for marks in MARKS:
        if (name := entry.name(marks)) in file:
            found[marks] = tensor_of(file, name, torch.device("cpu")).bool()
    dtype = DTYPES[CODE_OF_DTYPE[entry.dtype]]
    return StoredLayer(keys, values, file.manifest.num_tokens, entry.num_rows, dtype, entry.first, **found)


def _stored_part(file: SnapshotFile, entry: LayerEntry, name: Part, device: torch.device) -> StoredPart:
    part, prefix = entry.part(name), entry.name(name)
    tensors = {
        full.removeprefix(prefix).removeprefix(".") or "rows": tensor_of(file, full, device)
        for full in part_shapes(entry, name)
    }
    return StoredPart(tensors, part.codec, part.num_coded, part.quantised_at)


def sequence_of(file: SnapshotFile) -> SequenceState:
    """The sequence of a snapshot, with its waiting and forced tokens. One that a person or a run stopped, or that had
    as many tokens as were asked for, is not stopped any more and has no limit, since it is to go on."""
    entry, manifest = file.manifest.sequence, file.manifest
    is_over = entry.stop in ("stopped", "length")
    return SequenceState(
        SharedList([*file.token_ids, *file.waiting_ids]),
        entry.num_prompt_tokens,
        structs.replace(entry.sampling, max_new_tokens=None) if entry.stop == "length" else entry.sampling,
        manifest.num_tokens,
        entry.sampled,
        entry.sampled_is_forced,
        to_force(entry.forced),
        None if is_over else entry.stop,
    )


def attention_of(file: SnapshotFile, device: torch.device) -> dict[int, torch.Tensor]:
    """The newest query's weights `[H, S]` by layer, where they are written."""
    names = {entry.index: entry.name("attention") for entry in file.layers}
    return {index: tensor_of(file, name, device) for index, name in names.items() if name in file}


# ---- rows of a snapshot file as the source of an `Overwrite` edit ----------------------------------------------------


@contextmanager
def rows_of_file(path: str) -> Iterator[RowsFrom]:
    """The rows of a file while the context is open; raises `InputError` if it is no snapshot."""
    with SnapshotFile(Path(path)) as file:
        yield partial(_rows_in, file)


def _rows_in(file: SnapshotFile, layer: LayerGeometry, part: Part, edit: Overwrite) -> torch.Tensor:
    where, one, found = f"'{file.path}'", edit.rows, []
    for head in heads_of(one, layer):
        positions = torch.tensor(np.array(file.positions(layer.index, head), np.int64))
        places = places_among(positions[None].expand(layer.num_kv_heads, -1), layer, one, one.start + edit.shift, where)
        slots = places.slots[0]
        rows = file.rows(layer.index, part, head, range(int(slots[0]), int(slots[-1]) + 1))
        numbers = torch.from_numpy(np.array(rows, np.float32))[slots - slots[0]]
        found.append(check_shapes(numbers, layer, part, where))
    return torch.stack(found)
