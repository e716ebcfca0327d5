"""Collects the contents of a snapshot: all that is known of a sequence, be it of a live session, of another snapshot or
of another program's cache; and of that the part that a command asks for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec.structs import replace

from engine.cache.contract import InPieces, Scattered, StoredLayer, StoredPart
from engine.counted import counted
from engine.errors import InputError
from engine.history.state import SequenceState
from engine.look.lenses import held_of_all
from engine.look.magnitudes import LayerCount
from engine.look.source import chosen, provenance_of
from engine.model.tokenizer import tokenizer_fingerprint
from engine.snapshot.convert import unrecorded_nodes
from engine.snapshot.format import (
    ITEM_BYTES,
    MARKS,
    SCORES,
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
    CountOf,
    LazyTensor,
    Preview,
    Snapshot,
    preview_shape,
    pyramid_for,
    pyramid_of,
    some_rows,
    uncounted,
)
from engine.spec.cache import cache_name
from engine.spec.codec import PARTS, Coding, Part
from engine.spec.lenses import LENSES
from engine.wire.exporting import Export

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.session.session import Session


Tensor = torch.Tensor | InPieces
Tensors = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Contents:
    """All that is known of a sequence, which the `manifest` describes as it is stored. `tensors` are those of no layer:
    its tokens, and what its last step gave. `tensor_of` has the stored tensors of layers and page tables by full name,
    with all heads; None where there is none, as of rows that `rows_of` reads, which gives K or V of the heads of an
    entry as attention reads them. `provenance_of` is that of some layers; `count_of` has known magnitude counts."""

    manifest: Manifest
    tensors: Tensors
    tensor_of: Callable[[str], Tensor | None]
    rows_of: Callable[[LayerEntry, Part], torch.Tensor | Scattered]
    provenance_of: Callable[[Sequence[LayerEntry]], str]
    count_of: CountOf = uncounted


NOT_ALL = "not all layers and heads were written"
AS_NUMBERS = "the rows were written as numbers and not as they are stored"


def part_of(contents: Contents, command: Export) -> Snapshot:
    """The snapshot of those layers and heads that a command asks for, in the form that it asks for. Raises `InputError`
    for some that are not there."""
    whole = contents.manifest
    own = chosen_layers(whole, command)
    entries = tuple(_part_entry(each, command) for each in own)
    states = tuple(state for state in whole.states if command.layers is None or state.layer in command.layers)
    is_part = [each.heads for each in entries] != [each.heads for each in whole.layers] or states != whole.states
    as_stored = all(a.part(name) == b.part(name) for a, b in zip(entries, own, strict=True) for name in PARTS)
    why_not = whole.why_not or (NOT_ALL if is_part else "" if as_stored else AS_NUMBERS)
    manifest = replace(
        whole,
        version=VERSION if states else WITHOUT_STATES,
        form=command.form,
        provenance=contents.provenance_of(own),
        notes=command.notes or whole.notes,
        view=command.view,
        bookmarks=command.bookmarks,
        created=created(),
        written_by=written_by(),
        why_not=why_not,
        layers=entries,
        states=states,
        tables=whole.tables if not is_part and (command.form == "stored" or not why_not) else (),
        pyramid=pyramid_for(whole.num_tokens, entries),
        record_fields=record_fields() if command.records else {},
        checksums={},
    )
    names = [*map(table_name, range(len(manifest.tables))), *(state.name for state in states)]
    tensors = contents.tensors | {name: tensor for name in names if (tensor := contents.tensor_of(name)) is not None}
    tensors |= _layer_tensors(contents, manifest) | piece_tensors("records", record_bytes(command.records))
    return Snapshot(tensors, manifest_strings(manifest))


def chosen_layers(whole: Manifest, command: Export) -> list[LayerEntry]:
    """The layers with rows that a command asks for; raises `InputError` for one that is not there."""
    known = {entry.index for entry in whole.layers} | {state.layer for state in whole.states}
    check_numbers("layer", known if command.layers is None else command.layers, known)
    return [entry for entry in whole.layers if command.layers is None or entry.index in command.layers]


def _part_entry(entry: LayerEntry, command: Export) -> LayerEntry:
    """The entry of a layer with the heads and in the form that a command asks for."""
    if command.kv_heads is not None:
        check_numbers("kv head", command.kv_heads, entry.heads)
        entry = replace(entry, heads=tuple(sorted(set(command.kv_heads))))
    return entry if command.form == "stored" else replace(entry, keys=PartEntry(), values=PartEntry())


def check_numbers(what: str, wanted: Iterable[int], known: Iterable[int]) -> None:
    """Raise `InputError` for numbers of layers or heads that do not exist."""
    there = set(known)
    if strange := sorted(set(wanted) - there):
        words = index_words(iter(sorted(there)))
        raise InputError(f"There is no {what} {strange[0]} to export: choose among {words}.")


def _layer_tensors(contents: Contents, manifest: Manifest) -> Tensors:
    """All tensors of the layers, by full name: codes and exact rows as they are stored, or decoded rows."""
    found: Tensors = {}
    entries = {entry.index: entry for entry in manifest.layers}

    @lru_cache(maxsize=2)  # K and V of a layer are read once, for themselves and for the pictures made of them
    def rows_of(index: int, name: Part) -> torch.Tensor | Scattered:
        return contents.rows_of(entries[index], name)

    preview = Preview(rows_of, manifest.layers)
    for entry in manifest.layers:
        own = contents.manifest.layer(entry.index).heads
        places = [own.index(head) for head in entry.heads]
        for name in PARTS:
            is_coded = entry.part(name).num_coded
            for full in part_shapes(entry, name) if is_coded else (entry.name(name),):
                stored = contents.tensor_of(full)
                found[full] = _decoded(entry, name, preview) if stored is None else of_heads(stored, places, len(own))
        if (positions := contents.tensor_of(entry.name("positions"))) is not None:
            found[entry.name("positions")] = of_heads(positions, places, len(own))
        for what in ("attention", *(() if manifest.why_not else (*SCORES, *MARKS))):
            if (beside := contents.tensor_of(entry.name(what))) is not None:
                found[entry.name(what)] = beside
        # next to the rows in the file, so that they are computed while the rows are written
        count_of = contents.count_of if len(entry.heads) == entry.num_kv_heads else uncounted
        found |= pyramid_of(preview.rows, entry, manifest.pyramid, manifest.num_tokens, count_of)
    found["preview"] = LazyTensor(torch.uint8, preview_shape(manifest.layers), preview.pictures)
    return found


def _decoded(entry: LayerEntry, name: Part, preview: Preview) -> LazyTensor:
    def make() -> torch.Tensor:
        return some_rows(preview.rows(entry.index, name), slice(None))[None]

    return LazyTensor(getattr(torch, entry.dtype), (1, len(entry.heads), entry.num_rows, entry.dim(name)), make)


def of_heads(tensor: Any, places: Sequence[int], count: int) -> Any:
    """Some of the heads of a tensor whose first dimension, or the second one after a batch of 1, has one entry for each
    of `count` heads; one that all heads share, or of which all are chosen, is returned unchanged."""
    dim = int(tensor.shape[0] == 1)
    if len(tensor.shape) <= dim or not len(places) < count == tensor.shape[dim]:
        return tensor
    if isinstance(tensor, torch.Tensor):
        return tensor.index_select(dim, torch.tensor(places, device=tensor.device))
    return tensor.of_heads(places)


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


def created() -> str:
    """The present time in UTC as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def written_by() -> str:
    """The name and version of this program."""
    try:
        return f"KV Loupe {version('kvloupe')}"
    except PackageNotFoundError:
        return "KV Loupe"


