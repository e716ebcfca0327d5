"""The range of the numbers of each layer (for colour scales), and the largest of them.

Magnitudes are counted on a logarithmic scale, sixteen bins to the octave. Zeros, such as those of rows that were zeroed
by hand, are counted and decide no range: it would collapse, and everything else be drawn as beyond it.

Rows that no later step overwrites are counted once, as they come, in blocks whose histograms are kept: that of an
earlier step is the last block before it and the rows since. Other rows, such as those that a codec has still to
quantise, are counted again for every picture. Nothing is ever subtracted.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from engine.look.lenses import RowsOfLayers, read_all, rows_at_once
from engine.look.magnitude_counts import COUNTED_AT_ONCE, EDGES, Counts, LayerCount, counted, joined
from engine.look.source import Held, Source
from engine.spec.lenses import LENSES, Lens
from engine.wire.pictures import Magnitudes
from engine.wire.records import read_only_floats

QUANTILE = 0.995
# Limit of the colour range in medians. In small layers one outlier channel, 1 / (H_kv * D) of the numbers, is more than
# the quantile leaves out, and would decide the colours of all others. (Normal numbers: the quantile is 4.2 medians.)
MEDIANS = 8.0

Ranges = Sequence[float] | npt.NDArray[np.float64]  # colour limit, largest magnitude, share beyond the limit

BLOCK = 128  # rows
MOST_BLOCKS = 64  # of one layer: beyond it, blocks become twice as long


def magnitudes_of(counts: Sequence[LayerCount]) -> Magnitudes:
    """The colour ranges of some layers, for the window."""
    return magnitudes_from(ranges_of(counts))


def magnitudes_from(ranges: Sequence[Ranges]) -> Magnitudes:
    """Colour limit, largest magnitude and share beyond the limit of some layers, for the window."""
    table = np.array(ranges, np.float32).reshape(len(ranges), 3)
    return Magnitudes(*map(read_only_floats, np.ascontiguousarray(table.T)))


def ranges_of(layers: Sequence[LayerCount]) -> list[Ranges]:
    """Limit, largest magnitude and share beyond the limit of every layer. Those that are not cached are computed all at
    once: for a few layers the number of operations costs more than the numbers."""
    if todo := list({id(count.of): count.of for count in layers if count.of.ranges is None}.values()):
        _compute_ranges(todo)
    return [count.of.ranges[count.place] for count in layers if count.of.ranges is not None]


def _compute_ranges(todo: Sequence[Counts]) -> None:
    stacked = np.concatenate([each.counts for each in todo])  # [L, bins]
    used = np.flatnonzero(stacked.any(0))  # some two hundred of a thousand bins
    part = slice(int(used[0]), int(used[-1]) + 1) if used.size else slice(0, 1)
    stacked, edges = stacked[:, part], EDGES[part.start : part.stop + 1]
    running = stacked.cumsum(1)
    sized = without_zeros(stacked) if part.start == 0 else stacked
    largest = np.concatenate([np.abs(each.peak).max((1, 2), initial=0) for each in todo]).astype(np.float64)
    most, median = np.minimum(
        _quantiles(sized, running if sized is stacked else sized.cumsum(1), edges, (QUANTILE, 0.5)), largest
    )
    limit = np.where(median > 0, np.minimum(most, MEDIANS * median), most)
    clipped = np.where(limit < largest, _share_beyond(stacked, running, edges, limit), 0.0)
    table, start = np.stack([limit, largest, clipped], 1), 0
    for each in todo:
        each.ranges, start = table[start : start + len(each.counts)], start + len(each.counts)


def without_zeros(stacked: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Histograms `[L, bins]` without their first bin, which has the zeros, wherever other bins have numbers."""
    sized = stacked.copy()
    sized[stacked[:, 1:].any(1), 0] = 0
    return sized


def _quantiles(
    counts: npt.NDArray[np.int64],
    running: npt.NDArray[np.int64],
    edges: npt.NDArray[np.float64],
    shares: tuple[float, ...],
) -> npt.NDArray[np.float64]:
    """`[shares, L]`: the magnitude below which each share of the counted numbers is, interpolated within a bin."""
    target = np.multiply.outer(shares, running[:, -1])
    bins = np.minimum((running < target[..., None]).sum(2), counts.shape[1] - 1)
    layers = np.arange(len(counts))
    inside = counts[layers, bins]
    part = np.where(inside > 0, (target - running[layers, bins] + inside) / np.maximum(inside, 1), 0.0)
    found: npt.NDArray[np.float64] = edges[bins] + part * (edges[bins + 1] - edges[bins])
    return found


