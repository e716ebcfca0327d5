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

Place = tuple[str, int]  # a lens and a layer


# ---- colour ranges --------------------------------------------------------------------------------------------------


QUANTILE = 0.995
SHARES = np.array([[QUANTILE], [0.5]])
# Limit of the colour range in medians. In small layers one outlier channel, 1 / (H_kv * D) of the numbers, is more than
# the quantile leaves out, and would decide the colours of all others. (Normal numbers: the quantile is 4.2 medians.) A
# lens with one number a token has none: most attention weights are tiny, and the others are what one looks for.
MEDIANS = 8.0


def magnitudes_of(counts: Sequence[LayerCount]) -> Magnitudes:
    """The colour ranges of some layers, for the window."""
    return magnitudes_from(ranges_of(counts))


def magnitudes_from(ranges: npt.ArrayLike) -> Magnitudes:
    """Colour limit, largest magnitude and share beyond the limit of some layers `[L, 3]`, for the window."""
    table = np.array(ranges, np.float32).reshape(-1, 3)
    return Magnitudes(*map(read_only_floats, np.ascontiguousarray(table.T)))


def ranges_of(layers: Sequence[LayerCount]) -> npt.NDArray[np.float64]:
    """Limit, largest magnitude and share beyond the limit of every layer, `[L, 3]`. Those that are not cached are
    computed all at once: for a few layers the number of operations costs more than the numbers."""
    counts = list(dict.fromkeys([count.of for count in layers]))
    if todo := [each for each in counts if each.ranges is None]:
        _compute_ranges(todo)
    starts = dict(zip(counts, itertools.accumulate([len(each.counts) for each in counts], initial=0), strict=False))
    found: npt.NDArray[np.float64] = np.concatenate([np.empty((0, 3)), *[each.ranges for each in counts]])
    return found[[starts[count.of] + count.place for count in layers]]


def _compute_ranges(todo: Sequence[Counts]) -> None:
    stacked = todo[0].counts if len(todo) == 1 else np.concatenate([each.counts for each in todo])  # [L, bins]
    used = np.maximum.reduce(stacked).nonzero()[0]  # some two hundred of a thousand bins, beside that of zeros
    used = used[1:] if used.size and not used[0] else used
    start, stop = (int(used[0]), int(used[-1]) + 1) if used.size else (1, 2)
    sized, edges, layers = stacked[:, start:stop], EDGES[start : stop + 1], np.arange(len(stacked))
    running = np.zeros(sized.size + 1)  # of one layer behind the other
    running[1:] = sized.ravel().cumsum()
    firsts = layers * (stop - start)
    before, after = running[firsts], running[firsts + (stop - start)]
    largest = np.concatenate([np.abs(each.peak).max((1, 2), initial=0) for each in todo]).astype(np.float64)

    # the magnitude below which a share of the numbers is, interpolated within a bin; what is rounded does not depend on
    # the layers before
    below = SHARES * (after - before)
    places = np.maximum(running.searchsorted(before + np.ceil(below)) - 1, firsts)
    inside, bins = running[places + 1] - running[places], places - firsts
    low = edges[bins]
    found = low + (below - (running[places] - before)) / np.maximum(inside, 1) * (edges[bins + 1] - low)
    most, median = np.minimum(found, largest)
    has_channels = [each.peak.shape[2] > 1 for each in todo for _ in each.counts]
    limit = np.minimum(most, np.where((median > 0) & has_channels, MEDIANS * median, most))

    # the share of the numbers, and zeros, whose magnitude is larger than the limit
    bins = np.minimum(np.maximum(edges.searchsorted(limit, "right") - 1, 0), stop - start - 1)
    low, high, places = edges[bins], edges[bins + 1], firsts + bins + 1
    beyond = after - running[places] + (running[places] - running[places - 1]) * (high - limit) / (high - low)
    table = np.empty((len(stacked), 3))
    table[:, 0], table[:, 1] = limit, largest
    table[:, 2] = np.where(limit < largest, beyond / np.maximum(after - before + stacked[:, 0], 1), 0.0)
    first = 0
    for each in todo:
        each.ranges, first = table[first : first + len(each.counts)], first + len(each.counts)


