"""Reads the rows of an opened snapshot on request: only those that a picture shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from engine.cache.contract import HeldRows, StateMatrix, rows_from
from engine.cache.layers.state import matrices_of
from engine.cache.row_delta import RowDelta
from engine.look.rows_at import RowsAt, cut, rewrites
from engine.snapshot.format import PARTS, LayerEntry, StateEntry
from engine.snapshot.manifest import table_name
from engine.snapshot.read import SnapshotFile
from engine.spec.cache import CacheSpec
from engine.spec.codec import Part
from engine.wire.records import Provenance

NUMBERS_AT_ONCE = 1 << 20
HEAD_NUMBERS_AT_ONCE = 1 << 19  # read at once of one head, as float32: 2 MiB
NO_POSITION = 1 << 40  # position of the rows of heads that were not written: behind every token


@dataclass(frozen=True)
class RowQuery:
    """Which part of a layer is read: K, V, both or neither (for shapes and positions only); one head or all (None); the
    rows at some positions, or all (None). With `keeps_length` the other rows are filled with zeros."""

    parts: tuple[Part, ...] = PARTS
    head: int | None = None
    positions: range | None = None
    keeps_length: bool = False


class FileRows:
    """The rows of a snapshot, with the methods of a cache that pictures use."""

    def __init__(self, file: SnapshotFile, num_layers: int) -> None:
        self.file = file
        self.spec: CacheSpec = file.manifest.cache_spec or CacheSpec()
        self.num_tokens = file.manifest.num_tokens
        self.layers: Sequence[object] = range(num_layers)
        self._entries = {entry.index: entry for entry in file.layers}
        self._last: tuple[object, HeldRows] | None = None  # the last query and its result

    def entry(self, layer: int) -> LayerEntry | None:
        """The entry of a layer in the file; None if it has no rows there."""
        return self._entries.get(layer)

    # ---- methods of a cache --------------------------------------------------------------------------------------

    def rows(self, layer_index: int) -> HeldRows | None:
        return self.read(layer_index, RowQuery())

    def rows_at(self, layer_index: int, num_tokens: int) -> HeldRows | None:
        return self.rows(layer_index)

    def knows(self, num_tokens: int) -> bool:
        """Whether the rows at `num_tokens` are known: at the end always; earlier, if no rows were dropped or rewritten
        since."""
        spec = self.spec
        is_final = spec.retention.keeps_all and not rewrites(self) and not spec.recomputes and spec.quantizer is None
        is_whole = all(entry.first == 0 for entry in self._entries.values())
        return num_tokens >= self.num_tokens or (is_final and is_whole and self.file.manifest.cache_spec is not None)

    def newest_rows(self, layer_index: int, first_position: int) -> HeldRows | None:
        return rows_from(self.rows(layer_index), first_position)

    def newest_rows_at(self, layer_index: int, num_tokens: int, first_position: int) -> HeldRows | None:
        return self.newest_rows(layer_index, first_position)

    def num_final(self, layer_index: int, part: Part, num_tokens: int) -> int:
        """Always 0: counts of a file's rows are not kept between steps."""
        return 0

    def exact_from(self, layer_index: int, num_tokens: int, part: Part) -> int:
        """The position from which on K or V of a layer is exact: before it, the file has codes, or what was read from
        codes when it was written."""
        entry, coded = self._entries.get(layer_index), self._num_coded
        if entry is None or self.file.manifest.provenance != "dequantised":
            return 0
        if not any(map(any, coded.values())):  # the file says it of all rows
            return num_tokens
        num_coded = coded[layer_index][PARTS.index(part)]
        return num_tokens if num_coded >= entry.num_rows else entry.first + num_coded if num_coded else 0

    @cached_property
    def _num_coded(self) -> dict[int, tuple[int, ...]]:
        """How many rows of K and of V of each layer were coded. A file of plain numbers does not say it: there it
        follows from the cache mode."""
        if self.file.manifest.form == "stored":
            return {entry.index: (entry.keys.num_coded, entry.values.num_coded) for entry in self.file.layers}
        return {
            entry.index: tuple(
                0 if entry.kind == "cross" else coding.num_coded(entry.num_rows, part)
                for coding, part in zip(self.spec.codec.at(entry.index), PARTS, strict=True)
            )
            for entry in self.file.layers
        }

    def changes_since(self, num_tokens: int, until: int | None = None) -> list[RowDelta] | None:
        """Always None: a file does not say how older rows changed."""
        return None

    def states(self, layer_index: int) -> tuple[StateMatrix, ...]:
        """The recurrent states of a layer, as they were written."""
        mine = [state for state in self.file.manifest.states if state.layer == layer_index]
        return tuple(matrix for state in mine for matrix in matrices_of(state.kind, self._state(state)))

    def _state(self, state: StateEntry) -> torch.Tensor:
        numbers = torch.from_numpy(np.array(self.file.array(state.name)))
        return numbers.view(torch.bfloat16) if self.file.entries[state.name].dtype == "BF16" else numbers

    def page_ids_at(self, num_tokens: int) -> list[list[int]]:
        """Page ids in logical order, one list per table, limited to the pages of the first `num_tokens` tokens."""
        tables, source = enumerate(self.file.manifest.tables), self.file.manifest.num_source
        return [
            self.file.array(table_name(number))[: -(-max(0, num_tokens - source) // table.page_size)].tolist()
            for number, table in tables
        ]

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, layer: int, wanted: RowQuery) -> HeldRows | None:
        """The queried part of a layer's rows; None if the file has none. The last result is kept."""
        entry = self.entry(layer)
        if entry is None:
            return None
        if self._last is None or self._last[0] != (layer, wanted):
            read = self._run if is_run(entry) else self._scattered
            self._last = (layer, wanted), read(entry, wanted)
        return self._last[1]

    def pieces(self, layer: int, part: Part, multiple: int) -> Iterator[HeldRows]:
        """All rows of K or V in pieces that are small in memory. Consecutive rows are split at positions that are
        multiples of `multiple`."""
        entry = self._entries[layer]
        at_once = max(1, NUMBERS_AT_ONCE // (entry.num_kv_heads * entry.dim(part) * multiple)) * multiple
        stop = entry.first + entry.num_rows
        runs = [range(start, start + at_once) for start in range(entry.first // at_once * at_once, stop, at_once)]
        for run in runs if is_run(entry) else [None]:
            rows = self.read(layer, RowQuery((part,), positions=run))
            if rows is not None:
                yield rows

    def _run(self, entry: LayerEntry, wanted: RowQuery) -> HeldRows:
        """Read rows that are consecutive in all heads."""
        stop = entry.first + entry.num_rows
        shown = wanted.positions or range(entry.first, stop)
        first = min(max(entry.first, shown.start), stop)
        rows = range(first - entry.first, max(first, min(stop, shown.stop)) - entry.first)
        if not wanted.keeps_length:
            keys, values = (self._numbers(entry, name, wanted, rows) for name in PARTS)
            return HeldRows(keys, values, first)
        shapes = ((1, entry.num_kv_heads, entry.num_rows, entry.dim(name)) for name in PARTS)
        keys, values = (torch.zeros(shape, dtype=dtype_of(entry)) for shape in shapes)
        for name, tensor in zip(PARTS, (keys, values), strict=True):
            if name in wanted.parts:
                tensor[:, :, rows.start : rows.stop] = self._numbers(entry, name, wanted, rows)
        return HeldRows(keys, values, entry.first)

    def _scattered(self, entry: LayerEntry, wanted: RowQuery) -> HeldRows:
        """Read rows with gaps between them, or of a layer of which some heads were not written."""
        positions = np.full((entry.num_kv_heads, entry.num_rows), NO_POSITION, np.int64)
        for head in entry.heads:
            positions[head] = self.file.positions(entry.index, head)
        shown = wanted.positions
        rows = range(entry.num_rows)
        if shown is not None and not wanted.keeps_length:
            is_shown = ((positions >= shown.start) & (positions < shown.stop)).any(0)
            places = np.flatnonzero(is_shown)
            rows = range(int(places[0]), int(places[-1]) + 1) if len(places) else range(0)
        keys, values = (self._numbers(entry, name, wanted, rows) for name in PARTS)
        held = positions[:, rows.start : rows.stop]
        return HeldRows(keys, values, entry.first, torch.from_numpy(np.ascontiguousarray(held)))

    def _numbers(self, entry: LayerEntry, name: Part, wanted: RowQuery, rows: range) -> torch.Tensor:
        """Numbers `[1, H_kv, T, D]` in the dtype of the rows. A part that is not queried is zeros without memory; if
        one head is queried, its rows stand for all heads."""
        shape = (1, entry.num_kv_heads, len(rows), entry.dim(name))
        if name not in wanted.parts or not len(rows):
            return torch.zeros((), dtype=dtype_of(entry)).expand(shape)
        if wanted.head is not None:
            head = min(wanted.head, entry.num_kv_heads - 1)
            return self._head(entry, name, head, rows).expand(shape)
        found = torch.empty(shape, dtype=dtype_of(entry))
        for head in range(entry.num_kv_heads):
            found[0, head] = self._head(entry, name, head, rows)
        return found

    def _head(self, entry: LayerEntry, name: Part, head: int, rows: range) -> torch.Tensor:
        """Rows `[T, D]` of a head; zeros if the head was not written."""
        if head not in entry.heads:
            return torch.zeros(len(rows), entry.dim(name), dtype=dtype_of(entry))
        found = torch.empty(len(rows), entry.dim(name), dtype=dtype_of(entry))
        at_once = max(1, HEAD_NUMBERS_AT_ONCE // entry.dim(name))
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            numbers = np.array(self.file.rows(entry.index, name, head, part))
            found[start : start + len(part)] = torch.from_numpy(numbers)
        return found


def is_run(entry: LayerEntry) -> bool:
    """Whether the rows of all heads are written, at consecutive positions."""
    return not entry.has_positions and len(entry.heads) == entry.num_kv_heads


def dtype_of(entry: LayerEntry) -> torch.dtype:
    """The dtype of the rows as attention reads them."""
    found = getattr(torch, entry.dtype)
    assert isinstance(found, torch.dtype)
    return found


@dataclass(frozen=True, eq=False)
class FileRowsAt(RowsAt):
    """The rows of a file as they were with `num_tokens` tokens. Only the part `wanted` is read, and nothing is cached
    here."""

    source: FileRows = field(kw_only=True)
    wanted: RowQuery = RowQuery()

    @classmethod
    def of(cls, source: FileRows, num_tokens: int) -> FileRowsAt:
        return cls(source, num_tokens, written_provenance(source.file), source=source)

    @property
    def exact_provenance(self) -> Provenance:
        return self.live_provenance if self.is_known else "as stored now"

    def rows(self, layer: int) -> HeldRows | None:
        return cut(self.source.read(layer, self.wanted), self.num_tokens)

    def only(self, wanted: RowQuery) -> FileRowsAt:
        """The same rows, restricted to a smaller query."""
        return replace(self, wanted=wanted)


def written_provenance(file: SnapshotFile) -> Provenance:
    """The provenance of exact rows in a file: "recorded" if they came from a live cache, else as it was when they were
    written. An unknown word becomes "as stored now", which promises nothing."""
    match file.manifest.provenance:
        case "recomputed":
            return "recomputed"
        case "live cache" | "recorded" | "dequantised":
            return "recorded"
    return "as stored now"
