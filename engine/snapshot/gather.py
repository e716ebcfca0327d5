"""Collects the contents of a snapshot: the rows of a sequence of a live session and all that it needs to continue, or a
part of another snapshot."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from msgspec.structs import replace

from engine.cache.contract import InPieces, RowsInPieces, StoredCache, StoredLayer, StoredPart
from engine.counted import counted
from engine.errors import InputError
from engine.history.state import SequenceState
from engine.look.lenses import held_of_all
from engine.look.magnitudes import LayerCount
from engine.look.source import CacheSource, chosen, provenance_of
from engine.model.tokenizer import tokenizer_fingerprint
from engine.snapshot.convert import unrecorded_nodes
from engine.snapshot.format import (
    ITEM_BYTES,
    PARTS,
    TRANSFORMERS_FP8,
    VERSION,
    WITHOUT_STATES,
    LayerEntry,
    Manifest,
    PartEntry,
    SequenceEntry,
    StateEntry,
    TableEntry,
    index_words,
    manifest_strings,
    part_shapes,
    table_name,
)
from engine.snapshot.read import Pieces, SnapshotFile, record_bytes, record_fields
from engine.snapshot.write import (
    DTYPES,
    LazyTensor,
    Preview,
    Snapshot,
    preview_shape,
    pyramid_for,
    pyramid_of,
    some_rows,
)
from engine.spec.cache import cache_name
from engine.spec.codec import Coding, Part
from engine.spec.lenses import LENSES
from engine.wire.exporting import Export

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.session.session import Session


Tensors = dict[str, torch.Tensor | InPieces | LazyTensor]


def snapshot_of(session: Session, command: Export) -> Snapshot:
    """The snapshot that a command asks for. Raises `InputError` for a step whose rows are no longer known."""
    sequence = session.sequence(command.seq_id)
    count = sequence.num_tokens if command.num_tokens is None else command.num_tokens
    if not 0 < count <= sequence.num_tokens:
        raise InputError(
            f"Sequence {command.seq_id} has {counted(sequence.num_tokens, 'token')} in its cache, not {count}: "
            "step first."
        )
    past = session.rows_at(command.seq_id, count)
    if not past.is_known:
        raise InputError("The rows of that step are not known any more as they were: go to it first, then export.")
    is_now = count == sequence.num_tokens
    step = session.last_step if is_now else session.history.step_with(command.seq_id, count)
    state = sequence if is_now or step is None else session.history.path.state(command.seq_id, step)
    stored = ExportChoice(session, session.cache_of(command.seq_id).stored(count), past, command)
    tensors = stored.tensors() | tokens(session, command.seq_id, count, state)
    tensors |= step_tensors(session, command, step, stored.entries) | piece_tensors(
        "records", record_bytes(command.records)
    )
    why_not = stored.why_not or ("" if state is not None and state.num_tokens == count else "no step ended there")
    manifest = Manifest(
        VERSION if stored.states else WITHOUT_STATES,
        count,
        **model_facts(session.model),
        cache=cache_name(session.cache),
        cache_spec=session.cache,
        form=command.form,
        provenance=provenance_of(past, [entry.index for entry in stored.entries]),
        step=step,
        notes=command.notes,
        view=command.view,
        bookmarks=command.bookmarks,
        why_not=why_not,
        prompt_ended_at=stored.cache.prompt_ended_at,
        edited_from=stored.cache.edited_from,
        layer_kinds=tuple(layer.kind for layer in session.model.info.geometry.layers),
        layers=stored.entries,
        tables=stored.tables,
        states=stored.states,
        pyramid=stored.pyramid,
        sequence=sequence_entry(command.seq_id, sequence.num_prompt_tokens, state),
        record_fields=record_fields() if command.records else {},
        moments=unrecorded_nodes(step, command.records, session.history.tree.nodes),
    )
    return Snapshot(tensors, manifest_strings(manifest))


# ---- the rows ----------------------------------------------------------------------------------------------------


class ExportChoice:
    """The chosen layers and heads of a cache, in the chosen form. `why_not` says why decoding cannot continue from
    them; empty if it can."""

    def __init__(self, session: Session, cache: StoredCache, past: CacheSource, command: Export) -> None:
        model = session.model
        self._blocks = session.seen.of(command.seq_id, past.cache).blocks
        self.cache, self._past, self._model, self._is_stored = cache, past, model, command.form == "stored"
        kept = {layer.index: layer for layer in model.info.geometry.attention_layers}
        wanted = kept.keys() if command.layers is None else command.layers
        check_numbers("layer", wanted, kept)
        self._layers = {i: layer for i, layer in cache.layers.items() if i in wanted}
        if not self._layers and (kept or not cache.states):
            raise InputError(
                "There is no K and V to export yet: run a prompt in a model and a cache mode that keep them."
            )
        self._heads = {i: heads_of(command.kv_heads, kept[i].num_kv_heads) for i in self._layers}
        is_part = any(len(heads) < kept[i].num_kv_heads for i, heads in self._heads.items())
        is_part |= len(self._layers) < len(cache.layers)
        self.entries = tuple(self._entry(i, layer) for i, layer in self._layers.items())
        self.pyramid = pyramid_for(past.num_tokens, self.entries)
        self.states = tuple(
            StateEntry(index, kind, int(number))  # type: ignore[arg-type]
            for index, states in cache.states.items()
            for kind, number in (key.split(".") for key in states)
        )
        self.why_not = self._why_not(cache, is_part)
        tables = cache.tables if not is_part and (self._is_stored or not self.why_not) else ()
        self.tables = tuple(TableEntry(table.layers, table.page_size, table.window) for table in tables)
        self._page_ids = {table_name(n): torch.tensor(table.page_ids) for n, table in enumerate(tables)}

    def _why_not(self, cache: StoredCache, is_part: bool) -> str:
        if is_part:
            return "not all layers and heads were written"
        if len(cache.layers) < len(self._model.info.geometry.attention_layers):
            return "layers without rows were not written"
        if cache.why_no_states and not self._past.cache.spec.recomputes:
            return cache.why_no_states
        is_coded = any(part.num_coded for layer in cache.layers.values() for part in (layer.keys, layer.values))
        if is_coded and not self._is_stored:
            return "the rows were written as numbers and not as they are stored"
        return next((layer.why_not for layer in cache.layers.values() if layer.why_not), "")

    def _entry(self, index: int, layer: StoredLayer) -> LayerEntry:
        geometry = self._model.info.geometry.layers[index]
        keys, values = (
            self._part_entry(part, index, name) for part, name in zip((layer.keys, layer.values), PARTS, strict=True)
        )
        return LayerEntry(
            index,
            geometry.kind,
            geometry.num_kv_heads,
            self._heads[index],
            geometry.key_dim,
            geometry.value_dim,
            str(layer.dtype).removeprefix("torch."),
            layer.num_rows,
            layer.first,
            layer.positions is not None,
            keys,
            values,
        )

    def _part_entry(self, part: StoredPart, index: int, name: Part) -> PartEntry:
        if part.codec == "exact" or not self._is_stored:
            return PartEntry()
        if part.codec == TRANSFORMERS_FP8:
            return PartEntry(part.codec, num_coded=part.num_coded)
        coding: Coding = self._past.cache.spec.codec.at(index)[PARTS.index(name)]
        return PartEntry(part.codec, coding.group, coding.residual, part.num_coded, part.quantised_at)

    def tensors(self) -> Tensors:
        """Every tensor of the layers, by full name."""
        found: Tensors = dict(self._page_ids)
        found |= {state.name: self.cache.states[state.layer][state.key] for state in self.states}
        preview = Preview(self._part, self.entries)
        for entry in self.entries:
            layer = self._layers[entry.index]
            for name, part in zip(PARTS, (layer.keys, layer.values), strict=True):
                if self._is_stored or not part.num_coded:
                    for suffix, tensor in part.kept.items():
                        full = name if suffix == "rows" else f"{name}.{suffix}"
                        found[entry.name(full)] = of_heads(tensor, entry)
                else:
                    found[entry.name(name)] = self._decoded(entry, name)
            if layer.positions is not None:
                found[entry.name("positions")] = layer.positions[list(entry.heads)]
            beside = {"memory": layer.memory, "sinks": layer.sinks} if not self.why_not else {}
            if not self.why_not:
                marks = {"hidden": layer.hidden, "pinned": layer.pinned}
                beside |= {what: mask.to(torch.uint8) for what, mask in marks.items() if mask is not None}
            found |= {entry.name(what): tensor for what, tensor in beside.items() if tensor is not None}
            # next to the rows in the file, so that they are computed while the rows are written
            found |= pyramid_of(preview.rows, entry, self.pyramid, self._past.num_tokens, self._count)
        found["preview"] = LazyTensor(torch.uint8, preview_shape(self.entries), preview.pictures)
        return found

    def _count(self, layer: int, name: Part) -> LayerCount | None:
        """The magnitude counts that the session keeps of a layer; None if only some heads are written, or if the rows
        are coded and would all have to be dequantised for it."""
        is_whole = len(self._heads[layer]) == self._model.info.geometry.layers[layer].num_kv_heads
        if not is_whole or not self._past.cache.spec.codec.is_exact:
            return None
        # a new object for each layer, because it caches the rows that it gathers from pages
        past = dataclasses.replace(self._past)
        return self._blocks.of(LENSES[name], past, held_of_all(past, LENSES[name], [layer])).get(layer)

    def _part(self, layer: int, name: Part) -> torch.Tensor | RowsInPieces:
        """K or V of a layer as attention reads it: as it is stored, or dequantised. Dequantised rows are computed anew
        each time, so that only one layer at a time is in memory."""
        stored = self._layers[layer]
        kept = (stored.keys, stored.values)[PARTS.index(name)].kept
        if "rows" in kept:
            return kept["rows"]
        held = self._past.cache.rows_at(layer, self._past.num_tokens)
        assert held is not None, "a layer that is written has rows"
        return chosen(held, name)[:, :, : stored.num_rows]

    def _decoded(self, entry: LayerEntry, name: Part) -> LazyTensor:
        def make() -> torch.Tensor:
            return some_rows(of_heads(self._part(entry.index, name), entry), slice(None))[None]

        return LazyTensor(getattr(torch, entry.dtype), (1, len(entry.heads), entry.num_rows, entry.dim(name)), make)


def of_heads(tensor: torch.Tensor | RowsInPieces, entry: LayerEntry) -> torch.Tensor | RowsInPieces:
    """The written heads of a tensor `[1, H, …]`; a tensor that all heads share is returned unchanged."""
    if len(entry.heads) == entry.num_kv_heads or len(tensor.shape) < 2 or tensor.shape[1] == 1:
        return tensor
    if not isinstance(tensor, torch.Tensor):
        return tensor.of_heads(entry.heads)
    return tensor.index_select(1, torch.tensor(entry.heads, device=tensor.device))


def heads_of(wanted: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The written heads of a layer that has `count` heads."""
    if wanted is None:
        return tuple(range(count))
    check_numbers("kv head", wanted, range(count))
    return tuple(sorted(set(wanted)))