# ---- of a live session -----------------------------------------------------------------------------------------------


def snapshot_of(session: Session, command: Export) -> Snapshot:
    """The snapshot that a command asks for. Raises `InputError` for a step whose rows are no longer known."""
    return part_of(of_session(session, command), command)


def of_session(session: Session, command: Export) -> Contents:
    """What is known of a sequence at the step of a command, with its records."""
    seq_id, model = command.seq_id, session.model
    sequence, geometry = session.sequence(seq_id), model.info.geometry
    count = sequence.num_tokens if command.num_tokens is None else command.num_tokens
    if not 0 < count <= sequence.num_tokens:
        raise InputError(
            f"Sequence {seq_id} has {counted(sequence.num_tokens, 'token')} in its cache, not {count}: step first."
        )
    past = session.rows_at(seq_id, count)
    if not past.is_known:
        raise InputError("The rows of that step are not known any more as they were: go to it first, then export.")
    is_now = count == sequence.num_tokens
    step = session.last_step if is_now else session.history.step_with(seq_id, count)
    state = sequence if is_now or step is None else session.history.path.state(seq_id, step)
    stored = session.cache_of(seq_id).stored(count)
    if not stored.layers and (geometry.attention_layers or not stored.states):
        raise InputError("There is no K and V to export yet: run a prompt in a model and a cache mode that keep them.")
    why_not = next((layer.why_not for layer in stored.layers.values() if layer.why_not), "")
    if len(stored.layers) < len(geometry.attention_layers):
        why_not = "layers without rows were not written"
    elif stored.why_no_states and not past.spec.recomputes:
        why_not = stored.why_no_states
    elif not why_not and (state is None or state.num_tokens != count):
        why_not = "no step ended there"
    entries = {index: _entry(index, layer, session) for index, layer in stored.layers.items()}
    logits = None if step is None else session.history.logits_at(seq_id, step)
    attention = {} if step is None else session.history.attention_at(seq_id, step)
    states = {
        StateEntry(index, kind, int(number)): tensor  # type: ignore[arg-type]
        for index, of_layer in stored.states.items()
        for key, tensor in of_layer.items()
        for kind, number in (key.split("."),)
    }
    manifest = Manifest(
        VERSION,
        count,
        **model_facts(model),
        cache=cache_name(session.cache),
        cache_spec=session.cache,
        step=step,
        why_not=why_not,
        prompt_ended_at=stored.prompt_ended_at,
        edited_from=stored.edited_from,
        layer_kinds=tuple(layer.kind for layer in geometry.layers),
        layers=tuple(entries.values()),
        tables=tuple(TableEntry(table.layers, table.page_size, table.window) for table in stored.tables),
        states=tuple(states),
        sequence=sequence_entry(seq_id, sequence.num_prompt_tokens, state),
        moments=unrecorded_nodes(step, command.records, session.history.tree.nodes),
    )
    tensors: Tensors = {table_name(n): torch.tensor(table.page_ids) for n, table in enumerate(stored.tables)}
    tensors |= {entry.name: tensor for entry, tensor in states.items()}
    for index, entry in entries.items():
        layer = stored.layers[index]
        for name, part in zip(PARTS, (layer.keys, layer.values), strict=True):
            for suffix, tensor in part.kept.items():
                tensors[entry.name(name if suffix == "rows" else f"{name}.{suffix}")] = tensor
        beside = {what: getattr(layer, what) for what in ("positions", *SCORES, *MARKS)}
        beside["attention"] = attention[index].float() if index in attention else None
        tensors |= {
            entry.name(what): tensor.to(torch.uint8) if what in MARKS else tensor
            for what, tensor in beside.items()
            if tensor is not None
        }
    blocks = session.live.memos.of(seq_id, past.cache).blocks

    def rows_of(entry: LayerEntry, name: Part) -> torch.Tensor | Scattered:
        """As they are stored, or dequantised: anew each time, so that only one layer at a time is in memory."""
        layer = stored.layers[entry.index]
        rows = (layer.keys, layer.values)[PARTS.index(name)].kept.get("rows")
        if rows is None:
            held = past.cache.rows_at(entry.index, past.num_tokens)
            assert held is not None, "a layer that is written has rows"
            rows = chosen(held, name)[:, :, : layer.num_rows]
        found: torch.Tensor | Scattered = of_heads(rows, entry.heads, entry.num_kv_heads)
        return found

    def count_of(index: int, name: Part) -> LayerCount | None:
        """None where the rows are coded and would all have to be dequantised for it."""
        if not past.spec.codec.is_exact:
            return None
        # a new object for each layer, because it caches the rows that it gathers from pages
        own = dataclasses.replace(past)
        return blocks.of(LENSES[name], own, held_of_all(own, LENSES[name], [index])).get(index)

    def provenance_of_layers(layers: Sequence[LayerEntry]) -> str:
        return provenance_of(past, [entry.index for entry in layers])

    rest = tokens(session, seq_id, count, state, logits)
    return Contents(manifest, rest, tensors.get, rows_of, provenance_of_layers, count_of)