# ---- histograms that are kept of the rows of one owner --------------------------------------------------------------


BLOCK = 128  # rows
MOST_BLOCKS = 64  # of one layer: beyond it, blocks become twice as long


class Blocks:
    """The histograms of everything that is shown of the rows of one owner."""

    def __init__(self) -> None:
        self._alike: dict[tuple[Place, ...], CountedLayers] = {}
        self._shown: tuple[object, dict[Place, LayerCount]] = None, {}  # of which step, and all rows of then

    def of(self, lens: Lens, source: Source, held: Mapping[int, Held]) -> dict[int, LayerCount]:
        """The histograms of layers that hold these rows."""
        return self._counts(source, {lens.name: held})[lens.name]

    def _counts(self, source: Source, held: Mapping[str, Mapping[int, Held]]) -> dict[str, dict[int, LayerCount]]:
        """The histograms of layers that hold these rows, by lens."""
        if self._shown[0] != source.stamp:
            self._shown = source.stamp, {}
        shown, alike = self._shown[1], dict[Any, dict[str, dict[int, Held]]]()
        for name in sorted(held):
            part, is_one = LENSES[name].part, LENSES[name].values == 1
            for layer, rows in held[name].items():
                final = 0 if part is None else source.num_final(layer, part)
                form = final, rows.form, 1 if is_one else rows.dim(part or "keys")
                alike.setdefault(form, {}).setdefault(name, {})[layer] = rows
        for (num_final, *_), group in alike.items():
            places = tuple([(name, layer) for name, layers in group.items() for layer in layers])
            if not shown.keys() >= set(places):
                known = self._alike.get(places) or CountedLayers.of(places, self._alike)
                counts = known.count(source, group, num_final)
                shown.update({place: LayerCount(counts, number) for number, place in enumerate(places)})
                if known.newest is not None:
                    self._alike[places] = known
        return {name: {layer: shown[name, layer] for layer in layers} for name, layers in held.items()}

    def magnitudes(self, lenses: Sequence[Lens], source: Source, held: Mapping[int, Held]) -> list[Magnitudes | None]:
        """The colour ranges of layers that hold these rows, through each lens; None if there are none. Those that a
        file stores are those of all rows, even if an earlier step is shown."""
        of_file = {lens.name: source.ranges(held, lens.name) if lens.name == lens.part else {} for lens in lenses}
        open_ones = {
            lens.name: {layer: rows for layer, rows in held.items() if layer not in of_file[lens.name]}
            for lens in lenses
            if lens.is_of_every_head
        }
        counts = self._counts(source, open_ones)
        computed = ranges_of([count for of_lens in counts.values() for count in of_lens.values()])
        found, start = list[Magnitudes | None](), 0
        for lens in lenses:
            of_lens, stored = counts.get(lens.name, {}), of_file[lens.name]
            ranges, start = computed[start : start + len(of_lens)], start + len(of_lens)
            if stored:
                every = stored | dict(zip(of_lens, ranges, strict=True))
                ranges = np.array([every[layer] for layer in held])
            found.append(magnitudes_from(ranges) if len(ranges) else None)
        return found