def check_numbers(what: str, wanted: Iterable[int], known: Iterable[int]) -> None:
    """Raise `InputError` for numbers of layers or heads that do not exist."""
    there = set(known)
    if strange := sorted(set(wanted) - there):
        words = f"choose among {index_words(iter(sorted(there)))}" if there else "export states alone, of all layers"
        raise InputError(f"There is no {what} {strange[0]} with K and V to export: {words}.")


# ---- everything else ---------------------------------------------------------------------------------------------


def tokens(session: Session, seq_id: int, count: int, state: SequenceState | None) -> Tensors:
    """The ids, positions and texts of the tokens computed, and the ids of the prompt's tokens that were not computed
    yet."""
    ids = session.sequence(seq_id).token_ids
    waiting = ids[count : len(state.token_ids)] if state is not None else []
    texts = [session.text_of(token_id).encode("utf-8", "backslashreplace") for token_id in ids[:count]]
    return {
        "token_ids": torch.tensor([ids[:count]]),
        "positions": torch.arange(count)[None],
        **({"waiting_ids": torch.tensor(waiting)} if waiting else {}),
        **piece_tensors("token_texts", texts),
    }


def step_tensors(session: Session, command: Export, step: int | None, layers: Sequence[LayerEntry]) -> Tensors:
    """The results of the step: the logits, and the attention of its query in every written layer."""
    if step is None:
        return {}
    logits = session.history.logits_at(command.seq_id, step)
    rows = session.history.attention_at(command.seq_id, step)
    found: Tensors = {} if logits is None else {"logits": logits}
    for entry in layers:
        if entry.index in rows:
            found[entry.name("attention")] = rows[entry.index].float()
    return found