def _entry(index: int, layer: StoredLayer, session: Session) -> LayerEntry:
    geometry = session.model.info.geometry.layers[index]
    keys, values = (
        _part(part, coding)
        for part, coding in zip((layer.keys, layer.values), session.cache.codec.at(index), strict=True)
    )
    return LayerEntry(
        index,
        geometry.kind,
        geometry.num_kv_heads,
        tuple(range(geometry.num_kv_heads)),
        geometry.key_dim,
        geometry.value_dim,
        str(layer.dtype).removeprefix("torch."),
        layer.num_rows,
        layer.first,
        layer.positions is not None,
        keys,
        values,
    )


def _part(part: StoredPart, coding: Coding) -> PartEntry:
    if part.codec == "exact":
        return PartEntry()
    if part.codec == TRANSFORMERS_FP8:
        return PartEntry(part.codec, num_coded=part.num_coded)
    return PartEntry(part.codec, coding.group, coding.residual, part.num_coded, part.quantised_at)


def tokens(
    session: Session, seq_id: int, count: int, state: SequenceState | None, logits: torch.Tensor | None
) -> Tensors:
    """The ids, positions and texts of the tokens computed, the ids of the prompt's tokens that were not computed yet,
    and the logits of the step."""
    ids = session.sequence(seq_id).token_ids
    waiting = ids[count : len(state.token_ids)] if state is not None else []
    texts = [session.text_of(token_id).encode("utf-8", "backslashreplace") for token_id in ids[:count]]
    return {
        "token_ids": torch.tensor([ids[:count]]),
        "positions": torch.arange(count)[None],
        **({"waiting_ids": torch.tensor(waiting)} if waiting else {}),
        **piece_tensors("token_texts", texts),
        **({"logits": logits} if logits is not None else {}),
    }


