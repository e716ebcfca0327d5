"""The snapshot format, version 4, as specified in `resources/snapshot-format.md`: names, limits, the manifest, and the
shape that every tensor must have. No torch.

Letters: H heads written, S rows held, C of them coded, D channels, n tokens.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import fields

from engine.errors import InputError
from engine.spec.bookmark import Bookmark, check_bookmarks
from engine.spec.cache import CacheSpec
from engine.spec.codec import PARTS, Coding, Part
from engine.spec.sampling import SamplingParams
from engine.wire.records import StopReason

FORMAT = "kvloupe-snapshot"
VERSION = 4
WITHOUT_STATES = 3  # version written if no layer has a state, so that programs which read no states can open it

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 1 << 16
MAX_DIMENSIONS = 8
MAX_LAYERS = 1 << 12
MAX_TOKENS = 1 << 31  # limit of token ids and counts
MAX_LENGTH = 1 << 24  # tokens computed; their ids and texts are read at once
MAX_TEXT_BYTES = 1 << 12  # per token, on average
MAX_SIZE = 1 << 20  # channels, or tokens in a page; more than any model has
MAX_HEADS = 1 << 10  # per layer; pictures allocate space for heads that are not written as well
MAX_ALL_HEADS = 1 << 16  # in all layers
MAX_RECORD_BYTES = 1 << 26
MAX_STATE_BYTES = 1 << 28  # per tensor of a state, which is read at once to be drawn

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
NUMBERS = ("F64", "F32", "F16", "BF16")
DTYPE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
CODE_OF_DTYPE = {name: code for code, name in DTYPE_NAMES.items()}
TRANSFORMERS_FP8 = "transformers-fp8"

Array = np.ndarray[Any, Any]
ROWS_AT_ONCE = 8192  # that are read of a head

SCORES, MARKS = ("memory", "sinks"), ("hidden", "pinned")  # what is stored beside rows to go on: of a rule, and by hand
EXTREMES = ("low", "high", "magnitudes")  # suffixes of the tensors of a pyramid
PREVIEW_SIZE = 24, 96  # rows and columns of the preview of K or V of a layer

ChecksumKind = Literal["crc32", "sha256"]
Index = Annotated[int, Meta(ge=0, lt=MAX_LAYERS)]
Count = Annotated[int, Meta(ge=0, lt=MAX_TOKENS)]  # of tokens, or an id of one
Size = Annotated[int, Meta(gt=0, le=MAX_SIZE)]


class PartEntry(Struct, frozen=True):
    """How K or V of one layer is written: the first `num_coded` rows by `codec`, the others exact."""

    codec: str = "exact"
    group: int | None = None
    residual: int | None = None
    num_coded: Count = 0
    quantised_at: Count | None = None


class LayerEntry(Struct, frozen=True):
    """One layer that has rows: its index in the model, which of its `num_kv_heads` heads are written, how many rows,
    and the position of the first row if positions are consecutive. If they are not, `has_positions` is True and a
    tensor has the position of each row."""

    index: Index
    kind: str
    num_kv_heads: Annotated[int, Meta(gt=0, le=MAX_HEADS)]
    heads: Annotated[tuple[Count, ...], Meta(min_length=1)]
    key_dim: Size
    value_dim: Size
    dtype: str
    num_rows: Annotated[int, Meta(gt=0)]
    first: Count = 0
    has_positions: bool = False
    keys: PartEntry = PartEntry()
    values: PartEntry = PartEntry()

    def part(self, name: Part) -> PartEntry:
        return self.keys if name == "keys" else self.values

    def dim(self, name: Part) -> int:
        return self.key_dim if name == "keys" else self.value_dim

    def name(self, tensor: str) -> str:
        """The full name of a tensor of this layer."""
        return f"layers.{self.index}.{tensor}"


class TableEntry(Struct, frozen=True):
    """A page table: its layers, and the tokens per page. Its page ids are a tensor."""

    layers: tuple[int, ...]
    page_size: Size
    window: int | None = None


class StateEntry(Struct, frozen=True):
    """One tensor of the state of a recurrent layer: of its convolution or of its recurrence, numbered."""

    layer: Index
    kind: Literal["convolution", "recurrence"]
    number: Count

    @property
    def key(self) -> str:
        return f"{self.kind}.{self.number}"

    @property
    def name(self) -> str:
        return f"layers.{self.layer}.{self.key}"


class PyramidEntry(Struct, frozen=True):
    """The resolution of the extremes that are stored with the rows of large layers: tokens per column, and channels of
    K and of V per row."""

    tokens_per_column: Annotated[int, Meta(gt=0, le=MAX_TOKENS)]
    keys_per_row: Size
    values_per_row: Size

    def channels(self, name: Part) -> int:
        return self.keys_per_row if name == "keys" else self.values_per_row

    def shape(self, layer: LayerEntry, name: Part, num_tokens: int) -> tuple[int, int, int]:
        """Heads, columns and rows of the extremes of one layer."""
        columns = -(-num_tokens // self.tokens_per_column)
        return len(layer.heads), columns, -(-layer.dim(name) // self.channels(name))


class SequenceEntry(Struct, frozen=True):
    """The state of the sequence: its prompt, the chosen and forced tokens, and its sampling."""

    seq_id: Count = 0
    num_prompt_tokens: Count = 0
    sampled: Count | None = None
    sampled_is_forced: bool = False
    forced: tuple[Count, ...] = ()
    stop: StopReason | None = None
    sampling: SamplingParams = SamplingParams()


class Manifest(Struct, frozen=True):
    """The manifest of a snapshot, checked. `cache_spec` is None if the cache was not one of this program's modes;
    `why_not` says why decoding cannot continue from the file, empty if it can."""

    version: int
    num_tokens: Annotated[int, Meta(gt=0, le=MAX_LENGTH)]
    model: str = ""
    architecture: str = ""
    fingerprint: str = ""
    tokenizer_fingerprint: str = ""
    random_weights: bool = False
    config: str = ""
    dtype: str = ""
    cache: str = ""
    cache_spec: CacheSpec | None = None
    form: Literal["rows", "stored"] = "rows"
    provenance: str = ""
    step: int | None = None
    notes: str = ""
    view: Annotated[str, Meta(max_length=MAX_SIZE)] = "{}"
    bookmarks: tuple[Bookmark, ...] = ()
    created: str = ""
    written_by: str = ""
    why_not: str = ""
    prompt_ended_at: Count | None = None
    edited_from: Count | None = None
    layer_kinds: Annotated[tuple[str, ...], Meta(max_length=MAX_LAYERS)] = ()
    layers: Annotated[tuple[LayerEntry, ...], Meta(max_length=MAX_LAYERS)] = ()
    tables: tuple[TableEntry, ...] = ()
    states: tuple[StateEntry, ...] = ()
    pyramid: PyramidEntry | None = None
    sequence: SequenceEntry = SequenceEntry()
    record_fields: dict[str, tuple[str, ...]] = {}
    moments: str = "[]"
    checksum_kind: ChecksumKind = "sha256"  # the default is the only kind in version 2
    checksums: dict[str, str] = {}

    @property
    def num_source(self) -> int:
        """Number of tokens that an encoder read; their rows are in cross layers and not in pages."""
        return min(self.num_tokens, max(0, self.sequence.num_prompt_tokens - 1)) if "cross" in self.layer_kinds else 0

    @property
    def num_in_tables(self) -> int:
        """Number of tokens that page tables cover."""
        return self.num_tokens - self.num_source

    def layer(self, index: int) -> LayerEntry:
        """The entry of a layer; raises `InputError` if the file does not have it."""
        for entry in self.layers:
            if entry.index == index:
                return entry
        raise InputError(f"The snapshot has no layer {index}: it has {index_words(e.index for e in self.layers)}.")


def index_words(indices: Iterator[int]) -> str:
    """`0 … 5` for consecutive numbers, else all of them."""
    found = list(indices)
    if not found:
        return "none"
    is_run = found == list(range(found[0], found[-1] + 1))
    return f"{found[0]} … {found[-1]}" if is_run and len(found) > 2 else ", ".join(map(str, found))


class Shape(Struct, frozen=True):
    """What a tensor must be: its possible dtypes, and the size of each dimension (None: any)."""

    dtypes: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def fits(self, dtype: str, shape: tuple[int, ...]) -> bool:
        is_alike = len(shape) == len(self.sizes)
        return dtype in self.dtypes and is_alike and all(w in (None, n) for w, n in zip(self.sizes, shape, strict=True))


def part_shapes(entry: LayerEntry, name: Part) -> dict[str, Shape]:
    """The tensors that K or V of a layer must have, by full name; raises `InputError` for an unknown codec."""
    part, dim, heads = entry.part(name), entry.dim(name), len(entry.heads)
    if not (exact := CODE_OF_DTYPE.get(entry.dtype)):
        raise InputError(f"rows of {entry.dtype[:20]!r} are not known")
    if not part.num_coded:
        return {entry.name(name): Shape((exact,), (1, heads, entry.num_rows, dim))}
    shapes = _coded_shapes(part, name, heads, dim)
    if part.codec.startswith("kivi-"):
        shapes["exact"] = Shape((exact,), (1, heads, entry.num_rows - part.num_coded, dim))
    elif part.num_coded != entry.num_rows:
        raise InputError(f"{part.codec} codes all rows or none")
    return {entry.name(f"{name}.{suffix}"): shape for suffix, shape in shapes.items()}


def _coded_shapes(part: PartEntry, name: Part, heads: int, dim: int) -> dict[str, Shape]:
    count = part.num_coded
    codes = Shape(("U8",), (1, heads, count, dim))
    if part.codec == TRANSFORMERS_FP8:
        return {"codes": codes, "scale": Shape(("F32",), (1,))}
    coding = coding_of(part)
    if coding.is_kivi:
        return _kivi_shapes(coding, name, heads, dim, count)
    if coding.name == "int8":
        return {"codes": Shape(("I8",), codes.sizes), "scales": Shape(("F16",), (1, heads, count, 1))}
    match coding.row.shared_by:
        case "tensor" | "head" as shared_by:
            return {"codes": codes, "scale": Shape(("F32",), (1, 1 if shared_by == "tensor" else heads, 1, 1))}
        case "row" | "group" as shared_by:
            dtype = "U8" if coding.name == "fp8-max-e8m0" else "F32"
            num_scales = 1 if shared_by == "row" else divided(dim, coding.group_size)
            return {"codes": codes, "scales": Shape((dtype,), (1, heads, count, num_scales))}
    raise InputError(f"the codec {coding.name!r} writes no codes")


def _kivi_shapes(coding: Coding, name: Part, heads: int, dim: int, count: int) -> dict[str, Shape]:
    per_word, group = coding.codes_per_word, coding.group_size
    if name == "keys":
        words, shared = (divided(count, per_word), dim), (divided(count, group), dim)
    else:
        words, shared = (count, divided(dim, per_word)), (count, divided(dim, group))
    scales = Shape(("F16",), (1, heads, *shared))
    return {"words": Shape(("I32",), (1, heads, *words)), "scales": scales, "offsets": scales}


def divided(count: int, group: int) -> int:
    """The number of groups; raises `InputError` if `count` is not a multiple of `group`."""
    if count % group:
        raise InputError(f"groups of {group} do not divide {count}")
    return count // group


def coding_of(part: PartEntry) -> Coding:
    """The coding of a part; raises `InputError` for an unknown codec."""
    return Coding(part.codec, part.group, part.residual)


def num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of this dtype and shape."""
    return ITEM_BYTES[dtype] * math.prod(shape)