def piece_tensors(name: str, pieces: Iterable[bytes]) -> Tensors:
    """Concatenated byte strings and their offsets, as two tensors; empty if there are none."""
    content, offsets = bytearray(), [0]
    for piece in pieces:
        content += piece
        offsets.append(len(content))
    if len(offsets) == 1:
        return {}
    raw = torch.frombuffer(content, dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)
    return {name: raw, f"{name}.offsets": torch.tensor(offsets)}


def sequence_entry(seq_id: int, num_prompt_tokens: int, state: SequenceState | None) -> SequenceEntry:
    """The entry of a sequence in the manifest, with its state at that step if there is one."""
    if state is None:
        return SequenceEntry(seq_id, num_prompt_tokens)
    forced = tuple(state.forced[::-1])
    entry = SequenceEntry(seq_id, num_prompt_tokens, state.sampled, state.sampled_is_forced, forced, state.stop)
    return replace(entry, sampling=state.sampling)


def model_facts(model: LoadedModel) -> dict[str, Any]:
    """What the manifest says about the model, with the time and the program of writing."""
    info = model.info
    return {
        "model": info.name,
        "architecture": info.architecture,
        "fingerprint": info.fingerprint,
        "tokenizer_fingerprint": tokenizer_fingerprint(model.tokenizer),
        "random_weights": info.random_weights,
        "config": model.model.config.to_json_string(use_diff=False),
        "dtype": info.dtype,
        "created": created(),
        "written_by": written_by(),
    }


