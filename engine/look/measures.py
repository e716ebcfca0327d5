"""What is measured of a step: its new rows, the newest query's attention and the rows that it evicted.

All of it is measured on the device, with one kernel for all tensors of equal shape, and made into records on the host.
The cost does not grow with the context.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from engine.cache.contract import Evicted, EvictedRows, Pair
from engine.cache.stacking import evenly_spaced, on_one_device, stacked_view
from engine.look.candidates import likely_tokens
from engine.look.transfer import Arrays, PackedBuffer, Packing
from engine.spec.codec import PARTS
from engine.wire.records import (
    NUM_QUANTILES,
    AttentionSummary,
    Eviction,
    NonFinite,
    RowStats,
    Survivors,
    read_only,
    read_only_floats,
)

Tensors = dict[str, torch.Tensor]
KEYS, VALUES = 0, 1
NO_OFFSETS: Mapping[int, int] = MappingProxyType({})


# ---- new rows -------------------------------------------------------------------------------------------------------


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
        parts = [[pair[part] for pair in rows.values()] for part in (KEYS, VALUES)]
        forms = [tuple([(each.shape, each.dtype, each.device) for each in tensors]) for tensors in parts]
        return new_rows(tuple(rows), tuple(forms), num_new, tuple(offsets.items()))

    @cached_property
    def _indices(self) -> list[list[tuple[int, Any, Any, Any]]]:
        """For each group the place among the new rows at which tensors of it begin: with their numbers in the group,
        their parts, and the indices of their layers."""
        found = []
        for group in self.groups:
            usual = self.num_new - group.shape[1]
            begins = np.array([self.offsets.get(layer, usual) for layer, _ in group.places])
            parts, places = np.array([(part, self.layers.index(layer)) for layer, part in group.places]).T
            mine = {begin: np.flatnonzero(begins == begin) for begin in set(begins.tolist())}
            found.append([(begin, each, parts[each], places[each]) for begin, each in mine.items()])
        return found

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
        heads = max(group.shape[0] for group in self.groups)
        norms = np.full((2, len(self.layers), heads, self.num_new), np.nan, np.float32)
        sums = dict.fromkeys(self.layers, 0)
        bad: list[NonFinite] = []
        for number, (group, indices) in enumerate(zip(self.groups, self._indices, strict=True)):
            of_rows, counts = measured[f"rows.{number}.norms"], measured[f"rows.{number}.bad"]
            held = of_rows.shape[2]
            for begin, mine, parts, places in indices:
                norms[parts, places, : of_rows.shape[1], begin : begin + held] = of_rows[mine]
            for (layer, part), total in zip(group.places, measured[f"rows.{number}.sums"].tolist(), strict=True):
                sums[layer] += (1, 3)[part] * total
            for n, head, offset in zip(*np.nonzero(counts), strict=True) if counts.any() else ():
                layer, part = group.places[n]
                position = first_position + self.offsets.get(layer, self.num_new - held) + int(offset)
                bad.append(NonFinite(PARTS[part], layer, int(head), position, int(counts[n, head, offset])))
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


@dataclass(frozen=True)
class RowGroup:
    """Tensors of one `shape` `[H_kv, T, D]` and dtype: for each its layer, and whether it is keys or values."""

    shape: torch.Size
    dtype: torch.dtype
    places: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def new_rows(
    layers: tuple[int, ...],
    forms: tuple[tuple[tuple[torch.Size, torch.dtype, torch.device], ...], ...],
    num_new: int,
    offsets: tuple[tuple[int, int], ...],
) -> NewRows:
    """The groups of tensors whose keys, and then values, have these forms, layer by layer: the same at most steps."""
    groups: dict[tuple[torch.Size, torch.dtype, torch.device], list[tuple[int, int]]] = {}
    for part, of_layers in enumerate(forms):
        for layer, form in zip(layers, of_layers, strict=True):
            groups.setdefault(form, []).append((layer, part))
    made = tuple(RowGroup(shape, dtype, tuple(places)) for (shape, dtype, _), places in groups.items())
    return NewRows(layers, made, num_new, dict(offsets))


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


# ---- checksums of rows ----------------------------------------------------------------------------------------------


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number
AT_ONCE = 1 << 18  # numbers, whose products take 2 MiB; for more, tensors are multiplied one by one in the same memory
MIXED = 0x5DEECE66D  # odd, so that no bits are lost; different at each place, so that exchanged numbers are noticed


def row_checksums(rows: dict[int, Pair]) -> dict[int, int]:
    """The checksum of the new rows, by layer."""
    if not rows:
        return {}
    tensors = on_one_device(tensor for pair in rows.values() for tensor in pair)
    if are_alike(tensors, tensors[0].shape[1]):
        sums = bit_sums(torch.stack(tensors)).tolist()
    else:
        sums = [int(bit_sums(tensor[None])) for tensor in tensors]
    return {layer: wrapped(sums[2 * n] + 3 * sums[2 * n + 1]) for n, layer in enumerate(rows)}


def are_alike(tensors: Sequence[torch.Tensor], num_new: int) -> bool:
    """Whether all have the same shape `[H_kv, T, D]` and contain every new row."""
    return tensors[0].shape[1] == num_new and all(t.shape == tensors[0].shape for t in tensors)


def bit_sums(stacked: torch.Tensor) -> torch.Tensor:
    """Checksums `[N]` int64 of `[N, H_kv, T, D]`: the bits as integers, each times an odd number for its place, summed
    with wrapping. The order in which integers are summed does not matter, so every device gives the same."""
    bits = stacked.reshape(len(stacked), -1).view(BITS[stacked.element_size()])
    places = torch.arange(bits.shape[1], device=bits.device).mul_(2 * MIXED).add_(MIXED)
    if bits.numel() <= AT_ONCE:
        return (bits * places).sum(1)
    sums, products = places.new_empty(len(bits)), torch.empty_like(places)
    for number, each in enumerate(bits):
        torch.sum(torch.mul(each, places, out=products), 0, out=sums[number])
    return sums


def wrapped(number: int) -> int:
    """The number as a signed 64-bit integer."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


