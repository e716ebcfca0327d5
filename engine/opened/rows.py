"""The rows of an opened snapshot, read when they are asked for: of a layer only what a picture shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from engine.cache.contract import HeldRows, StateMatrix
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
NO_POSITION = 1 << 40  # the position of rows of a head that was not written: behind every token


@dataclass(frozen=True)
class RowQuery:
    """What of a layer is read: K, V, both or neither (None where only shapes and positions are asked for); one head, or
    all; the rows at some positions. `keeps_length`: the other rows stand there as zeros."""

    parts: tuple[Part, ...] = PARTS
    head: int | None = None
    positions: range | None = None
    keeps_length: bool = False


class FileRows:
    """What a snapshot holds, as whoever looks at a cache asks for it."""

    def __init__(self, file: SnapshotFile, num_layers: int) -> None:
        self.file = file
        self.spec: CacheSpec = file.manifest.cache_spec or CacheSpec()
        self.num_tokens = file.manifest.num_tokens
        self.layers: Sequence[object] = range(num_layers)
        self._entries = {entry.index: entry for entry in file.layers}
        self._last: tuple[object, HeldRows] | None = None  # the layer that was read last, with what was wanted of it

    def entry(self, layer: int) -> LayerEntry | None:
        """What the file says of a layer; None where it has none of its rows."""
        return self._entries.get(layer)

    # ---- what a cache is asked -----------------------------------------------------------------------------------

    def rows(self, layer_index: int) -> HeldRows | None:
        return self.read(layer_index, RowQuery())

    def rows_at(self, layer_index: int, num_tokens: int) -> HeldRows | None:
        return self.rows(layer_index)

    def knows(self, num_tokens: int) -> bool:
        """Earlier rows are those of then where nothing was dropped or written anew since; nothing else was kept."""
        spec = self.spec
        is_final = spec.retention.keeps_all and not rewrites(self) and not spec.recomputes and spec.quantizer is None
        is_whole = all(entry.first == 0 for entry in self._entries.values())
        return num_tokens >= self.num_tokens or (is_final and is_whole and self.file.manifest.cache_spec is not None)

    def num_final(self, layer_index: int, part: Part) -> int:
        """Nothing that is counted of a file is kept up."""
        return 0

    def changes_since(self, num_tokens: int, until: int | None = None) -> list[RowDelta] | None:
        """What became of older rows is not in a file."""
        return None

    def states(self, layer_index: int) -> tuple[StateMatrix, ...]:
        """As they were written."""
        mine = [state for state in self.file.manifest.states if state.layer == layer_index]
        return tuple(matrix for state in mine for matrix in matrices_of(state.kind, self._state(state)))

    def _state(self, state: StateEntry) -> torch.Tensor:
        numbers = torch.from_numpy(np.array(self.file.array(state.name)))
        return numbers.view(torch.bfloat16) if self.file.entries[state.name].dtype == "BF16" else numbers

    def page_ids_at(self, num_tokens: int) -> list[list[int]]:
        """Pages in logical order, one list a table, as far as they hold so many tokens."""
        tables, source = enumerate(self.file.manifest.tables), self.file.manifest.num_source
        return [
            self.file.array(table_name(number))[: -(-max(0, num_tokens - source) // table.page_size)].tolist()
            for number, table in tables
        ]

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, layer: int, wanted: RowQuery) -> HeldRows | None:
        """The rows of a layer, and of them what is wanted; None where the file has none."""
        entry = self.entry(layer)
        if entry is None:
            return None
        if self._last is None or self._last[0] != (layer, wanted):
            read = self._run if is_run(entry) else self._scattered
            self._last = (layer, wanted), read(entry, wanted)
        return self._last[1]

    def pieces(self, layer: int, part: Part, multiple: int) -> Iterator[HeldRows]:
        """All rows of K or V, so many at a time that they are small in memory; rows in one run are parted at positions
        that are multiples of a number."""
        entry = self._entries[layer]
        at_once = max(1, NUMBERS_AT_ONCE // (entry.num_kv_heads * entry.dim(part) * multiple)) * multiple
        stop = entry.first + entry.num_rows
        runs = [range(start, start + at_once) for start in range(entry.first // at_once * at_once, stop, at_once)]
        for run in runs if is_run(entry) else [None]:
            rows = self.read(layer, RowQuery((part,), positions=run))
            if rows is not None:
                yield rows

    def _run(self, entry: LayerEntry, wanted: RowQuery) -> HeldRows:
        """Rows that stand one behind the other, in all heads."""
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
        """Rows between which others were dropped, or heads of which some were not written."""
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
        """`[1, H_kv, T, D]` in the dtype of the rows. What is not wanted takes no memory and says nothing; one head
        stands for all."""
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
        """`[T, D]`; nothing, where the head was not written."""
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
    """Whether the rows of all heads stand one behind the other."""
    return not entry.has_positions and len(entry.heads) == entry.num_kv_heads


def dtype_of(entry: LayerEntry) -> torch.dtype:
    """The dtype that rows have where attention reads them."""
    found = getattr(torch, entry.dtype)
    assert isinstance(found, torch.dtype)
    return found


@dataclass(frozen=True, eq=False)
class FileRowsAt(RowsAt):
    """The rows of a file as they were with so many tokens, of which only what is `wanted` is read; none of them is
    kept."""

    source: FileRows = field(kw_only=True)
    wanted: RowQuery = RowQuery()

    @classmethod
    def of(cls, source: FileRows, num_tokens: int) -> FileRowsAt:
        return cls(source, num_tokens, written_provenance(source.file), source=source)

    @property
    def provenance(self) -> Provenance:
        return self.live_provenance if self.is_known else "as stored now"

    def rows(self, layer: int) -> HeldRows | None:
        return cut(self.source.read(layer, self.wanted), self.num_tokens)

    def only(self, wanted: RowQuery) -> FileRowsAt:
        """The same, of which less is read."""
        return replace(self, wanted=wanted)


def written_provenance(file: SnapshotFile) -> Provenance:
    """Where rows come from that are in a file: those of a live cache were recorded, others are what they were called
    when they were written. Of a word that is not known nothing is promised."""
    match file.manifest.provenance:
        case "dequantised":
            return "dequantised"
        case "recomputed":
            return "recomputed"
        case "live cache" | "recorded":
            return "recorded"
    return "as stored now"