def created() -> str:
    """The present time in UTC as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def written_by() -> str:
    """The name and version of this program."""
    try:
        return f"KV Loupe {version('kvloupe')}"
    except PackageNotFoundError:
        return "KV Loupe"


# ---- a smaller snapshot out of a snapshot: some layers, heads and steps, without its model ---------------------------

NOW_ONLY = ("logits", "waiting_ids")  # tensors that are known for the last step only


def cut(file: SnapshotFile, command: Export) -> Snapshot:
    """The part of a file that a command asks for. Raises `InputError` for layers, heads or steps that the file does not
    have, and for earlier steps of layers that have evicted rows since."""
    whole = file.manifest
    count = whole.num_tokens if command.num_tokens is None else command.num_tokens
    if not 0 < count <= whole.num_tokens:
        raise InputError(
            f"'{file.path}' has {counted(whole.num_tokens, 'token')}, not {count:,}: choose a step that it has."
        )
    is_past = count < whole.num_tokens
    entries = tuple(_entry(each, command, count, is_past, whole.num_source) for each in _chosen(file, command))
    chosen = [state for state in whole.states if command.layers is None or state.layer in command.layers]
    states = () if is_past else tuple(chosen)  # recurrent states of earlier steps are not known
    if not entries and not states:
        raise InputError(
            f"These layers of '{file.path}' have states and no rows, and states are known of its last step alone: "
            "choose all steps, or other layers."
        )
    why_not = _why_not(whole, entries, is_past)
    if not why_not and states != whole.states:
        why_not = "not all layers and heads were written"
    seen = whole.sequence
    sequence = SequenceEntry(seen.seq_id, seen.num_prompt_tokens, sampling=seen.sampling)  # true at every step
    manifest = replace(
        whole,
        version=VERSION if states else WITHOUT_STATES,
        num_tokens=count,
        form="stored" if any(part.num_coded for e in entries for part in (e.keys, e.values)) else command.form,
        provenance=_provenance(whole, _chosen(file, command), is_past=is_past),
        step=(command.records[-1].step if command.records else None) if is_past else whole.step,
        notes=command.notes or whole.notes,
        view=command.view,
        bookmarks=command.bookmarks,
        created=created(),
        written_by=written_by(),
        why_not=why_not,
        prompt_ended_at=None if is_past else whole.prompt_ended_at,
        edited_from=None if (whole.edited_from or 0) >= count else whole.edited_from,
        layers=entries,
        states=states,
        tables=whole.tables if not why_not else (),
        pyramid=pyramid_for(count, entries),
        sequence=sequence if is_past else whole.sequence,
        record_fields=record_fields() if command.records else {},
        checksums={},
    )
    tensors = _tokens(file, count) | _layers(file, manifest)
    if not is_past:
        tensors |= {name: RawTensor(file, name) for name in NOW_ONLY if name in file}
        tensors |= {state.name: RawTensor(file, state.name) for state in states}
        tensors |= {name: RawTensor(file, name) for e in entries if (name := e.name("attention")) in file}
    tensors |= {table_name(n): RawTensor(file, table_name(n)) for n in range(len(manifest.tables))}
    return Snapshot(tensors | piece_tensors("records", record_bytes(command.records)), manifest_strings(manifest))


def _chosen(file: SnapshotFile, command: Export) -> list[LayerEntry]:
    """The layers that the command asks for."""
    known = {entry.index for entry in file.layers} | {state.layer for state in file.manifest.states}
    strange = sorted(set(command.layers or ()) - known)
    if strange:
        raise InputError(f"'{file.path}' has no layer {strange[0]}: it has {index_words(iter(sorted(known)))}.")
    return [entry for entry in file.layers if command.layers is None or entry.index in command.layers]


def _entry(entry: LayerEntry, command: Export, count: int, is_past: bool, num_source: int) -> LayerEntry:
    """The entry of a layer in the new file: its heads, number of rows, and whether its codes are kept. In an
    encoder-decoder the decoder's own layers begin at `num_source`."""
    heads = entry.heads
    if command.kv_heads is not None:
        check_numbers("kv head", command.kv_heads, heads)
        heads = tuple(sorted(set(command.kv_heads)))
    if is_past and (entry.has_positions or entry.first not in (0, num_source)):
        raise InputError(
            f"Layer {entry.index} of this file has evicted rows since, and which it had then is not known: "
            "choose all steps, or other layers."
        )
    if is_past and count <= entry.first:
        raise InputError(f"Layer {entry.index} of this file had no rows yet: choose later steps, or other layers.")
    is_coded = entry.keys.num_coded or entry.values.num_coded
    if command.form == "rows" or (is_past and is_coded):
        entry = replace(entry, keys=PartEntry(), values=PartEntry())
    return replace(entry, heads=heads, num_rows=min(entry.num_rows, count - entry.first) if is_past else entry.num_rows)