class Checksum(Protocol):
    """A checksum over bytes that are added piece by piece."""

    def update(self, piece: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


class Crc32:
    """CRC-32 as in zlib and gzip: several times faster than SHA-256, and in every standard library."""

    def __init__(self) -> None:
        self._sum = 0

    def update(self, piece: bytes | memoryview, /) -> None:
        self._sum = zlib.crc32(piece, self._sum)

    def hexdigest(self) -> str:
        return f"{self._sum:08x}"


KINDS: dict[ChecksumKind, Callable[[], Checksum]] = {"crc32": Crc32, "sha256": hashlib.sha256}
DIGITS: dict[ChecksumKind, int] = {"crc32": 8, "sha256": 64}  # hexadecimal digits
WRITTEN_KIND: ChecksumKind = "crc32"  # the kind that this program writes


def checksum(kind: ChecksumKind) -> Checksum:
    """A new checksum."""
    return KINDS[kind]()


# The header of a safetensors file: the first eight bytes are its length, little-endian; then follows one JSON object,
# padded with spaces, and then the tensors in the order of their offsets, without gaps. Everything is checked before
# anything of the claimed size is allocated.

PREFIX_BYTES = 8
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
MAX_OFFSET = 1 << 62


class DescribedTensor(Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor as described in the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class TensorEntry(Struct, frozen=True):
    """The dtype and shape of a tensor, and where it is in the file, in bytes from its beginning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        return self.stop - self.start


class Header(Struct, frozen=True):
    """The parsed header: metadata, tensors in the order of their offsets, and the text itself."""

    metadata: dict[str, str]
    entries: dict[str, TensorEntry]
    text: bytes


class Damaged(InputError):
    """A file that is no snapshot, or is incomplete. The message is a clause with the reason; the caller adds the
    file."""


def header_length(prefix: bytes, file_bytes: int) -> int:
    """The length of the header from the first eight bytes; raises `Damaged` if a file of `file_bytes` cannot have such
    a header."""
    if len(prefix) < PREFIX_BYTES:
        raise Damaged(f"it has {file_bytes} bytes and no header")
    length = int.from_bytes(prefix, "little")
    if length > file_bytes - PREFIX_BYTES:
        raise Damaged(
            f"its header claims {length:,} bytes and the file has {file_bytes:,}: it is cut short, or no snapshot"
        )
    if length > MAX_HEADER_BYTES:
        raise Damaged(f"its header claims {length:,} bytes and at most {MAX_HEADER_BYTES:,} are read")
    if length < 2:
        raise Damaged("its header is empty")
    return length


def parse(text: bytes, file_bytes: int) -> Header:
    """Parse the header of a file of `file_bytes`; raises `Damaged` with the reason."""
    if not text.startswith(b"{"):
        raise Damaged("its header does not begin with an object: this is no safetensors file")
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if len(raw) > MAX_TENSORS:
            raise Damaged(f"its header names {len(raw):,} tensors and at most {MAX_TENSORS:,} are read")
        metadata = msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=dict[str, str])
        written = {name: msgspec.json.decode(each, type=DescribedTensor) for name, each in raw.items()}
        json.loads(text, object_pairs_hook=_refuse_duplicates)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"its header is not what safetensors writes ({str(error)[:120]})") from None
    return Header(metadata, _laid_out(written, PREFIX_BYTES + len(text), file_bytes), text)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        raise Damaged("its header names something twice")


def _laid_out(written: dict[str, DescribedTensor], begin: int, file_bytes: int) -> dict[str, TensorEntry]:
    """The tensors in the order of their offsets; raises `Damaged` unless they fill the file exactly."""
    entries: dict[str, TensorEntry] = {}
    at = 0
    for name, each in sorted(written.items(), key=lambda item: item[1].data_offsets):
        start, stop = each.data_offsets
        _check(name, each)
        if start != at:
            raise Damaged(f"tensor '{name}' begins at byte {start:,} of the data, where {at:,} was expected")
        at = stop
        entries[name] = TensorEntry(name, each.dtype, each.shape, begin + start, begin + stop)
    if begin + at != file_bytes:
        what = "it is cut short" if begin + at > file_bytes else "something was added to it"
        raise Damaged(f"its tensors end at byte {begin + at:,} and the file at {file_bytes:,}: {what}")
    return entries


def _check(name: str, each: DescribedTensor) -> None:
    """Check one tensor: its name, dtype and shape, and that its offsets agree with them."""
    if not NAME.fullmatch(name):
        raise Damaged(f"a tensor is named {name[:40]!r}, which is no name")
    if each.dtype not in ITEM_BYTES:
        raise Damaged(f"tensor '{name}' has the dtype {each.dtype[:20]!r}, which is not known")
    if len(each.shape) > MAX_DIMENSIONS:
        raise Damaged(f"tensor '{name}' has {len(each.shape)} dimensions and at most {MAX_DIMENSIONS} are read")
    start, stop = each.data_offsets
    if not (0 <= start <= stop <= MAX_OFFSET) or any(not 0 <= size <= MAX_OFFSET for size in each.shape):
        raise Damaged(f"tensor '{name}' has a negative or an impossible size")
    if stop - start != ITEM_BYTES[each.dtype] * math.prod(each.shape):
        raise Damaged(f"tensor '{name}' of shape {list(each.shape)} has {stop - start:,} bytes, which is not its size")
    if ITEM_BYTES[each.dtype] * math.prod(max(1, size) for size in each.shape) > MAX_OFFSET:
        raise Damaged(f"tensor '{name}' of shape {list(each.shape)} has an impossible size")


def padded(entries: dict[str, object]) -> bytes:
    """The header text for these entries, padded so that the tensors begin at a multiple of eight."""
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return text + b" " * (-len(text) % PREFIX_BYTES)


# ---- the manifest: strings in the header -----------------------------------------------------------------------------

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


def read_manifest(header: Header) -> Manifest:
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
    # a rule's scores are one number per row and head, or per query, query head and row
    is_by_query = len(entries[layer.name("memory")].shape) == 3 if layer.name("memory") in entries else False
    beside = {
        "attention": Shape(("F32",), (None, None)),
        "memory": Shape(NUMBERS, (None, None, layer.num_rows) if is_by_query else (len(heads), layer.num_rows)),
        "sinks": Shape((CODE_OF_DTYPE[layer.dtype],), (1, len(heads), None, layer.key_dim)),
        **dict.fromkeys(MARKS, Shape(("U8",), (len(heads), None))),
    }
    if layer.has_positions:
        beside["positions"] = Shape(("I64",), (len(heads), layer.num_rows))
    for what, shape in beside.items():
        _check_tensor(layer.name(what), shape, entries, is_needed=what == "positions")


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