def sequence_entry(seq_id: int, num_prompt_tokens: int, state: SequenceState | None) -> SequenceEntry:
    """The entry of a sequence in the manifest, with its state at that step if there is one."""
    if state is None:
        return SequenceEntry(seq_id, num_prompt_tokens)
    forced = tuple(state.forced[::-1])
    entry = SequenceEntry(seq_id, num_prompt_tokens, state.sampled, state.sampled_is_forced, forced, state.stop)
    return replace(entry, sampling=state.sampling)


def model_facts(model: LoadedModel) -> dict[str, Any]:
    """What the manifest says about the model."""
    info = model.info
    return {
        "model": info.name,
        "architecture": info.architecture,
        "fingerprint": info.fingerprint,
        "tokenizer_fingerprint": tokenizer_fingerprint(model.tokenizer),
        "random_weights": info.random_weights,
        "config": model.model.config.to_json_string(use_diff=False),
        "dtype": info.dtype,
    }


# ---- of a snapshot: a smaller one out of it, without its model -------------------------------------------------------

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
    manifest, tensors, is_past = whole, _tokens(file, count), count < whole.num_tokens
    if is_past:
        manifest, command = _past(file, count, command), replace(command, layers=None)
    else:
        tensors |= {name: RawTensor(file, name) for name in NOW_ONLY if name in file}

    def tensor_of(name: str) -> RawTensor | None:
        is_rows = name.rpartition(".")[2] in PARTS
        return RawTensor(file, name) if name in file and not (is_past or is_rows) else None

    def rows_of(entry: LayerEntry, name: Part) -> torch.Tensor:
        rows = torch.empty(1, len(entry.heads), entry.num_rows, entry.dim(name), dtype=getattr(torch, entry.dtype))
        for into, head in zip(rows[0], entry.heads, strict=True):
            into.copy_(torch.from_numpy(np.array(file.rows(entry.index, name, head, range(entry.num_rows)))))
        return rows

    def provenance_of(layers: Sequence[LayerEntry]) -> str:
        """Of a coded cache, some layers may be exact."""
        parts = (whole.layer(entry.index).part(name) for entry in layers for name in PARTS)
        is_coded = any(part.num_coded for part in parts)
        if is_coded and is_past:
            return "as stored now"
        is_exact = whole.provenance == "dequantised" and whole.form == "stored" and not is_coded
        return "recorded" if is_exact and layers else whole.provenance

    return part_of(Contents(manifest, tensors, tensor_of, rows_of, provenance_of), command)