def _why_not(whole: Manifest, entries: Sequence[LayerEntry], is_past: bool) -> str:
    if whole.why_not:
        return whole.why_not
    if [e.heads for e in entries] != [e.heads for e in whole.layers]:
        return "not all layers and heads were written"
    if is_past:
        return "it was cut out of a snapshot of a later step"
    is_kept = all(a.part(name) == b.part(name) for a, b in zip(entries, whole.layers, strict=True) for name in PARTS)
    return "" if is_kept else "the rows were written as numbers and not as they are stored"


def _provenance(whole: Manifest, chosen: Sequence[LayerEntry], *, is_past: bool) -> str:
    """Where the rows of the chosen layers come from: of a coded cache, some layers may be exact."""
    is_coded = any(entry.part(name).num_coded for entry in chosen for name in PARTS)
    if is_coded and is_past:
        return "as stored now"
    is_exact = whole.provenance == "dequantised" and whole.form == "stored" and not is_coded
    return "recorded" if is_exact and chosen else whole.provenance


def _tokens(file: SnapshotFile, count: int) -> Tensors:
    found: Tensors = {}
    for name in ("token_ids", "positions"):
        if name in file:
            found[name] = torch.from_numpy(file.array(name)[:, :count].copy())
    if "token_texts" in file:
        found |= piece_tensors("token_texts", Pieces(file, "token_texts")[:count])
    return found


