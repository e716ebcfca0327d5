"""Describes an opened snapshot with the types of the wire: its model, sequence and steps. No torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from msgspec.structs import replace

from engine.errors import InputError
from engine.geometry.dimensions import KV_KINDS, CacheGeometry, LayerGeometry, LayerKind
from engine.opened.session import UNKNOWN_MODEL
from engine.snapshot.format import LayerEntry, Manifest, part_shapes, table_name
from engine.snapshot.read import SnapshotFile
from engine.spec.cache import CacheSpec
from engine.spec.codec import PARTS
from engine.wire.records import CacheBytes, LayerBytes, SequencePhase, SequenceStep, StepRecord
from engine.wire.status import ModelInfo, OpenedFile, SequenceInfo

MAX_WORDS = 2_000
UNKNOWN = "?"  # shown for a token whose text and id are not in the file


def model_info(file: SnapshotFile) -> ModelInfo:
    """The model as far as the file describes it; it is not loaded."""
    manifest = file.manifest
    return replace(
        UNKNOWN_MODEL,
        name=manifest.model[:MAX_WORDS] or UNKNOWN_MODEL.name,
        architecture=manifest.architecture,
        geometry=geometry_of(manifest),
        dtype=manifest.dtype or manifest.layers[0].dtype,
        random_weights=manifest.random_weights,
        captures_attention=True,  # a picture says if its attention was not written
        fingerprint=manifest.fingerprint,
    )


def geometry_of(manifest: Manifest) -> CacheGeometry:
    """The geometry from the model's config if it agrees with the written layers, else from the written layers alone."""
    try:
        config = json.loads(manifest.config)
        found = CacheGeometry.from_config(config)
    except (InputError, ValueError, RecursionError, TypeError):
        return bare_geometry(manifest)
    return found if all(_describes(found, entry) for entry in manifest.layers) else bare_geometry(manifest)


def _describes(geometry: CacheGeometry, entry: LayerEntry) -> bool:
    if entry.index >= len(geometry.layers):
        return False
    layer = geometry.layers[entry.index]
    here = (layer.stores_kv, layer.num_kv_heads, layer.key_dim, layer.value_dim)
    return here == (True, entry.num_kv_heads, entry.key_dim, entry.value_dim)


def bare_geometry(manifest: Manifest) -> CacheGeometry:
    """The geometry of the written layers; other layers keep nothing. The number of query heads is unknown and set to
    that of kv heads."""
    entries = {entry.index: entry for entry in manifest.layers}
    states = {state.layer for state in manifest.states}
    count = max(len(manifest.layer_kinds), max([*entries, *states]) + 1)
    layers = tuple(_bare_layer(index, entries.get(index), index in states) for index in range(count))
    return CacheGeometry(manifest.architecture, "unknown", layers)


def _bare_layer(index: int, entry: LayerEntry | None, has_state: bool) -> LayerGeometry:
    if entry is None:
        return LayerGeometry(index, "linear" if has_state else "none", 0, 0, 0, 0)
    kind: LayerKind = next((known for known in KV_KINDS if known == entry.kind), "full")
    window = entry.num_rows if kind in ("sliding", "chunked") else None
    return LayerGeometry(index, kind, entry.num_kv_heads, entry.key_dim, entry.value_dim, entry.num_kv_heads, window)


def sequence_info(file: SnapshotFile) -> SequenceInfo:
    """The state of the sequence in the file."""
    manifest = file.manifest
    entry, n = manifest.sequence, manifest.num_tokens
    num_pages = sum(file.entries[table_name(number)].shape[0] for number in range(len(manifest.tables)))
    phase: SequencePhase = "prefill" if "waiting_ids" in file else "decode"
    return SequenceInfo(
        entry.seq_id,
        phase,
        n,
        min(max(1, entry.num_prompt_tokens), n + len(file.waiting_ids)),
        entry.sampled,
        entry.stop,
        num_pages=num_pages,
        sampling=entry.sampling,
    )


def opened_file(file: SnapshotFile) -> OpenedFile:
    """What the window shows about the file itself."""
    manifest = file.manifest
    return OpenedFile(
        file.path,
        file.file_bytes,
        manifest.model[:MAX_WORDS],
        len(file.records),
        manifest.why_not[:MAX_WORDS],
        manifest.notes[:MAX_WORDS],
        manifest.created[:MAX_WORDS],
        manifest.written_by[:MAX_WORDS],
        None if manifest.cache_spec is not None else manifest.cache[:MAX_WORDS] or "unknown",
    )


