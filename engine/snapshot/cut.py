"""Makes a smaller snapshot from a snapshot: some of its layers, heads and steps, without its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import cast

import numpy as np
import torch
from msgspec.structs import replace

from engine.counted import counted
from engine.errors import InputError
from engine.snapshot.format import (
    ITEM_BYTES,
    PARTS,
    VERSION,
    WITHOUT_STATES,
    LayerEntry,
    Manifest,
    PartEntry,
    SequenceEntry,
    index_words,
    part_shapes,
)
from engine.snapshot.gather import Tensors, check_numbers, created, piece_tensors, written_by
from engine.snapshot.manifest import manifest_strings, table_name
from engine.snapshot.pyramid import Preview, preview_shape, pyramid_for, pyramid_of
from engine.snapshot.read import Pieces, SnapshotFile, record_bytes, record_fields
from engine.snapshot.write import DTYPES, LazyTensor, Snapshot
from engine.spec.codec import Part
from engine.wire.exporting import Export

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
