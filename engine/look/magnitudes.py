"""The range of the numbers of each layer (for colour scales), and the largest of them.

Magnitudes are counted on a logarithmic scale, sixteen bins to the octave. Zeros, such as those of rows that were zeroed
by hand, are counted and decide no range: it would collapse, and everything else be drawn as beyond it.

Rows that no later step overwrites are counted once, as they come, in blocks whose histograms are kept: that of an
earlier step is the last block before it and the rows since. Other rows, such as those that a codec has still to
quantise, are counted again for every picture. Nothing is ever subtracted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from engine.look.lenses import held_of, read, rows_at_once
from engine.look.magnitude_counts import EDGES, LayerCount, LayerRows, counted
from engine.look.source import Held, Source
from engine.spec.lenses import Lens
from engine.wire.records import read_only_floats
from engine.wire.slices import Magnitudes

QUANTILE = 0.995
# Limit of the colour range in medians. In small layers one outlier channel, 1 / (H_kv * D) of the numbers, is more than
# the quantile leaves out, and would decide the colours of all others. (Normal numbers: the quantile is 4.2 medians.)
MEDIANS = 8.0

BLOCK = 256  # rows
MOST_BLOCKS = 64  # of one layer: beyond it, blocks become twice as long
READ_TOGETHER = 1 << 20  # most numbers of several layers that are read at once from a file


def magnitudes_of(counts: Sequence[LayerCount]) -> Magnitudes:
    """The colour ranges of some layers, for the window."""
    compute_ranges(counts)
    return magnitudes_from([count.ranges for count in counts if count.ranges is not None])


def magnitudes_from(ranges: Sequence[tuple[float, float, float]]) -> Magnitudes:
    """Colour limit, largest magnitude and share beyond the limit of some layers, for the window."""
    table = np.array(ranges, np.float32).reshape(len(ranges), 3)
    return Magnitudes(*map(read_only_floats, np.ascontiguousarray(table.T)))


def compute_ranges(counts: Iterable[LayerCount]) -> None:
    """Compute limit, largest magnitude and share beyond the limit of every layer that has none cached. All at once: for
    a few layers the number of operations costs more than the numbers."""
    open_counts = [count for count in counts if count.ranges is None]
    if not open_counts:
        return
    stacked = np.array([count.counts for count in open_counts])  # [L, bins]
    used = np.flatnonzero(stacked.any(0))  # some two hundred of a thousand bins
    part = slice(int(used[0]), int(used[-1]) + 1) if used.size else slice(0, 1)
    stacked, edges = stacked[:, part], EDGES[part.start : part.stop + 1]
    sized = without_zeros(stacked) if part.start == 0 else stacked
    largest = _largest([count.peak for count in open_counts])
    most, median = np.minimum(_quantiles(sized, sized.cumsum(1), edges, (QUANTILE, 0.5)), largest)
    limit = np.where(median > 0, np.minimum(most, MEDIANS * median), most)
    clipped = np.where(limit < largest, _share_beyond(stacked, stacked.cumsum(1), edges, limit), 0.0)
    for count, *ranges in zip(open_counts, limit.tolist(), largest.tolist(), clipped.tolist(), strict=True):
        count.ranges = (ranges[0], ranges[1], ranges[2])


def without_zeros(stacked: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Histograms `[L, bins]` without their first bin, which has the zeros, wherever other bins have numbers."""
    sized = stacked.copy()
    sized[stacked[:, 1:].any(1), 0] = 0
    return sized


