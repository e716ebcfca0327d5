"""Measures the new rows of K and V of a step: on the device, in one kernel for all tensors of equal shape. They are
made into records on the host. The cost does not grow with the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from engine.cache.contract import Pair
from engine.cache.stacking import stacked_view
from engine.look.packing import Arrays
from engine.look.probe import bit_sums, wrapped
from engine.wire.records import NonFinite, RowStats, read_only_floats

Tensors = dict[str, torch.Tensor]
KEYS, VALUES = 0, 1
NAMES = ("keys", "values")
NO_OFFSETS: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True)
class RowGroup:
    """Tensors of one `shape` `[H_kv, T, D]` and dtype: for each its layer, and whether it is keys or values."""

    shape: torch.Size
    dtype: torch.dtype
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class NewRows:
    """The new rows of a step: the layers that have any, their tensors in groups, and how many tokens were computed. A
    layer with fewer rows than that has already evicted the first ones from its window, unless `offsets` gives the index
    among the new rows at which its rows begin."""

    layers: tuple[int, ...]
    groups: tuple[RowGroup, ...]
    num_new: int
    offsets: Mapping[int, int]

    @classmethod
    def of(cls, rows: Mapping[int, Pair], num_new: int, offsets: Mapping[int, int] = NO_OFFSETS) -> NewRows:
        groups: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for part in (KEYS, VALUES):
            for layer, pair in rows.items():
                groups.setdefault((pair[part].shape, pair[part].dtype, pair[part].device), []).append((layer, part))
        firsts = [(rows[places[0][0]][places[0][1]], tuple(places)) for places in groups.values()]
        return cls(
            tuple(rows), tuple(RowGroup(one.shape, one.dtype, places) for one, places in firsts), num_new, offsets
        )

    def measure(self, rows: Mapping[int, Pair], *, with_rows: bool = False) -> Tensors:
        """For each of N tensors: norms, a checksum of the bits, and how many numbers are not finite. `with_rows`: the
        rows themselves instead, bit for bit, and the host measures. Nothing is read by the host."""
        return self.measure_all([rows], with_rows=with_rows)[0]

    def measure_all(self, rows_of: Sequence[Mapping[int, Pair]], *, with_rows: bool) -> list[Tensors]:
        """The measurements of several sequences with rows of equal shapes, computed at once."""
        together = self.measure_together(rows_of, with_rows=with_rows)
        return [{name: numbers[n] for name, numbers in together.items()} for n in range(len(rows_of))]

    def measure_together(self, rows_of: Sequence[Mapping[int, Pair]], *, with_rows: bool) -> Tensors:
        """The measurements of B sequences, in one tensor each, `[B, N, …]`."""
        found: Tensors = {}
        for number, group in enumerate(self.groups):
            stacked = stacked_view([rows[layer][part] for rows in rows_of for layer, part in group.places])
            measured = {"bits": stacked.contiguous().view(torch.uint8)} if with_rows else measured_rows(stacked)
            for name, numbers in measured.items():
                found[f"rows.{number}.{name}"] = numbers.view(len(rows_of), -1, *numbers.shape[1:])
        return found

    def statistics(self, measured: Arrays, first_position: int) -> NewRowStatistics:
        """The measured arrays as statistics for a record. Heads that a layer does not have are NaN."""
        if rows := self.rows_of(measured):
            measured = {name: found.numpy() for name, found in self.measure(rows).items()}
        heads = max(measured[f"rows.{number}.norms"].shape[1] for number in range(len(self.groups)))
        index = {layer: n for n, layer in enumerate(self.layers)}
        norms = np.full((2, len(index), heads, self.num_new), np.nan, np.float32)
        sums = dict.fromkeys(self.layers, 0)
        bad: list[NonFinite] = []
        for number, group in enumerate(self.groups):
            told, counts = measured[f"rows.{number}.norms"], measured[f"rows.{number}.bad"]
            held = told.shape[2]
            parts, places = np.array([(part, index[layer]) for layer, part in group.places]).T
            begins = np.array([self.offsets.get(layer, self.num_new - held) for layer, _ in group.places])
            for begin in set(begins.tolist()):
                mine = begins == begin
                norms[parts[mine], places[mine], : told.shape[1], begin : begin + held] = told[mine]
            for (layer, part), total in zip(group.places, measured[f"rows.{number}.sums"].tolist(), strict=True):
                sums[layer] += (1, 3)[part] * total
            for n, head, offset in zip(*np.nonzero(counts), strict=True):
                layer, part = group.places[n]
                position = first_position + self.offsets.get(layer, self.num_new - held) + int(offset)
                bad.append(NonFinite(NAMES[part], layer, int(head), position, int(counts[n, head, offset])))  # type: ignore[arg-type]
        stats = RowStats(self.layers, *map(read_only_floats, norms))
        bad.sort(key=lambda each: (each.layer or 0, each.tensor, each.kv_head or 0, each.position))
        return NewRowStatistics(stats, {layer: wrapped(total) for layer, total in sums.items()}, tuple(bad))

    def rows_of(self, measured: Arrays) -> dict[int, Pair]:
        """The new rows as they were computed, on the CPU, if `measure` was called `with_rows`."""
        parts: dict[tuple[int, int], torch.Tensor] = {}
        for number, group in enumerate(self.groups):
            bits = measured.get(f"rows.{number}.bits")
            if bits is not None:
                parts.update(zip(group.places, torch.from_numpy(bits).view(group.dtype), strict=True))
        return {layer: (parts[layer, KEYS], parts[layer, VALUES]) for layer in self.layers if (layer, KEYS) in parts}


def measured_rows(stacked: torch.Tensor) -> Tensors:
    """The measurements of rows `[N, H_kv, T, D]`."""
    # x - x is 0 for finite x, else NaN: takes a quarter of the time of `isfinite`
    bad = (stacked - stacked).ne_(0).sum(-1, dtype=torch.float32)
    return {
        "norms": torch.linalg.vector_norm(stacked.float(), dim=-1),  # [N, H_kv, T]
        "sums": bit_sums(stacked),  # [N]
        "bad": bad.to(torch.int16),  # [N, H_kv, T]
    }


@dataclass(frozen=True, eq=False)
class NewRowStatistics:
    """Statistics of the new rows, the checksum of their bits by layer, and where numbers are not finite."""

    stats: RowStats
    checksums: dict[int, int]
    non_finite: tuple[NonFinite, ...]