# ---- how large a new row is against those before it in its head -----------------------------------------------------


Norms = npt.NDArray[np.float32]  # [L, 2 * H_kv, T]: of keys, then of values
MOST_ROWS = 64  # earlier rows that are compared with
FEWEST_ROWS = 8  # fewer rows give no meaningful median


def norm_ratio(stats: RowStats, before: Norms | None) -> float | None:
    """The largest ratio of a new row's norm to the median of its head over up to 64 earlier rows. With fewer than 8
    earlier rows the new ones are included; None if there are fewer than 8 even so."""
    new = norms_of(stats)
    known = before if before is not None and before.shape[:2] == new.shape[:2] else new[..., :0]
    if known.shape[-1] < FEWEST_ROWS:
        known = np.concatenate([known, new], -1)
    if known.shape[-1] < FEWEST_ROWS:
        return None
    median = _median(known)[..., None]
    ratios = new / np.where(median > 0, median, np.nan)
    most = float(np.fmax.reduce(ratios, axis=None))  # NaN only where all are
    return None if math.isnan(most) else most


def norms_of(stats: RowStats) -> Norms:
    """The norms of new rows, K and V concatenated along the heads."""
    return np.concatenate([stats.key_norm, stats.value_norm], 1)


def norms_before(stats: Iterable[RowStats]) -> Norms | None:
    """The norms of the last `MOST_ROWS` rows of steps, whose statistics come newest first; None where there are
    none."""
    found: list[Norms] = []
    for each in stats:
        if found and (norms_of(each).shape[:2] != found[0].shape[:2] or sum(n.shape[-1] for n in found) >= MOST_ROWS):
            break
        found.append(norms_of(each))
    return np.concatenate(found[::-1], -1)[..., -MOST_ROWS:] if found else None


def norms_after(before: Norms | None, stats: RowStats) -> Norms:
    """The norms of the last `MOST_ROWS` rows, after adding those of a step."""
    new = norms_of(stats)
    if before is None or before.shape[:2] != new.shape[:2]:
        return new[..., -MOST_ROWS:]
    return np.concatenate([before, new], -1)[..., -MOST_ROWS:]