def _share_beyond(
    counts: npt.NDArray[np.int64],
    running: npt.NDArray[np.int64],
    edges: npt.NDArray[np.float64],
    limit: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """`[L]`: the share of the numbers whose magnitude is larger than the limit."""
    bins = (edges.searchsorted(limit, "right") - 1).clip(0, counts.shape[1] - 1)
    layers = np.arange(len(counts))
    after = running[:, -1] - running[layers, bins]
    rest = (edges[bins + 1] - limit) / (edges[bins + 1] - edges[bins])
    found: npt.NDArray[np.float64] = (after + counts[layers, bins] * rest) / np.maximum(running[:, -1], 1)
    return found


@dataclass(eq=False)
class BlocksOfLayer:
    """Histograms of the first rows of one layer, which no later step overwrites: after each block, and of all that were
    counted. Histograms are only added to, those of several layers at once."""

    block: int = field(default_factory=lambda: BLOCK)
    after: list[LayerCount] = field(default_factory=list)
    newest: LayerCount | None = None
    shown: tuple[object, LayerCount] | None = None  # the last picture's: stamp of its source, and all rows

    def up_to(self, num_rows: int) -> LayerCount | None:
        """The longest known histogram of at most the first `num_rows` rows; None if none is known."""
        if self.newest is not None and self.newest.of.num_rows <= num_rows:
            return self.newest
        number = min(num_rows // self.block, len(self.after))
        return self.after[number - 1] if number else None

    def note_block(self, count: LayerCount) -> None:
        """Keep the histogram of all rows up to the end of a block."""
        if count.num_rows == (len(self.after) + 1) * self.block:
            self.after.append(count)
            if len(self.after) > MOST_BLOCKS:
                self.after, self.block = self.after[1::2], 2 * self.block


@dataclass(eq=False)
class Alike:
    """Layers that are counted together, through one lens or several: they hold rows of one form, of which the first
    `num_final` are final; `known` are the histograms to which rows are added."""

    num_final: int
    held: dict[str, dict[int, Held]] = field(default_factory=dict)  # by lens and layer, in the order of `blocks`
    blocks: list[BlocksOfLayer] = field(default_factory=list)
    known: list[LayerCount] = field(default_factory=list)

    def count(self, source: Source) -> Counts:
        """The histograms of all rows, for which those are read that are not counted yet."""
        final, rest = self._counted(), None
        lens, held = next(iter(self.held.items()))
        layer, one = next(iter(held.items()))
        start = one.first if final is None else final.num_rows
        spans: list[range | None] = [None]
        if one.positions is None:
            at_once = max(1, rows_at_once(source, LENSES[lens], layer) // len(self.blocks))
            spans = [range(n, min(one.stop, n + at_once)) for n in range(start, one.stop, at_once)]
            spans = spans or ([range(start, start)] if final is None else [])
        for span in spans:
            rows = self._read(source, span)
            for part in self._cuts(rows[0].first, rows[0].numbers.shape[2]):
                piece, stop = counted_together(rows, part, source.num_tokens), rows[0].first + part.stop
                if part.start < part.stop and stop <= self.num_final:
                    final = piece if final is None else final.add(piece)
                    self._note(final)
                else:
                    rest = piece if rest is None else rest.add(piece)
        found = final if rest is None else rest if final is None else final.copy().add(rest)
        assert found is not None, "layers that hold rows"
        return found

    def _counted(self) -> Counts | None:
        """The histograms of rows that are counted, to which others may be added."""
        if not self.known:
            return None
        counts, is_newest = joined(self.known), self.known[0] is self.blocks[0].newest
        return counts if is_newest else counts.copy()

    def _read(self, source: Source, span: range | None) -> list[RowsOfLayers]:
        """These rows of all layers and lenses; places are those in `blocks`."""
        found: list[RowsOfLayers] = []
        first = 0
        for lens, held in self.held.items():
            for rows in read_all(source, LENSES[lens], held, span):
                found.append(replace(rows, places=[first + place for place in rows.places]) if first else rows)
            first += len(held)
        return found

    def _cuts(self, first: int, count: int) -> list[slice]:
        """So many rows from position `first` on, cut where blocks or the final rows end."""
        block, stop = self.blocks[0].block, first + count
        ends = [*range((first // block + 1) * block, self.num_final, block), self.num_final]
        cuts = [first, *[end for end in ends if first < end < stop], stop]
        return [slice(start - first, end - first) for start, end in itertools.pairwise(cuts)]

    def _note(self, final: Counts) -> None:
        """Keep the histograms of the first final rows, which end with a block or with all of them."""
        if final.num_rows == (len(self.blocks[0].after) + 1) * self.blocks[0].block:
            kept = final.copy()
            for number, blocks in enumerate(self.blocks):
                blocks.note_block(LayerCount(kept, number))
        for number, blocks in enumerate(self.blocks):
            if blocks.newest is None or blocks.newest.of.num_rows < final.num_rows:
                blocks.newest = LayerCount(final, number)


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


class Blocks:
    """The histograms of everything that is shown of the rows of one owner."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], BlocksOfLayer] = {}

    def of(self, lens: Lens, source: Source, held: Mapping[int, Held]) -> dict[int, LayerCount]:
        """The histograms of layers that hold these rows."""
        return self._counts(source, {lens.name: held})[lens.name]

    def _counts(self, source: Source, held: Mapping[str, Mapping[int, Held]]) -> dict[str, dict[int, LayerCount]]:
        """The histograms of layers that hold these rows, by lens."""
        alike: dict[object, Alike] = {}
        stamp, found = source.stamp, {name: dict[int, LayerCount]() for name in held}
        for name, layers in held.items():
            part, is_one = LENSES[name].part, LENSES[name].values == 1
            for layer, rows in layers.items():
                blocks = self._of.get((name, layer))
                if blocks is None:
                    blocks = self._of[name, layer] = BlocksOfLayer()
                if blocks.shown is not None and blocks.shown[0] == stamp:
                    found[name][layer] = blocks.shown[1]
                    continue
                final = 0 if part is None else source.num_final(layer, part)
                known = blocks.up_to(final)
                dim = 1 if is_one else rows.value_dim if part == "values" else rows.key_dim
                form = rows.form, dim, final, blocks.block, len(blocks.after), known and known.of.num_rows
                group = alike.get(form)
                if group is None:
                    group = alike[form] = Alike(final)
                group.held.setdefault(name, {})[layer] = rows
                group.blocks.append(blocks)
                group.known += [] if known is None else [known]
        for group in alike.values():
            counts, names = group.count(source), [(name, layer) for name in group.held for layer in group.held[name]]
            for number, (name, layer) in enumerate(names):
                found[name][layer] = one = LayerCount(counts, number)
                group.blocks[number].shown = stamp, one
        return {name: {layer: found[name][layer] for layer in layers} for name, layers in held.items()}

    def magnitudes(self, lenses: Sequence[Lens], source: Source, held: Mapping[int, Held]) -> list[Magnitudes | None]:
        """The colour ranges of layers that hold these rows, through each lens; None if there are none. Those that a
        file stores are those of all rows, even if an earlier step is shown."""
        told: dict[str, dict[int, Ranges]] = {}
        for lens in lenses if held else ():
            ranges = {layer: source.ranges(layer, lens.name) for layer in held if lens.name == lens.part}
            told[lens.name] = {layer: each for layer, each in ranges.items() if each is not None}
        open_ones = {name: {layer: held[layer] for layer in held if layer not in told[name]} for name in told}
        counts = self._counts(
            source, {name: of_lens for name, of_lens in open_ones.items() if LENSES[name].is_of_every_head}
        )
        computed = iter(ranges_of([count for of_lens in counts.values() for count in of_lens.values()]))
        for name, of_lens in counts.items():
            told[name] |= {layer: next(computed) for layer in of_lens}
        found = [told.get(lens.name, {}) for lens in lenses]
        return [magnitudes_from([ranges[layer] for layer in held]) if ranges else None for ranges in found]