@dataclass(eq=False)
class CountedLayers:
    """Layers that are counted together, through one lens or several, as they hold rows of one form; and the histograms
    of their first rows, which no later step overwrites: after each block, and of all that were counted (`newest`, the
    only one that rows are added to)."""

    block: int = field(default_factory=lambda: BLOCK)
    after: list[Counts] = field(default_factory=list)
    newest: Counts | None = None

    @classmethod
    def of(cls, places: Sequence[Place], known: Mapping[tuple[Place, ...], CountedLayers]) -> CountedLayers:
        """With the histograms that are known of these layers, if they are among others that were counted together."""
        for others, alike in known.items():
            if set(others).issuperset(places) and alike.newest is not None:
                part = as_slice([others.index(place) for place in places])
                return cls(alike.block, [each.part(part) for each in alike.after], alike.newest.part(part).copy())
        return cls()

    def count(self, source: Source, held: Mapping[str, Mapping[int, Held]], num_final: int) -> Counts:
        """The histograms of all rows, of which the first `num_final` are final; those that are not counted yet are
        read."""
        final, rest = self._known(num_final), None
        lens, of_lens = next(iter(held.items()))
        layer, one = next(iter(of_lens.items()))
        start = one.first if final is None else final.num_rows
        spans: list[range | None] = [None]
        if one.positions is None:
            at_once = max(1, rows_at_once(source, LENSES[lens], layer) // sum(map(len, held.values())))
            spans = [range(n, min(one.stop, n + at_once)) for n in range(start, one.stop, at_once)]
            spans = spans or ([range(start, start)] if final is None else [])
        for span in spans:
            rows = _read(source, held, span)
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


def _read(source: Source, held: Mapping[str, Mapping[int, Held]], span: range | None) -> list[RowsOfLayers]:
    """These rows of layers, through several lenses; places are those among all of them."""
    found: list[RowsOfLayers] = []
    first = 0
    for lens, of_lens in held.items():
        for rows in read_all(source, LENSES[lens], of_lens, span):
            found.append(replace(rows, places=[first + place for place in rows.places]) if first else rows)
        first += len(of_lens)
    return found


def counted_together(rows: Sequence[RowsOfLayers], part: slice, num_tokens: int) -> Counts:
    """The histograms of some of the rows that were read, in the order of their places; few numbers as one tensor."""
    numbers = [each.numbers[:, :, part] for each in rows]
    positions = [None if each.positions is None else each.positions[:, :, part] for each in rows]
    is_alike = len({(each.shape[1:], each.dtype, each.device) for each in numbers}) == 1 and positions[0] is None
    if is_alike and sum([each.numel() for each in numbers]) <= COUNTED_AT_ONCE:
        numbers, positions = [torch.cat(numbers)], [None]
    counts = [counted(each, at, num_tokens) for each, at in zip(numbers, positions, strict=True)]
    places = [place for each in rows for place in each.places]
    if len(counts) == 1 and places == sorted(places):
        return counts[0]
    found = [LayerCount(each, number) for each in counts for number in range(len(each.counts))]
    return joined([found[places.index(place)] for place in range(len(places))])


# ---- counting: sixteen bins to the octave, computed from the bits of float32 ----------------------------------------


COUNTED_AT_ONCE = 1 << 17  # numbers
_SHIFT = 19  # bits dropped of the 23 of a mantissa, so that four are kept
_NO_SIGN = (1 << 31) - 1
_LOW, _HIGH = (127 - 40) << 4, (127 + 24) << 4  # 2**-40 to 2**24; the end bins take the rest
EDGES = (np.arange(_LOW, _HIGH + 1, dtype=np.uint32) << _SHIFT).view(np.float32).astype(np.float64)
EDGES[0] = 0.0


@dataclass(eq=False)
class Counts:
    """Histograms of a lens in layers of one shape: `counts` `[L, bins]` of finite magnitudes, and `peak` `[L, H, D]`,
    per channel the finite number farthest from zero. `num_rows` rows of each layer are included. `ranges` `[L, 3]`
    caches what was computed from them (colour limit, largest magnitude, share beyond the limit); None since rows were
    added."""

    counts: npt.NDArray[np.int64]
    peak: npt.NDArray[np.float32]
    num_rows: int
    ranges: npt.NDArray[np.float64] | None = None

    def copy(self) -> Counts:
        return Counts(self.counts.copy(), self.peak.copy(), self.num_rows, self.ranges)

    def part(self, places: slice | list[int]) -> Counts:
        """The histograms of some of the layers; views where these are consecutive."""
        return Counts(self.counts[places], self.peak[places], self.num_rows)

    def add(self, later: Counts) -> Counts:
        """Add the histograms of later rows of the same layers, in place."""
        self.counts += later.counts
        put_peak(self.peak, later.peak)
        self.num_rows += later.num_rows
        self.ranges = None
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
    xp.clip(bins, _LOW, _HIGH - 1, out=bins)
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
        bins = xp.asarray(places, dtype=xp.int64)
        xp.clip(bins, 0, HISTOGRAM_BINS - 1, out=bins)  # the last bin has its upper edge
        found: Ints = on_host(xp.bincount(bins, minlength=HISTOGRAM_BINS))
        return found

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
