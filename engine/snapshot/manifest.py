"""The manifest of a snapshot: strings in the header that describe its tensors. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import msgspec
from msgspec.structs import fields

from engine.errors import InputError
from engine.snapshot.format import (
    DIGITS,
    DTYPE_NAMES,
    EXTREMES,
    FORMAT,
    MAX_ALL_HEADS,
    MAX_LENGTH,
    MAX_SIZE,
    MAX_STATE_BYTES,
    MAX_TEXT_BYTES,
    NUMBERS,
    PARTS,
    PREVIEW_SIZE,
    VERSION,
    Damaged,
    Header,
    LayerEntry,
    Manifest,
    Shape,
    TensorEntry,
    part_shapes,
)
from engine.spec.bookmark import check_bookmarks

HEADER_CHECKSUM = "header_checksum"  # a SHA-256, whatever the kind of the other checksums
NO_CHECKSUM = "0" * DIGITS["sha256"]  # placeholder while the header's checksum is computed
FIELDS = fields(Manifest)  # computed once, since each call resolves all types again


def manifest_strings(manifest: Manifest) -> dict[str, str]:
    """The manifest as strings for the header: text as it is, anything else as JSON."""
    found = {"format": FORMAT, "format_version": str(manifest.version), HEADER_CHECKSUM: NO_CHECKSUM}
    for field in FIELDS:
        value = getattr(manifest, field.name)
        if field.name != "version":
            found[field.name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return found


def read(header: Header) -> Manifest:
    """The manifest of a header, checked against its tensors; raises `Damaged` with the reason."""
    metadata = header.metadata
    if metadata.get("format") != FORMAT:
        raise Damaged("it is a safetensors file and no snapshot of a cache")
    version = metadata.get("format_version", "")
    if not (version.isascii() and version.isdecimal() and len(version) < 5):
        raise Damaged(f"its format version is {version[:20]!r}, which is no number")
    if int(version) > VERSION:
        raise InputError(
            f"it has version {int(version)} of the format and this program reads versions up to {VERSION}: update it"
        )
    if int(version) == 1:
        raise InputError(
            "it has version 1 of the format, which this version of KV Loupe no longer reads: open it with an earlier "
            "one, and export it there in a newer version of the format"
        )
    if int(version) == 0:
        raise Damaged(f"its format version is {version}, which never was one")
    manifest = _decoded(metadata, int(version))
    check(manifest, header.entries)
    return manifest


def _decoded(metadata: Mapping[str, str], version: int) -> Manifest:
    found: dict[str, object] = {"version": version}
    for field in FIELDS:
        value = metadata.get(field.name)
        if value is None or field.name == "version":
            continue
        try:
            is_text = isinstance(field.default, str)
            found[field.name] = (
                msgspec.convert(value, field.type) if is_text else msgspec.json.decode(value, type=field.type)
            )
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Damaged(f"its manifest says nothing readable about {field.name} ({str(error)[:120]})") from None
    if "num_tokens" not in found:
        raise Damaged("its manifest does not say how many tokens it holds")
    return Manifest(**found)  # type: ignore[arg-type]


# ---- checks ------------------------------------------------------------------------------------------------------


def check(manifest: Manifest, entries: Mapping[str, TensorEntry]) -> None:
    """Raise `Damaged` if a manifest contradicts itself or the tensors. No tensor is read."""
    n = manifest.num_tokens
    indices = [layer.index for layer in manifest.layers]
    if not (indices or manifest.states) or sorted(set(indices)) != indices:
        raise Damaged("its layers are none, or not in order")
    if not indices and not manifest.dtype:
        raise Damaged("it has states alone and does not name the dtype of its model")
    last = max(indices + [state.layer for state in manifest.states])
    if manifest.layer_kinds and last >= len(manifest.layer_kinds):
        raise Damaged(f"it names a layer {last:,} that its model does not have")
    for layer in manifest.layers:
        _check_layer(layer, n, entries)
    if sum(layer.num_kv_heads for layer in manifest.layers) > MAX_ALL_HEADS:
        raise Damaged(f"it claims more heads than the {MAX_ALL_HEADS:,} that are read")
    _check_states(manifest, entries)
    _check_tables(manifest, entries)
    _check_pyramid(manifest, entries)
    _check_sequence(manifest)
    for name, shape in shapes_of_the_rest(n, len(manifest.layers)).items():
        is_needed = name == "positions" or (name == "token_ids" and not manifest.why_not)
        _check_tensor(name, shape, entries, is_needed=is_needed)
    _check_lengths(n, entries)
    for name in ("token_texts", "records"):
        _check_pieces(name, n if name == "token_texts" else None, entries)
    _check_checksums(manifest, entries)


def _check_checksums(manifest: Manifest, entries: Mapping[str, TensorEntry]) -> None:
    num_digits = DIGITS[manifest.checksum_kind]
    if any(name not in entries or len(digits) != num_digits for name, digits in manifest.checksums.items()):
        raise Damaged("it has a checksum of something that is not there, or one of another length")
    if len(manifest.checksums) < len(entries):
        raise Damaged("it lacks the checksum of a tensor")


def _check_layer(layer: LayerEntry, num_tokens: int, entries: Mapping[str, TensorEntry]) -> None:
    where = f"layer {layer.index}"
    heads = layer.heads
    if sorted(set(heads)) != list(heads) or heads[-1] >= layer.num_kv_heads:
        raise Damaged(f"{where} names heads that it cannot have")
    if layer.first > num_tokens - layer.num_rows:
        raise Damaged(f"{where} has rows of positions before the first or behind the last token")
    for name in PARTS:
        if (count := layer.part(name).num_coded) > layer.num_rows:
            raise Damaged(f"{where} has {count:,} coded rows of {layer.num_rows:,}")
        try:
            shapes = part_shapes(layer, name)
        except InputError as error:
            raise Damaged(f"the {name} of {where} cannot be read: {error}") from None
        for full, shape in shapes.items():
            _check_tensor(full, shape, entries, is_needed=True)
    if layer.has_positions:
        shape = Shape(("I64",), (len(heads), layer.num_rows))
        _check_tensor(layer.name("positions"), shape, entries, is_needed=True)
    _check_tensor(layer.name("attention"), Shape(("F32",), (None, None)), entries)
    _check_memory(layer, entries)
    for marks in ("hidden", "pinned"):
        _check_tensor(layer.name(marks), Shape(("U8",), (len(heads), None)), entries)


def _check_memory(layer: LayerEntry, entries: Mapping[str, TensorEntry]) -> None:
    """Check the accumulated scores of a retention rule: one number per row and head, or per query, query head and row;
    and the keys of sinks, in the dtype of the rows."""
    name, heads = layer.name("memory"), len(layer.heads)
    is_by_query = name in entries and len(entries[name].shape) == 3
    sizes = (None, None, layer.num_rows) if is_by_query else (heads, layer.num_rows)
    _check_tensor(name, Shape(NUMBERS, sizes), entries)
    exact = tuple(code for code, dtype in DTYPE_NAMES.items() if dtype == layer.dtype)
    _check_tensor(layer.name("sinks"), Shape(exact, (1, heads, None, layer.key_dim)), entries)


def _check_tensor(name: str, shape: Shape, entries: Mapping[str, TensorEntry], is_needed: bool = False) -> None:
    entry = entries.get(name)
    if entry is None:
        if is_needed:
            raise Damaged(f"it lacks the tensor '{name}'")
        return
    if not shape.fits(entry.dtype, entry.shape):
        wanted = f"{' or '.join(shape.dtypes)} {['any' if s is None else s for s in shape.sizes]}"
        raise Damaged(f"tensor '{name}' is {entry.dtype} {list(entry.shape)} and should be {wanted}")


def shapes_of_the_rest(num_tokens: int, num_layers: int) -> dict[str, Shape]:
    """The shapes of the tensors that belong to no layer."""
    return {
        "token_ids": Shape(("I64",), (1, num_tokens)),
        "positions": Shape(("I64",), (1, num_tokens)),
        "waiting_ids": Shape(("I64",), (None,)),
        "logits": Shape(NUMBERS, (None,)),
        "preview": Shape(("U8",), (num_layers, 2, *PREVIEW_SIZE)),
    }


def _check_lengths(num_tokens: int, entries: Mapping[str, TensorEntry]) -> None:
    """Limit the size of tensors that are read at once."""
    limits = dict.fromkeys(("waiting_ids", "logits", "records.offsets"), MAX_LENGTH)
    limits["token_texts"] = num_tokens * MAX_TEXT_BYTES
    for name, limit in limits.items():
        if name in entries and math.prod(entries[name].shape) > limit:
            raise Damaged(f"tensor '{name}' has more than the {limit:,} numbers that are read at once")


def _check_pieces(name: str, count: int | None, entries: Mapping[str, TensorEntry]) -> None:
    """Check concatenated byte strings and their offsets."""
    _check_tensor(name, Shape(("U8",), (None,)), entries)
    offsets = f"{name}.offsets"
    if (name in entries) != (offsets in entries):
        raise Damaged(f"it has '{name}' without its offsets, or the other way round")
    _check_tensor(offsets, Shape(("I64",), (None if count is None else count + 1,)), entries)
    if offsets in entries and math.prod(entries[offsets].shape) < 1:
        raise Damaged(f"'{offsets}' is empty")


def _check_states(manifest: Manifest, entries: Mapping[str, TensorEntry]) -> None:
    """Check that every state is there, belongs to one sequence and has a possible size."""
    if len(set(manifest.states)) < len(manifest.states):
        raise Damaged("its states are not in order")
    for state in manifest.states:
        entry = entries.get(state.name)
        if entry is None:
            raise Damaged(f"it lacks the state '{state.name[:80]}'")
        is_possible = len(entry.shape) > 1 and entry.shape[0] == 1 and all(0 < n <= MAX_SIZE for n in entry.shape)
        if entry.dtype not in NUMBERS or not is_possible or entry.num_bytes > MAX_STATE_BYTES:
            raise Damaged(f"the state '{state.name}' is {entry.dtype} {list(entry.shape)}, which none can be")


def _check_tables(manifest: Manifest, entries: Mapping[str, TensorEntry]) -> None:
    known = {layer.index for layer in manifest.layers}
    for number, table in enumerate(manifest.tables):
        if not known.issuperset(table.layers):
            raise Damaged(f"page table {number} has layers that are not there")
        shape = Shape(("I64",), (-(-manifest.num_in_tables // table.page_size),))
        _check_tensor(table_name(number), shape, entries, is_needed=True)


def _check_pyramid(manifest: Manifest, entries: Mapping[str, TensorEntry]) -> None:
    """Check that extremes have the resolution that the manifest names; a layer may have none."""
    pyramid = manifest.pyramid
    if pyramid is None:
        return
    for layer in manifest.layers:
        for name in PARTS:
            low, high, magnitudes = (layer.name(f"{name}.{what}") for what in EXTREMES)
            shape = Shape(NUMBERS, pyramid.shape(layer, name, manifest.num_tokens))
            _check_tensor(low, shape, entries)
            _check_tensor(high, shape, entries, is_needed=low in entries)
            _check_tensor(magnitudes, Shape(("F32",), (3,)), entries, is_needed=low in entries)


def table_name(number: int) -> str:
    """The name of the tensor with the page ids of a table."""
    return f"tables.{number}.page_ids"


def _check_sequence(manifest: Manifest) -> None:
    if manifest.prompt_ended_at is not None and manifest.prompt_ended_at > manifest.num_tokens:
        raise Damaged("its prompt ended behind its last token")
    if manifest.edited_from is not None and manifest.edited_from >= manifest.num_tokens:
        raise Damaged("it was edited behind its last token")
    try:
        is_object = isinstance(json.loads(manifest.view), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise Damaged("its view is no JSON object")
    try:
        check_bookmarks(manifest.bookmarks)
    except InputError as error:
        raise Damaged(f"its bookmarks are none that are kept ({error})") from None