def _median(norms: Norms) -> Norms:
    """The median over the last axis, ignoring NaN; NaN if all values are."""
    ordered, size = np.sort(norms, -1), norms.shape[-1]  # NaN is sorted last
    if (ordered[..., -1] == ordered[..., -1]).all():  # the usual case, and much faster
        return (ordered[..., (size - 1) // 2] + ordered[..., size // 2]) / np.float32(2)
    count = (ordered == ordered).sum(-1, keepdims=True)
    places = np.concatenate([np.maximum(count - 1, 0) // 2, np.minimum(count // 2, size - 1)], -1)
    return np.take_along_axis(ordered, places, -1).sum(-1) / np.float32(2)  # type: ignore[no-any-return]


# ---- attention of the newest query ----------------------------------------------------------------------------------


RECENT = 16
WASTE = 2  # a storage larger than this multiple of the rows kept in it is not kept alive
SMALLEST = torch.finfo(torch.float32).tiny


def attention_measures(
    rows: Mapping[int, torch.Tensor], num_tokens: int, num_source: int = 0
) -> dict[str, torch.Tensor]:
    """For the newest query's weights `[H, S]` by layer: the mass on position 0 (none once it has left a window) and on
    the last 16, `[L, H, 2]`, NaN for heads that a layer does not have. Its cost does not grow with the context. The
    first decoder token of an encoder-decoder is at position `num_source`."""
    if not rows:
        return {}
    shapes, whole = {row.shape for row in rows.values()}, (num_tokens, num_tokens - num_source)
    if len(shapes) == 1 and next(iter(shapes))[1] in whole:
        alike = on_one_device(rows.values())
        if (view := evenly_spaced(alike)) is not None:
            first, recent = view[..., 0], view[..., -RECENT:]
        else:
            first, recent = (torch.stack([row[:, part] for row in alike]) for part in (0, slice(-RECENT, None)))
        return {"attention": torch.stack([first, recent.sum(-1)], -1)}
    heads = max(row.shape[0] for row in rows.values())
    firsts = [row[:, 0] if row.shape[1] in whole else torch.zeros_like(row[:, 0]) for row in rows.values()]
    masses = [torch.stack([one, row[:, -RECENT:].sum(-1)], -1) for one, row in zip(firsts, rows.values(), strict=True)]
    return {"attention": torch.stack(on_one_device(padded(mass, heads) for mass in masses))}


def padded(mass: torch.Tensor, heads: int) -> torch.Tensor:
    """Masses `[H, 2]` with NaN for the missing heads."""
    return torch.nn.functional.pad(mass, (0, 0, 0, heads - mass.shape[0]), value=torch.nan)


def attention_summary(measured: Mapping[str, Any], layers: Sequence[int]) -> AttentionSummary | None:
    """The measured masses as part of a record."""
    masses = measured.get("attention")
    if masses is None:
        return None
    return AttentionSummary(tuple(layers), *(read_only_floats(masses[..., number]) for number in (0, 1)))


def spread(weights: torch.Tensor, positions: torch.Tensor | None, num_tokens: int) -> torch.Tensor:
    """Weights `[H, S]` of rows at `positions` `[H_kv, S]` as a row over all tokens, `[H, num_tokens]`, zero at evicted
    rows."""
    if positions is None:
        return weights
    places = positions.repeat_interleave(weights.shape[0] // positions.shape[0], 0)
    return weights.new_zeros(weights.shape[0], num_tokens).scatter_(1, places, weights)


def nan_where_evicted(weights: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """A row of weights over all tokens, `[H, num_tokens]`, with NaN where the layer holds no row."""
    if positions is None:
        return weights
    places = positions.repeat_interleave(weights.shape[0] // positions.shape[0], 0)
    return torch.full_like(weights, torch.nan).scatter_(1, places, weights.gather(1, places))


def entropy_of(weights: torch.Tensor) -> torch.Tensor:
    """Entropy `[…]` in nats of weights `[…, S]`; evicted rows (NaN) count as zero."""
    held = weights.nan_to_num(0.0)
    # p log p written out, because torch's entr is four times slower; clamped, because 0 times log 0 is NaN
    # a single weight gives 0 and not -0; never below it, which rounding may make it
    return held.clamp_min(SMALLEST).log_().mul_(held).sum(-1).clamp_max_(0.0).abs_()


def keepable_rows(
    weights: Mapping[int, torch.Tensor], num_tokens: int, num_together: int = 1, *, is_borrowed: bool = False
) -> dict[int, torch.Tensor]:
    """The newest query's weights `[H, S]` by layer, in a form that can be kept. `num_together` sequences keep rows of
    the same tensors.

    Columns from `num_tokens` on are cut off: static caches give empty room a weight (zero). A row is copied if keeping
    it would keep a much larger tensor alive; copying all rows would cost O(context) at each step. With `is_borrowed`,
    all rows are copied, because the next forward overwrites them.
    """
    rows = {layer: row if row.shape[1] <= num_tokens else row[:, :num_tokens] for layer, row in weights.items()}
    if is_borrowed and len({row.shape for row in rows.values()}) == 1:
        return dict(zip(rows, torch.stack(list(rows.values())), strict=True))
    sizes: dict[int, int] = {}
    for row in rows.values():
        place = row.untyped_storage().data_ptr()
        sizes[place] = sizes.get(place, 0) + row.nbytes * num_together
    return {
        layer: row.clone() if is_borrowed or is_wasteful(row.untyped_storage(), sizes) else row
        for layer, row in rows.items()
    }


def is_wasteful(storage: torch.UntypedStorage, sizes: Mapping[int, int]) -> bool:
    """Whether most of a storage is not rows that are kept."""
    return storage.nbytes() > WASTE * sizes[storage.data_ptr()]


# ---- evicted rows ---------------------------------------------------------------------------------------------------


EVICTION_MEASURES = ("positions", "scores", "quantiles", "on_merit")


@dataclass(frozen=True, eq=False)
class EvictedInStep:
    """What one step evicted, in the order of its record. Evictions that the host already knows go into the record
    unchanged."""

    evicted: Sequence[Evicted] = ()

    @property
    def _alike(self) -> list[dict[int, EvictedRows]]:
        """Groups of layers that evicted equally many rows of equally many, each by place in `evicted`."""
        found: dict[tuple[object, ...], dict[int, EvictedRows]] = {}
        for place, each in enumerate(self.evicted):
            if isinstance(each, EvictedRows):
                found.setdefault((each.scores.shape, each.kept.shape), {})[place] = each
        return list(found.values())

    def measure(self) -> dict[str, torch.Tensor]:
        """Measure which rows were evicted, and the scores of these and of the rows kept, by name; nothing is read by
        the host."""
        return {
            f"{group}.{name}": tensor
            for group, rows in enumerate(self._alike)
            for name, tensor in zip(EVICTION_MEASURES, measured_evictions(list(rows.values())), strict=True)
        }

    def evictions(self, arrays: Arrays) -> tuple[Eviction, ...]:
        """The evictions as records, from the measured arrays on the host."""
        found: dict[int, tuple[Eviction, ...]] = {
            place: (each,) for place, each in enumerate(self.evicted) if isinstance(each, Eviction)
        }
        for group, rows in enumerate(self._alike):
            numbers = zip(*(arrays[f"{group}.{name}"] for name in EVICTION_MEASURES), strict=True)
            found |= {
                place: layer_evictions(each, *own) for (place, each), own in zip(rows.items(), numbers, strict=True)
            }
        return tuple(eviction for place in sorted(found) for eviction in found[place])


def measured_evictions(rows: Sequence[EvictedRows]) -> tuple[torch.Tensor, ...]:
    """For N layers: positions `[N, H_kv, E]` of the evicted rows, their scores, quantiles `[N, H_kv, Q]` (ascending) of
    the scores of the unprotected rows kept, and how many of these there are in each head, `[N]`. Q is at most
    `NUM_QUANTILES`; where there are fewer such rows, the last columns mean nothing."""

    def stacked(name: str) -> torch.Tensor:
        return stacked_view(on_one_device(getattr(each, name) for each in rows))

    scores, kept, is_on_merit = stacked("scores").float(), stacked("kept"), stacked("on_merit")
    num_merit = is_on_merit[:, 0].gather(1, kept[:, 0]).sum(1)
    ranked = scores.masked_fill(~is_on_merit, torch.inf).gather(2, kept).sort(2).values
    order = torch.arange(min(NUM_QUANTILES, kept.shape[2]), device=scores.device)
    last = num_merit[:, None] - 1
    spaced = (order * last / (NUM_QUANTILES - 1)).round().long()
    places = torch.where(last >= NUM_QUANTILES, spaced, order)[:, None].expand(-1, ranked.shape[1], -1)
    return stacked("positions"), scores.gather(2, stacked("evicted")), ranked.gather(2, places), num_merit


def layer_evictions(
    rows: EvictedRows, positions: Any, scores: Any, quantiles: Any, on_merit: Any
) -> tuple[Eviction, ...]:
    """The records of one layer's evictions `[H_kv, E]`: one for each head, or a single one where all heads evicted the
    same."""
    num_merit = int(on_merit)
    staying = Survivors(num_merit, rows.kept.shape[1] - num_merit)
    return tuple(
        Eviction(
            rows.seq_id,
            rows.layer,
            head if rows.is_per_head else None,
            read_only(positions[head]),
            read_only(scores[head]),
            float(quantiles[head, 0]) if num_merit else None,
            rows.rule,
            replace(staying, quantiles=read_only(quantiles[head, :num_merit])),
        )
        for head in range(len(positions) if rows.is_per_head else 1)
    )


# ---- measured within the forward: the same numbers, none of which depends on decisions of the host ------------------


ROUNDING = 1e-5  # tolerance between two ways of summing the same numbers


@dataclass(frozen=True)
class WantedMeasures:
    """What is measured beside the new rows and the most probable tokens. `attention`: the newest row of attention.
    `new_rows`: the new rows themselves, bit for bit, instead of their measurements. It is constant in a recorded
    step."""

    attention: bool
    new_rows: bool


@dataclass(frozen=True, eq=False)
class PackedMeasures:
    """The measurements of B sequences in one forward: `packed` bytes `[B, bytes]`, and log-probabilities `[B, V]`; or
    of one of them, without that axis."""

    layout: PackedLayout
    packed: torch.Tensor
    logprobs: torch.Tensor

    def clone(self) -> PackedMeasures:
        """A copy, which the next forward does not overwrite."""
        return PackedMeasures(self.layout, self.packed.clone(), self.logprobs.clone())

    def of_each(self) -> list[PackedMeasures]:
        return [PackedMeasures(self.layout, *pair) for pair in zip(self.packed, self.logprobs, strict=True)]

    def tensor(self, name: str) -> torch.Tensor:
        """One of the measured tensors, as a view."""
        place = next(place for place in self.layout.packing.places if place.name == name)
        return self.layout.packing.view(place, self.packed)

    def agrees(self, other: PackedMeasures) -> bool:
        """Whether two measurements of the same step are equal but for rounding. The host waits for the answer."""
        for place in self.layout.packing.places:
            mine, others = (self.layout.packing.view(place, each.packed) for each in (self, other))
            if not (near(mine, others) if mine.is_floating_point() else torch.equal(mine, others)):
                return False
        return near(self.logprobs, other.logprobs)


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """The places of the measurements of each sequence, and the new rows that they describe."""

    packing: Packing
    new_rows: NewRows


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding; NaN equals NaN."""
    return torch.allclose(found, expected, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)


def measured_step(
    wanted: WantedMeasures,
    logits: torch.Tensor,
    rows: Mapping[int, Pair],
    weights: torch.Tensor | None,
    positions: torch.Tensor,
) -> PackedMeasures:
    """Measure a step of B sequences at `positions` `[B, 1]`: logits `[B, V]`, new rows `[B, H_kv, 1, D]` by layer, and,
    if wanted, the newest row of attention `[L, B, H, S]`, zero after the position."""
    logprobs = torch.log_softmax(logits.float(), -1)
    rows_of = [{layer: (keys[n], values[n]) for layer, (keys, values) in rows.items()} for n in range(len(logits))]
    new_rows = NewRows.of(rows_of[0], 1)
    tensors = new_rows.measure_together(rows_of, with_rows=wanted.new_rows) | likely_tokens(logprobs)
    if wanted.attention:
        assert weights is not None
        tensors["attention"] = masses(weights, positions)
    packing = Packing.of({name: tensor[0] for name, tensor in tensors.items()})
    packed = torch.empty(len(logits), packing.num_bytes, dtype=torch.uint8, device=logits.device)
    PackedBuffer(packing, packed).pack(tensors)
    return PackedMeasures(PackedLayout(packing, new_rows), packed, logprobs)


def masses(weights: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The mass of attention rows `[L, B, H, S]` on position 0 and on the last 16 up to `positions` `[B, 1]`:
    `[B, L, H, 2]`."""
    columns = positions + torch.arange(1 - RECENT, 1, device=positions.device)  # [B, 16]
    index = columns.clamp_min(0)[None, :, None].expand(*weights.shape[:3], RECENT)
    recent = weights.gather(3, index).masked_fill_((columns < 0)[:, None], 0.0).sum(-1)
    return torch.stack([weights[..., 0], recent], -1).transpose(0, 1)