def tokens_of(file: SnapshotFile) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ids and texts of all tokens that were computed; -1 and a question mark if they are not in the file."""
    n = file.manifest.num_tokens
    ids, texts = file.token_ids or (-1,) * n, file.token_texts
    return ids, texts or tuple(f"#{token_id}" if token_id >= 0 else UNKNOWN for token_id in ids)


# ---- steps -------------------------------------------------------------------------------------------------------


def steps_of(file: SnapshotFile) -> Iterator[StepRecord]:
    """The step records up to the step of the snapshot. If they do not reach all tokens of its sequence, a last record
    is added with what else is known."""
    manifest, computed = file.manifest, 0
    seq_id, num_layers = manifest.sequence.seq_id, len(geometry_of(manifest).layers)
    last: int | None = None
    for record in file.records:
        if manifest.step is not None and record.step > manifest.step:
            break
        if last is not None and record.step <= last:
            raise InputError(f"'{file.path}' is damaged: its step records are not in order.")
        last = record.step
        part = record.of(seq_id)
        computed = computed if part is None else part.num_tokens
        yield _checked(record, num_layers)
    if computed != manifest.num_tokens:
        yield bare_step(file, computed, (manifest.step or 0) if last is None else max(last + 1, manifest.step or 0))


def readable_steps(file: SnapshotFile) -> Iterator[StepRecord]:
    """The step records up to the first that cannot be read, which whoever shows the steps says."""
    with suppress(InputError):
        yield from steps_of(file)


def _checked(record: StepRecord, num_layers: int) -> StepRecord:
    """The record without statistics of layers that the model does not have."""
    parts = tuple(
        replace(
            part,
            rows=part.rows if part.rows and _are_known(part.rows.layers, num_layers) else None,
            attention=part.attention if part.attention and _are_known(part.attention.layers, num_layers) else None,
        )
        for part in record.sequences
    )
    return replace(record, sequences=parts)


def _are_known(layers: tuple[int, ...], num_layers: int) -> bool:
    return all(0 <= layer < num_layers for layer in layers)


def bare_step(file: SnapshotFile, computed: int, step: int) -> StepRecord:
    """A record for tokens whose steps were not recorded: the tokens after the first `computed`, and the bytes of the
    cache."""
    manifest = file.manifest
    entry, n = manifest.sequence, manifest.num_tokens
    ids, texts = tokens_of(file)
    start = computed if computed < n else 0
    layers = tuple(_bytes_of(file, layer) for layer in manifest.layers) + _bytes_of_states(file)
    stored = sum(layer.stored for layer in layers)
    part = SequenceStep(
        seq_id=entry.seq_id,
        phase="prefill",
        token_ids=ids[start:],
        texts=texts[start:],
        first_position=start,
        num_tokens=n,
        num_prompt_tokens=min(max(1, entry.num_prompt_tokens), n),
        surprisal=(None,) * (n - start),
        sampled=entry.sampled,
        sampled_text="" if entry.sampled is None else f"#{entry.sampled}",
        forced=entry.sampled_is_forced,
        stop=entry.stop,
        stored_bytes=stored,
    )
    return StepRecord(
        step=step,
        phase="prefill",
        cache=manifest.cache_spec or CacheSpec(),
        dtype=manifest.dtype or manifest.layers[0].dtype,
        random_weights=manifest.random_weights,
        sequences=(part,),
        num_bytes=CacheBytes(layers, 0, 0, None),
    )


def _bytes_of_states(file: SnapshotFile) -> tuple[LayerBytes, ...]:
    """Bytes in the file of layers that have a state and no rows."""
    sizes, written = Counter[int](), {layer.index for layer in file.manifest.layers}
    for state in file.manifest.states:
        sizes[state.layer] += 0 if state.layer in written else file.entries[state.name].num_bytes
    return tuple(LayerBytes(layer, "linear", size, size, size) for layer, size in sizes.items() if size)


def _bytes_of(file: SnapshotFile, layer: LayerEntry) -> LayerBytes:
    """Bytes of the rows of a layer in the file."""
    stored = sum(file.entries[name].num_bytes for part in PARTS for name in part_shapes(layer, part))
    exact = layer.num_rows * len(layer.heads) * (layer.key_dim + layer.value_dim)
    width = np.dtype("float32").itemsize if layer.dtype == "float32" else 8 if layer.dtype == "float64" else 2
    return LayerBytes(layer.index, layer.kind, exact * width, stored, stored)
