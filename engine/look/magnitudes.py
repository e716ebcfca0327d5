"""The range of the numbers of each layer (for colour scales), and the largest of them.

Magnitudes are counted on a logarithmic scale, sixteen bins to the octave. Zeros, such as those of rows that were zeroed
by hand, are counted and decide no range: it would collapse, and everything else be drawn as beyond it.

Rows that no later step overwrites are counted once, as they come, in blocks whose histograms are kept: that of an
earlier step is the last block before it and the rows since. Other rows, such as those that a codec has still to
quantise, are counted again for every picture. Nothing is ever subtracted.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct
from msgspec.structs import replace

from engine.look.lenses import RowsOfLayers, read_all, rows_at_once
from engine.look.reductions import as_slice, farthest_from_zero
from engine.look.source import Held, Source
from engine.spec.lenses import LENSES, Lens
from engine.wire.pictures import Magnitudes
from engine.wire.records import Ints, read_only_floats

# ---- colour ranges --------------------------------------------------------------------------------------------------


QUANTILE = 0.995
# Limit of the colour range in medians. In small layers one outlier channel, 1 / (H_kv * D) of the numbers, is more than
# the quantile leaves out, and would decide the colours of all others. (Normal numbers: the quantile is 4.2 medians.) A
# lens with one number a token has none: most attention weights are tiny, and the others are what one looks for.
MEDIANS = 8.0

Range = tuple[float, float, float]  # colour limit, largest magnitude, and share of the numbers beyond the limit


def magnitudes_of(counts: Sequence[LayerCount]) -> Magnitudes:
    """The colour ranges of some layers, for the window."""
    return magnitudes_from([count.of.ranges[count.place] for count in counts])


def magnitudes_from(ranges: Sequence[Range]) -> Magnitudes:
    """The same from their ranges."""
    return Magnitudes(*[read_only_floats(np.array(column, np.float32)) for column in zip(*ranges, strict=True)])


def ranges_of(counts: npt.NDArray[np.int64], peak: npt.NDArray[np.float32]) -> list[Range]:
    """The colour ranges of histograms `[L, bins]`, of which the largest numbers are in `peak` `[L, H, D]`."""
    used = np.maximum.reduce(counts).nonzero()[0]  # some two hundred of a thousand bins, beside that of zeros
    used = used[1:] if used.size and not used[0] else used
    start, stop = (int(used[0]), int(used[-1]) + 1) if used.size else (1, 2)
    num_bins, edges, has_channels = stop - start, EDGES[start : stop + 1], peak.shape[2] > 1
    below = np.zeros((len(counts), num_bins + 1), np.int64)  # how many numbers, and no zeros, are below each edge
    counts[:, start:stop].cumsum(1, out=below[:, 1:])
    # of plain integers, one layer after another: an operation of numpy takes longer than all that is done for a layer
    running, first, found = below.reshape(-1).data, 0, list[Range]()
    largest_of_each = np.abs(peak).reshape(len(peak), -1).max(1, initial=0).tolist()
    for largest, num_zeros in zip(largest_of_each, counts[:, 0].tolist(), strict=True):
        last = first + num_bins
        most, median = [
            min(largest, _magnitude_below(share * running[last], running, first, last, edges))
            for share in (QUANTILE, 0.5)
        ]
        limit = min(most, MEDIANS * median) if median > 0 and has_channels else most
        beyond = 0.0
        if limit < largest:
            place = min(max(bisect_right(edges, limit) - 1, 0), num_bins - 1)
            low, high, place = edges[place], edges[place + 1], first + place
            inside = running[place + 1] - running[place]
            beyond = running[last] - running[place + 1] + inside * (high - limit) / (high - low)
        found.append((limit, largest, beyond / max(running[last] + num_zeros, 1)))
        first = last + 1
    return found


def _magnitude_below(count: float, running: memoryview[int], first: int, last: int, edges: list[float]) -> float:
    """The magnitude below which so many numbers of a layer are, interpolated within a bin; how many are below each of
    the `edges` is in `running`, from `first` to `last`."""
    place = max(bisect_left(running, math.ceil(count), first, last + 1) - 1, first)
    low, high = edges[place - first], edges[place - first + 1]
    return low + (count - running[place]) / max(running[place + 1] - running[place], 1) * (high - low)


# ---- histograms that are kept of the rows of one owner --------------------------------------------------------------


BLOCK = 128  # rows
MOST_BLOCKS = 64  # of one layer: beyond it, blocks become twice as long


Group = tuple[tuple[str, tuple[int, ...]], ...]  # by lens, layers that are counted together


class Blocks:
    """The histograms of everything that is shown of the rows of one owner."""

    def __init__(self) -> None:
        self._counted: dict[Group, CountedLayers] = {}
        self._shown: tuple[object, dict[Group, Counts]] = None, {}  # of which step, and all rows of then

    def of(self, lens: Lens, source: Source, held: Mapping[int, Held]) -> dict[int, LayerCount]:
        """The histograms of layers that hold these rows."""
        found: dict[int, LayerCount] = {}
        for ((_, layers),), counts in self._counts(source, {lens.name: held}):
            found |= {layer: LayerCount(counts, place) for place, layer in enumerate(layers)}
        return {layer: found[layer] for layer in held}

    def magnitudes(self, lenses: Sequence[Lens], source: Source, held: Mapping[int, Held]) -> list[Magnitudes | None]:
        """The colour ranges of layers that hold these rows, through each lens; None if there are none. Those that a
        file stores are those of all rows, even if an earlier step is shown."""
        found = {lens.name: source.ranges(held, lens.name) if lens.name == lens.part else {} for lens in lenses}
        open_ones = {
            lens.name: {layer: rows for layer, rows in held.items() if layer not in stored} if stored else held
            for lens, stored in zip(lenses, found.values(), strict=True)
            if lens.is_of_every_head
        }
        for group, counts in self._counts(source, open_ones):
            ranges = iter(counts.ranges)
            for name, layers in group:
                found[name].update(zip(layers, ranges, strict=False))
        return [magnitudes_from([each[layer] for layer in held]) if each else None for each in found.values()]

    def _counts(self, source: Source, held: Mapping[str, Mapping[int, Held]]) -> list[tuple[Group, Counts]]:
        """The histograms of layers that hold these rows, by lens, in groups of layers alike."""
        if self._shown[0] != source.stamp:
            self._shown = source.stamp, {}
        shown, alike = self._shown[1], dict[Any, tuple[Held, dict[str, list[int]]]]()
        for name in sorted(held):
            part, is_one = LENSES[name].part, LENSES[name].values == 1
            for layer, rows in held[name].items():
                final = 0 if part is None else source.num_final(layer, part)
                form = final, rows.form, 1 if is_one else rows.dim(part or "keys")
                if form not in alike:
                    alike[form] = rows, {}
                alike[form][1].setdefault(name, []).append(layer)
        found: list[tuple[Group, Counts]] = []
        for (num_final, *_), (rows, of_lens) in alike.items():
            group = tuple([(name, tuple(layers)) for name, layers in of_lens.items()])
            if group not in shown:
                shown[group] = self._shown_with_others(group) or self._count(source, group, rows, num_final)
            found.append((group, shown[group]))
        return found

    def _shown_with_others(self, group: Group) -> Counts | None:
        """The histograms of layers that are shown among others of the same step."""
        for others, counts in self._shown[1].items():
            if (places := places_among(group, others)) is not None:
                return counts.part(places)
        return None

    def _count(self, source: Source, group: Group, held: Held, num_final: int) -> Counts:
        counted = self._counted.get(group) or CountedLayers.of(group, self._counted)
        counts = counted.count(source, group, held, num_final)
        if counted.newest is not None:
            self._counted[group] = counted
        return counts


def places_among(group: Group, others: Group) -> list[int] | None:
    """The places of layers among others that are counted together; None if not all of them are there."""
    found, first, wanted = list[int](), 0, dict(group)
    for name, layers in others:
        found += [first + layers.index(layer) for layer in wanted.get(name, ()) if layer in layers]
        first += len(layers)
    return found if len(found) == sum([len(layers) for layers in wanted.values()]) else None


@dataclass(eq=False)
class CountedLayers:
    """Layers that are counted together, through one lens or several, as they hold rows of one form; and the histograms
    of their first rows, which no later step overwrites: after each block, and of all that were counted (`newest`, the
    only one that rows are added to)."""

    block: int = field(default_factory=lambda: BLOCK)
    after: list[Counts] = field(default_factory=list)
    newest: Counts | None = None

    @classmethod
    def of(cls, group: Group, known: Mapping[Group, CountedLayers]) -> CountedLayers:
        """With the histograms that are known of these layers, if they are among others that were counted together."""
        for others, counted in known.items():
            places = places_among(group, others)
            if places is not None and counted.newest is not None:
                after = [each.part(places) for each in counted.after]
                return cls(counted.block, after, counted.newest.part(places).copy())
        return cls()

    def count(self, source: Source, group: Group, held: Held, num_final: int) -> Counts:
        """The histograms of all rows, of which the first `num_final` are final; those that are not counted yet are
        read. `held` is what each of the layers holds, but for the positions where there are gaps."""
        final, rest = self._known(num_final), None
        (lens, (layer, *_)), *_ = group
        start = held.first if final is None else final.num_rows
        spans: list[range | None] = [None]
        if held.positions is None:
            at_once = max(1, rows_at_once(source, LENSES[lens], layer) // sum([len(layers) for _, layers in group]))
            spans = [range(n, min(held.stop, n + at_once)) for n in range(start, held.stop, at_once)]
            spans = spans or ([range(start, start)] if final is None else [])
        for span in spans:
            rows = _read(source, group, held, span)
            for part in self._cuts(rows[0].first, rows[0].numbers.shape[2], num_final):
                piece, stop = counted_together(rows, part, source.num_tokens), rows[0].first + part.stop
                if part.start < part.stop and stop <= num_final:
                    final = piece if final is None else final.add(piece)
                    self._note(final)
                else:
                    rest = piece if rest is None else rest.add(piece)
        found = final if rest is None else rest if final is None else final.copy().add(rest)
        assert found is not None, "layers that hold rows"
        return found

    def _known(self, num_rows: int) -> Counts | None:
        """The longest known histograms of at most the first `num_rows` rows, to which others may be added; None if none
        are known."""
        if self.newest is not None and self.newest.num_rows <= num_rows:
            return self.newest
        number = min(num_rows // self.block, len(self.after))
        return self.after[number - 1].copy() if number else None

    def _cuts(self, first: int, count: int, num_final: int) -> list[slice]:
        """So many rows from position `first` on, cut where blocks or the final rows end."""
        block, stop = self.block, first + count
        ends = [*range((first // block + 1) * block, num_final, block), num_final]
        cuts = [first, *[end for end in ends if first < end < stop], stop]
        return [slice(start - first, end - first) for start, end in itertools.pairwise(cuts)]

    def _note(self, final: Counts) -> None:
        """Keep the histograms of the first final rows, which end with a block or with all of them."""
        if final.num_rows == (len(self.after) + 1) * self.block:
            self.after.append(final.copy())
            if len(self.after) > MOST_BLOCKS:
                self.after, self.block = self.after[1::2], 2 * self.block
        if self.newest is None or self.newest.num_rows < final.num_rows:
            self.newest = final


def _read(source: Source, group: Group, held: Held, span: range | None) -> list[RowsOfLayers]:
    """These rows of layers, through several lenses; places are those among all of them."""
    found: list[RowsOfLayers] = []
    first = 0
    for lens, layers in group:
        for rows in read_all(source, LENSES[lens], list(layers), held, span):
            found.append(replace(rows, places=[first + place for place in rows.places]) if first else rows)
        first += len(layers)
    return found


def counted_together(rows: Sequence[RowsOfLayers], part: slice, num_tokens: int) -> Counts:
    """The histograms of some of the rows that were read, in the order of their places; few numbers as one tensor."""
    numbers = [each.numbers.narrow(2, part.start, part.stop - part.start) for each in rows]
    positions = [None if each.positions is None else each.positions[:, :, part] for each in rows]
    if len(numbers) > 1 and positions[0] is None and sum([each.numel() for each in numbers]) <= COUNTED_AT_ONCE:
        is_alike = len({(each.shape[1:], each.dtype, each.device) for each in numbers}) == 1
        if is_alike:
            numbers, positions = [torch.cat(numbers)], [None]
    counts = [counted(each, at, num_tokens) for each, at in zip(numbers, positions, strict=True)]
    places = [place for each in rows for place in each.places]
    if len(counts) == 1 and places == [*range(len(places))]:
        return counts[0]
    found = [LayerCount(each, number) for each in counts for number in range(len(each.counts))]
    return joined([found[places.index(place)] for place in range(len(places))])


# ---- counting: sixteen bins to the octave, computed from the bits of float32 ----------------------------------------


COUNTED_AT_ONCE = 1 << 17  # numbers
_SHIFT = 19  # bits dropped of the 23 of a mantissa, so that four are kept
_NO_SIGN = (1 << 31) - 1
_LOW, _HIGH = (127 - 40) << 4, (127 + 24) << 4  # 2**-40 to 2**24; the end bins take the rest
_END_BINS = np.int32(_LOW), np.int32(_HIGH - 1)  # of the dtype of the bins, which numpy clips three times faster
EDGES: list[float] = (np.arange(_LOW, _HIGH + 1, dtype=np.uint32) << _SHIFT).view(np.float32).tolist()
EDGES[0] = 0.0


@dataclass(eq=False)
class Counts:
    """Histograms of a lens in layers of one shape: `counts` `[L, bins]` of finite magnitudes, and `peak` `[L, H, D]`,
    per channel the finite number farthest from zero. `num_rows` rows of each layer are included. `_ranges` is what was
    computed from them; None since rows were added."""

    counts: npt.NDArray[np.int64]
    peak: npt.NDArray[np.float32]
    num_rows: int
    _ranges: list[Range] | None = None

    @property
    def ranges(self) -> list[Range]:
        """The colour range of every layer."""
        if self._ranges is None:
            self._ranges = ranges_of(self.counts, self.peak)
        return self._ranges

    def copy(self) -> Counts:
        return Counts(self.counts.copy(), self.peak.copy(), self.num_rows, self._ranges)

    def part(self, places: Sequence[int]) -> Counts:
        """The histograms of some of the layers; views where these are consecutive."""
        those = as_slice(places)
        ranges = None if self._ranges is None else [self._ranges[place] for place in places]
        return Counts(self.counts[those], self.peak[those], self.num_rows, ranges)

    def add(self, later: Counts) -> Counts:
        """Add the histograms of later rows of the same layers, in place."""
        self.counts += later.counts
        put_peak(self.peak, later.peak)
        self.num_rows += later.num_rows
        self._ranges = None
        return self


class LayerCount(Struct, frozen=True, eq=False):
    """The histogram of one layer, which is number `place` of several."""

    of: Counts
    place: int

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self.of.counts[self.place]
        return found

    @property
    def peak(self) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self.of.peak[self.place]
        return found

    @property
    def num_rows(self) -> int:
        return self.of.num_rows


def put_peak(peak: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> None:
    """Replace numbers in `peak` by those in `other` that are farther from zero."""
    np.copyto(peak, other, where=np.abs(other) > np.abs(peak))


def joined(layers: Sequence[LayerCount]) -> Counts:
    """The histograms of some layers, of equally many rows, as one: the object that has all of them if it has no others,
    else a copy."""
    of = layers[0].of
    if [each.of for each in layers] == [of] * len(of.counts) and [each.place for each in layers] == [
        *range(len(layers))
    ]:
        return of
    return Counts(np.stack([each.counts for each in layers]), np.stack([each.peak for each in layers]), of.num_rows)


def counted(numbers: torch.Tensor, positions: torch.Tensor | None, num_tokens: int) -> Counts:
    """Histograms of the rows `[L, H, T, D]` of layers, whose positions `[L, H, T]` are given only if they are not
    consecutive: then rows of later tokens than the first `num_tokens` are left out. Few numbers at a time, so that
    temporary tensors stay small beside a long cache."""
    num_layers, heads, num_rows, dims = numbers.shape
    if 0 < numbers.numel() <= COUNTED_AT_ONCE:
        return Counts(*_count(numbers, positions, num_tokens), num_rows)
    made = np.zeros((num_layers, _HIGH - _LOW), np.int64), np.zeros((num_layers, heads, dims), np.float32)
    layers_at_once = max(1, COUNTED_AT_ONCE // max(1, heads * num_rows * dims))
    rows_at_once = max(1, COUNTED_AT_ONCE // max(1, heads * dims))
    for layer in range(0, num_layers, layers_at_once):
        layers = slice(layer, layer + layers_at_once)
        for start in range(0, num_rows, rows_at_once):
            part = layers, slice(None), slice(start, start + rows_at_once)
            counts, peak = _count(numbers[part], None if positions is None else positions[part], num_tokens)
            made[0][layers] += counts
            put_peak(made[1][layers], peak)
    return Counts(*made, num_rows)


def _count(
    numbers: torch.Tensor, positions: torch.Tensor | None, num_tokens: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    values = numbers.float()
    if positions is not None:
        is_later = positions >= num_tokens
        if bool(is_later.any()):  # where positions are not consecutive, rows of later steps may be among them
            values = values.masked_fill(is_later[..., None], torch.nan)
    num_bins = _HIGH - _LOW + 1  # the last one has what is no number
    first = torch.arange(-_LOW, len(values) * num_bins - _LOW, num_bins, dtype=torch.int32, device=values.device)
    xp, sized = where_counted(values)
    # without the sign bit, the bits of floats are in the order of their magnitudes
    bins = sized.view(xp.int32) & _NO_SIGN
    bins >>= _SHIFT
    xp.clip(bins, *_END_BINS, out=bins)
    peak = farthest_from_zero(values, 2).cpu().numpy()
    if not np.isfinite(peak).all():
        bins[~xp.isfinite(sized)] = _HIGH
        peak = farthest_from_zero(values.masked_fill(~values.isfinite(), 0.0), 2).cpu().numpy()
    bins += where_counted(first)[1][:, None, None, None]
    found = on_host(xp.bincount(bins.ravel(), minlength=len(values) * num_bins))
    return found.reshape(-1, num_bins)[:, :-1], peak


def where_counted(numbers: torch.Tensor) -> tuple[Any, Any]:
    """The library that counts numbers, and these as it takes them: numpy on a CPU, where it counts five times faster
    and few numbers cost half as much, else torch. What is called of it has one name in both."""
    return (np, numbers.numpy()) if numbers.device.type == "cpu" else (torch, numbers)


def on_host(found: Any) -> Any:
    """What was counted, as a numpy array."""
    return found.cpu().numpy() if isinstance(found, torch.Tensor) else found


# ---- statistics of what is drawn of one head or state ---------------------------------------------------------------


HISTOGRAM_BINS = 64
ROBUST_QUANTILE = 0.995
MORE_KEPT = 256  # of the largest magnitudes, beside twice those beyond the limit


class HeadStatistics:
    """The statistics of the numbers of one head or state, a tensor of any shape.

    `counts` and `edges` are a histogram of the finite numbers between minus and plus the largest magnitude; `limit`
    is the 99.5th percentile of the magnitudes of those that are not zero, exactly; 1 where there are none: zeros, such
    as those of edited rows, would let it collapse. On a GPU the counting runs there, and what is copied to the
    host does not grow with the tensor. `add` reads no earlier numbers again.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._xp, numbers = where_counted(values.float().flatten())
        finite, (self.lowest, self.highest) = numbers, extent(numbers)
        if not (math.isfinite(self.lowest) and math.isfinite(self.highest)):
            finite = numbers[self._xp.isfinite(numbers)]
            self.lowest, self.highest = extent(finite)
        self.num_nan = int(self._xp.isnan(numbers).sum()) if len(finite) < len(numbers) else 0
        self.num_inf = len(numbers) - len(finite) - self.num_nan
        self._span = max(-self.lowest, self.highest) or 1.0
        self.edges = np.linspace(-self._span, self._span, HISTOGRAM_BINS + 1).astype(np.float32)
        self.counts = self._histogram(finite)
        magnitudes = abs(finite)
        self._num_sized = int(self._xp.count_nonzero(magnitudes))
        self._largest = largest_of(magnitudes, min(self._num_sized, 2 * num_beyond(self._num_sized) + MORE_KEPT))

    def _histogram(self, finite: Any) -> Ints:
        xp = self._xp
        places = xp.asarray(finite, dtype=xp.float64)
        places += self._span
        places *= HISTOGRAM_BINS / (2 * self._span)
        found: Ints = on_host(xp.bincount(xp.asarray(places, dtype=xp.int64), minlength=HISTOGRAM_BINS + 1))
        found[-2] += found[-1]  # the last bin has its upper edge
        return found[:-1]

    @property
    def limit(self) -> float:
        return float(self._largest[-num_beyond(self._num_sized)]) if self._num_sized else 1.0

    def add(self, values: torch.Tensor) -> bool:
        """Add more numbers. False, and nothing is added, where all must be counted again: some are beyond the range of
        the histogram or not finite, or more are beyond the limit than were kept."""
        _, numbers = where_counted(values.float().flatten())
        if not len(numbers):
            return True
        low, high = extent(numbers)
        magnitudes = abs(numbers)
        num_sized = self._num_sized + int(self._xp.count_nonzero(magnitudes))
        is_inside = -self._span <= low and high <= self._span  # no NaN is
        if not self._num_sized or not is_inside or num_beyond(num_sized) > len(self._largest):
            return False
        self.lowest, self.highest, self._num_sized = min(self.lowest, low), max(self.highest, high), num_sized
        self.counts = self.counts + self._histogram(numbers)
        self._largest = largest_of(self._xp.concatenate([self._largest, magnitudes]), len(self._largest))
        return True


def extent(numbers: Any) -> tuple[float, float]:
    """The smallest and the largest of some numbers, 0 where there are none; NaN if any is."""
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)


def largest_of(numbers: Any, count: int) -> Any:
    """The `count` largest numbers, ascending."""
    if isinstance(numbers, torch.Tensor):
        return numbers.topk(count).values.flip(0)
    first = len(numbers) - count
    return np.sort(np.partition(numbers, first)[first:] if 0 < first < len(numbers) else numbers[first:])


def num_beyond(count: int) -> int:
    """How many of so many magnitudes are at the limit or beyond it."""
    return count - min(count - 1, int(ROBUST_QUANTILE * count))