def _layers(file: SnapshotFile, manifest: Manifest) -> Tensors:
    """All tensors of the layers: codes and exact rows as they are in the file, or dequantised rows."""
    found: Tensors = {}
    entries = {entry.index: entry for entry in manifest.layers}

    @lru_cache(maxsize=2)  # K and V of a layer are read once, for themselves and for the pictures made of them
    def rows_of(index: int, name: Part) -> torch.Tensor:
        entry = entries[index]
        rows = torch.empty(1, len(entry.heads), entry.num_rows, entry.dim(name), dtype=getattr(torch, entry.dtype))
        for into, head in zip(rows[0], entry.heads, strict=True):
            into.copy_(torch.from_numpy(np.array(file.rows(index, name, head, range(entry.num_rows)))))
        return rows

    preview = Preview(rows_of, manifest.layers)
    for entry in manifest.layers:
        whole = file.manifest.layer(entry.index)
        places = [whole.heads.index(head) for head in entry.heads]
        for name in PARTS:
            if entry.part(name).num_coded:
                shapes = part_shapes(entry, name)
                found |= {full: RawTensor(file, full, places, len(whole.heads)) for full in shapes}
            else:
                shape = 1, len(entry.heads), entry.num_rows, entry.dim(name)
                make = cast(Callable[[], torch.Tensor], partial(preview.rows, entry.index, name))
                found[entry.name(name)] = LazyTensor(getattr(torch, entry.dtype), shape, make)
        beside = ["positions"] if entry.has_positions else []
        if not manifest.why_not:
            beside += ["memory", "sinks", "hidden", "pinned"]
        for full in (entry.name(what) for what in beside):
            if full in file:
                found[full] = RawTensor(file, full, places, len(whole.heads))
        found |= pyramid_of(preview.rows, entry, manifest.pyramid, manifest.num_tokens)
    found["preview"] = LazyTensor(torch.uint8, preview_shape(manifest.layers), preview.pictures)
    return found


class RawTensor:
    """A tensor of a file, copied byte by byte. If its first dimension, or its second one after a batch of 1, has one
    entry for each of `heads` heads, only those at `places` are copied."""

    def __init__(self, file: SnapshotFile, name: str, places: Sequence[int] = (), heads: int = 0) -> None:
        self._file, self._name = file, name
        known = file.entries[name]
        self.dtype = DTYPES[known.dtype]
        shape, self._index = known.shape, list[tuple[int, ...]]()
        has_batch = shape[0] == 1
        if len(shape) > has_batch and len(places) < heads == shape[has_batch]:  # else all heads share the tensor
            self._index = [(0, place) if has_batch else (place,) for place in places]
            shape = (1, len(places), *shape[2:]) if has_batch else (len(places), *shape[1:])
        self.shape = torch.Size(shape)

    def pieces(self, num_bytes: int) -> Iterator[torch.Tensor]:
        """The numbers in flat pieces of at most `num_bytes`."""
        known, width = self._file.entries[self._name], ITEM_BYTES[self._file.entries[self._name].dtype]
        if not self._index:
            for piece in self._file.pieces(self._name, num_bytes // width * width):
                yield torch.frombuffer(bytearray(piece), dtype=self.dtype)
        for index in self._index:
            rest = known.shape[len(index) :]
            at_once = max(1, num_bytes // max(1, width * int(np.prod(rest[1:]))))
            for start in range(0, rest[0], at_once):
                array = self._file.array(self._name, *index, rows=range(start, min(start + at_once, rest[0])))
                yield torch.frombuffer(bytearray(array.tobytes()), dtype=self.dtype)