def _largest(peaks: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float64]:
    """`[L]`: the largest finite magnitude of each layer."""
    if len({peak.shape for peak in peaks}) == 1:
        flat = np.array(peaks).reshape(len(peaks), -1)
        found: npt.NDArray[np.float64] = np.maximum(flat.max(1, initial=0), -flat.min(1, initial=0)).astype(np.float64)
        return found
    return np.array([np.abs(peak).max(initial=0.0) for peak in peaks], np.float64)


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
    counted. Histograms are only added to."""

    block: int = field(default_factory=lambda: BLOCK)
    after: list[LayerCount] = field(default_factory=list)
    newest: LayerCount | None = None
    shown: tuple[object, LayerCount] | None = None  # the last picture's: stamp of its source, and all rows

    def up_to(self, num_rows: int) -> LayerCount | None:
        """A copy of the longest known histogram of at most the first `num_rows` rows; None if none is known."""
        if self.newest is not None and self.newest.num_rows <= num_rows:
            return self.newest.copy()
        number = min(num_rows // self.block, len(self.after))
        return self.after[number - 1].copy() if number else None

    def note(self, count: LayerCount) -> None:
        """Keep the histogram of the first final rows, which ends with a block or with all of them."""
        if count.num_rows == (len(self.after) + 1) * self.block:
            self.after.append(count.copy())
            if len(self.after) > MOST_BLOCKS:
                self.after, self.block = self.after[1::2], 2 * self.block
        if self.newest is None or self.newest.num_rows < count.num_rows:
            self.newest = count.copy()


@dataclass(eq=False)
class ToCount:
    """The rows `start … stop - 1` of a layer that are to be added to `count`; the first `num_final` are final."""

    layer: int
    blocks: BlocksOfLayer
    held: Held
    num_final: int
    start: int
    stop: int
    count: LayerCount | None

    def pieces(self, rows: LayerRows, first: int) -> Iterator[LayerRows]:
        """Rows that were read from position `first` on, cut where blocks or the final rows end."""
        layer, numbers, places = rows
        stop = first + numbers.shape[1]
        ends = [*range((first // self.blocks.block + 1) * self.blocks.block, self.num_final, self.blocks.block)]
        cuts = [first, *(end for end in (*ends, self.num_final) if first < end < stop), stop]
        for start, end in itertools.pairwise(cuts):
            yield layer, numbers[:, start - first : end - first], places

    def add(self, count: LayerCount) -> None:
        self.count = count if self.count is None else self.count.add(count)
        if 0 < self.count.num_rows <= self.num_final:
            self.blocks.note(self.count)


class Blocks:
    """The histograms of everything that is shown of the rows of one owner."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], BlocksOfLayer] = {}

    @torch.inference_mode()
    def of(self, lens: Lens, source: Source, layers: Sequence[int]) -> dict[int, LayerCount]:
        """The histograms of these layers, of those that hold rows."""
        found: dict[int, LayerCount] = {}
        todo: list[ToCount] = []
        stamp = source.stamp
        for layer in layers:
            blocks = self._of.setdefault((lens.name, layer), BlocksOfLayer())
            if blocks.shown is not None and blocks.shown[0] == stamp:
                found[layer] = blocks.shown[1]
            elif (held := held_of(source, lens, layer)) is not None:
                final = 0 if lens.part is None else source.num_final(layer, lens.part)
                count = blocks.up_to(final)
                start = held.first if count is None else count.num_rows
                todo.append(ToCount(layer, blocks, held, final, start, held.stop, count))
        for group in groups(source, lens, todo):
            _count(source, lens, group)
        for each in todo:
            if each.count is not None:
                each.blocks.shown = stamp, each.count
                found[each.layer] = each.count
        return {layer: found[layer] for layer in layers if layer in found}

    def magnitudes(self, lens: Lens, source: Source, layers: Sequence[int]) -> Magnitudes | None:
        """The colour ranges of these layers, all of which hold rows; None if there are none. Those that a file stores
        are those of all rows, even if an earlier step is shown."""
        if not lens.is_of_every_head:
            return None
        stored = source.stored if lens.name == lens.part else None
        ranges = {layer: stored.ranges(layer, lens.name) for layer in layers} if stored is not None else {}
        counts = self.of(lens, source, [layer for layer in layers if ranges.get(layer) is None])
        compute_ranges(counts.values())
        told = [ranges.get(layer) or counts[layer].ranges for layer in layers]
        return magnitudes_from([one for one in told if one is not None]) if told else None


def groups(source: Source, lens: Lens, todo: Sequence[ToCount]) -> Iterator[list[ToCount]]:
    """Layers whose rows are read and counted together: all of them, or of a file as many as are small."""
    group, size = list[ToCount](), 0
    for each in todo:
        rows = each.stop - each.start if each.held.positions is None else each.held.positions.shape[1]
        numbers = 0 if source.stored is None else rows * each.held.num_heads * each.held.dim(lens.part or "keys")
        if group and size + numbers > READ_TOGETHER:
            yield group
            group, size = [], 0
        group.append(each)
        size += numbers
    if group:
        yield group


def _count(source: Source, lens: Lens, group: Sequence[ToCount]) -> None:
    """Read the rows of some layers and add them to their histograms, pieces of equal shape of all layers together."""
    waiting = list(group)
    while waiting:
        pieces: list[list[LayerRows]] = []
        for each in [*waiting]:
            at_once = rows_at_once(source, lens, each.layer)
            is_run = each.held.positions is None
            span = range(each.start, min(each.stop, each.start + at_once)) if is_run else None
            if (span is None or span or each.count is None) and (
                rows := read(source, lens, each.layer, span)
            ) is not None:
                one = each.layer, rows.numbers, rows.positions
                pieces.append(list(each.pieces(one, rows.first)) if is_run else [one])
            each.start = each.stop if span is None else span.stop
            if each.start >= each.stop:
                waiting.remove(each)
        by_layer = {each.layer: each for each in group}
        for number in range(max(map(len, pieces), default=0)):
            for layer, count in counted([piece[number] for piece in pieces if number < len(piece)], source.num_tokens):
                by_layer[layer].add(count)