def _past(file: SnapshotFile, count: int, command: Export) -> Manifest:
    """The manifest of the chosen layers at an earlier step: the states of then, and what followed, are not known."""
    whole = file.manifest
    layers = tuple(_past_entry(entry, count, whole.num_source) for entry in chosen_layers(whole, command))
    if not layers:
        raise InputError(
            f"These layers of '{file.path}' have states and no rows, and states are known of its last step alone: "
            "choose all steps, or other layers."
        )
    sequence = whole.sequence
    return replace(
        whole,
        num_tokens=count,
        layers=layers,
        states=(),
        tables=(),
        step=command.records[-1].step if command.records else None,
        why_not=whole.why_not or "it was cut out of a snapshot of a later step",
        prompt_ended_at=None,
        edited_from=None if (whole.edited_from or 0) >= count else whole.edited_from,
        sequence=SequenceEntry(sequence.seq_id, sequence.num_prompt_tokens, sampling=sequence.sampling),
    )


def _past_entry(entry: LayerEntry, count: int, num_source: int) -> LayerEntry:
    """The entry of a layer at an earlier step, without codes. In an encoder-decoder the decoder's own layers begin at
    `num_source`."""
    if entry.has_positions or entry.first not in (0, num_source):
        raise InputError(
            f"Layer {entry.index} of this file has evicted rows since, and which it had then is not known: "
            "choose all steps, or other layers."
        )
    if count <= entry.first:
        raise InputError(f"Layer {entry.index} of this file had no rows yet: choose later steps, or other layers.")
    exact = replace(entry, keys=PartEntry(), values=PartEntry())
    return replace(exact, num_rows=min(entry.num_rows, count - entry.first))


def _tokens(file: SnapshotFile, count: int) -> Tensors:
    found: Tensors = {}
    for name in ("token_ids", "positions"):
        if name in file:
            found[name] = torch.from_numpy(file.array(name)[:, :count].copy())
    if "token_texts" in file:
        found |= piece_tensors("token_texts", Pieces(file, "token_texts")[:count])
    return found


class RawTensor:
    """A tensor of a file, copied byte by byte; with `places` only those of its first dimension, or of the second one
    after a batch of 1."""

    def __init__(self, file: SnapshotFile, name: str, places: Sequence[int] | None = None) -> None:
        self._file, self._name = file, name
        known = file.entries[name]
        self.dtype = DTYPES[known.dtype]
        shape, self._index = known.shape, list[tuple[int, ...]]()
        if places is not None:
            has_batch = shape[0] == 1
            self._index = [(0, place) if has_batch else (place,) for place in places]
            shape = (1, len(places), *shape[2:]) if has_batch else (len(places), *shape[1:])
        self.shape = torch.Size(shape)

    def of_heads(self, places: Sequence[int]) -> RawTensor:
        return RawTensor(self._file, self._name, places)

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
