"""The range of the numbers of each layer (for colour scales), and the largest of them.

Magnitudes are counted on a logarithmic scale, sixteen bins to the octave. Zeros, such as those of rows that were zeroed
by hand, are counted and decide no range: it would collapse, and everything else be drawn as beyond it.

Rows that no later step overwrites are counted once, as they come. The histogram of an earlier step is made from the
nearest known one, in time that grows with the number of rows between the two. Other rows, such as those that a codec
has still to quantise, are counted again for every picture. Only rows that are counted are read, since the others may
have to be dequantised or gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.contract import HeldRows, Pair
from engine.geometry.dimensions import CacheGeometry
from engine.look.magnitude_counts import EDGES, LayerCount, StackedCounts, counted, counts_of_rows
from engine.look.rows_at import RowsAt, RowSource, chosen
from engine.spec.cache import CacheSpec
from engine.wire.arrays import read_only_floats
from engine.wire.requests import HeadRequest, TensorName, WallRequest
from engine.wire.slices import Magnitudes

if TYPE_CHECKING:
    from engine.cache.sequence_cache import SequenceCache
    from engine.look.drawn_wall import DrawnWall

QUANTILE = 0.995
# Limit of the colour range in medians. In small layers one outlier channel, 1 / (H_kv * D) of the numbers, is more than
# the quantile leaves out, and would decide the colours of all others. (Normal numbers: the quantile is 4.2 medians.)
MEDIANS = 8.0


def magnitudes_of(counts: Sequence[LayerCount]) -> Magnitudes:
    """The colour ranges of some layers, for the window."""
    compute_ranges(counts)
    ranges = np.array([count.ranges for count in counts], np.float32).reshape(len(counts), 3)
    return Magnitudes(*map(read_only_floats, np.ascontiguousarray(ranges.T)))


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


class RowMagnitudes:
    """The histograms of one sequence's cache, each computed when it is first needed, and extended as rows come; and
    the last wall `drawn` of it.

    To be discarded when counted rows may have been overwritten: after going back, or a failed step.
    """

    def __init__(self, cache: RowSource) -> None:
        self.cache = cache
        self.drawn: DrawnWall | None = None
        self._live: dict[tuple[TensorName, int], LayerCount] = {}
        self._other: dict[tuple[TensorName, int], tuple[object, LayerCount]] = {}
        self._earlier: dict[tuple[TensorName, int], LayerCount] = {}  # the last one of an earlier step
        self._stacked: dict[LayerCount, StackedCounts] = {}  # by the first of its histograms

    @torch.inference_mode()
    def of(
        self, tensor: TensorName, past: RowsAt, layers: Iterable[int], *, every_channel: bool = False
    ) -> dict[int, LayerCount]:
        """The histograms of the rows that these layers held at the time of `past`. The peaks of `every_channel` are
        right only where asked for; else the largest of all is."""
        found: dict[int, LayerCount] = {}
        num_final: dict[int, int] = {}  # of layers that have such rows
        # final rows that are in no histogram yet
        wanted: list[tuple[int, HeldRows, torch.Tensor, int]] = []
        # rows that a later step may overwrite, or has overwritten
        recounted: list[tuple[int, HeldRows, torch.Tensor, int]] = []
        stamp = past.stamp
        for layer in layers:
            other = self._other.get((tensor, layer))
            if other is not None and other[0] == stamp:
                found[layer] = other[1]
                continue
            final, live = past.num_final(layer, tensor), self._live.get((tensor, layer))
            known = 0 if live is None else live.num_rows
            if final:
                num_final[layer] = final
            rows = past.newest(layer, min(known, final)) if final else past.rows(layer)
            if rows is None:
                continue
            numbers = chosen(rows, tensor)
            if not final:
                if rows.first and past.num_tokens >= past.cache.num_tokens:
                    self._live.pop((tensor, layer), None)  # counted rows have left the sliding window
                recounted.append((layer, rows, numbers, 0))
                continue
            if known < final:
                wanted.append((layer, rows, numbers[:, :, : final - known], 0))
            if rows.stop > final:
                recounted.append((layer, rows, numbers, final - rows.first))
        for layer, count in counted(wanted, past.num_tokens):
            live = self._live.setdefault((tensor, layer), count)
            if live is not count:
                live.add(count)
        of_final = self._of_final(tensor, past, num_final)
        rest = dict(counted(recounted, past.num_tokens))
        for layer, count in rest.items():
            found[layer] = of_final[layer].with_later(count) if layer in of_final else count
            self._other[tensor, layer] = (stamp, found[layer])
        found = {**of_final, **found}
        for layer, count in found.items():
            if count.needs_search(every_channel=every_channel) and (held := past.rows(layer)) is not None:
                count.search(chosen(held, tensor)[0, :, : count.num_rows])
        return found

    def _of_final(self, tensor: TensorName, past: RowsAt, num_final: Mapping[int, int]) -> dict[int, LayerCount]:
        """The histograms of the first rows of some layers, as many as `num_final` says, which later steps do not
        change. Where more are counted, it is made from the nearest known one: only rows between are counted."""
        nearest = {layer: self._nearest(tensor, layer, count) for layer, count in num_final.items()}
        found = {layer: known for layer, known in nearest.items() if known is not None}
        between: list[tuple[int, HeldRows, torch.Tensor, int]] = []
        for layer, num_rows in num_final.items():
            start, stop = sorted((num_rows, found[layer].num_rows if layer in found else 0))
            if start < stop and (stored := past.stored(layer, start)) is not None:
                between.append((layer, stored, chosen(stored, tensor)[:, :, : stop - start], 0))
        for layer, count in counted(between, past.num_tokens):
            num_rows, known = num_final[layer], found.get(layer, count)
            if known.num_rows > num_rows:
                found[layer] = known.without_later(count)
            else:
                found[layer] = count if known is count else known.with_later(count)
            self._earlier[tensor, layer] = found[layer]
        return found

    def _nearest(self, tensor: TensorName, layer: int, num_rows: int) -> LayerCount | None:
        """The known histogram from which one of the first `num_rows` rows is made by counting the fewest rows; None if
        counting all of them is less."""
        known = (self._live.get((tensor, layer)), self._earlier.get((tensor, layer)))
        nearest = min(
            (each for each in known if each is not None), key=lambda each: abs(each.num_rows - num_rows), default=None
        )
        return nearest if nearest is not None and abs(nearest.num_rows - num_rows) < num_rows else None

    @torch.inference_mode()
    def follow(
        self, rows: Mapping[int, Pair], first: int, tensors: Sequence[TensorName]
    ) -> dict[TensorName, dict[int, LayerCount]] | None:
        """The histograms of these layers with their newest rows added: K and V `[H_kv, T, D]` from position `first` on.
        None where earlier rows were never counted."""
        found: dict[TensorName, dict[int, LayerCount]] = {tensor: {} for tensor in tensors}
        # by shape, dtype and number of rows already counted
        forms: dict[object, tuple[list[LayerCount], list[torch.Tensor]]] = {}
        for tensor in tensors:
            for layer, pair in rows.items():
                count, held = self._live.get((tensor, layer)), of_pair(pair, tensor)
                if count is None or count.num_rows < first:
                    return None
                found[tensor][layer] = count
                shape = held.shape
                if count.num_rows - first < shape[1]:
                    form = forms.setdefault((shape, held.dtype, count.num_rows), ([], []))
                    form[0].append(count)
                    form[1].append(held)
        for parts, tensors_now in forms.values():
            num_known = parts[0].num_rows - first
            counts, peak = counts_of_rows(tensors_now, num_known)
            num_new = tensors_now[0].shape[1] - num_known
            if len(parts) == 1:  # added in place, as the wall's `StackedCounts` may contain this histogram too
                parts[0].add(LayerCount(counts[0], peak[0], num_new))
                continue
            stacked = self._stacked.get(parts[0])
            if stacked is None or not stacked.holds(parts):
                stacked = self._stacked[parts[0]] = StackedCounts(parts)
            stacked.add(counts, peak, num_new)
        return found


class SessionMagnitudes:
    """The histograms of all sequences of a session, and the colour ranges of its pictures."""

    def __init__(self) -> None:
        self._of: dict[int, RowMagnitudes] = {}

    def forget(self, seq_id: int) -> None:
        """Discard those of a sequence that is removed, or whose counted rows may have been overwritten."""
        self._of.pop(seq_id, None)

    def forget_all(self) -> None:
        """Discard all, when other sequences become the present ones."""
        self._of.clear()

    def counts(
        self, seq_id: int, tensor: TensorName, past: RowsAt, layers: Iterable[int], *, every_channel: bool = False
    ) -> dict[int, LayerCount]:
        """The histograms by layer; if the sequence has another cache than the last time, they are computed again."""
        return self.of_cache(seq_id, past.cache).of(tensor, past, layers, every_channel=every_channel)

    def of_cache(self, seq_id: int, cache: RowSource) -> RowMagnitudes:
        """The histograms of a sequence in this cache; those of any other cache are discarded."""
        known = self._of.get(seq_id)
        if known is None or known.cache is not cache:
            known = self._of[seq_id] = RowMagnitudes(cache)
        return known

    def follow(
        self, seq_id: int, cache: SequenceCache, rows: Mapping[int, Pair], first: int, tensors: Sequence[TensorName]
    ) -> dict[TensorName, dict[int, LayerCount]] | None:
        """`RowMagnitudes.follow` for a sequence; None where this cache was never counted."""
        known = self._of.get(seq_id)
        return known.follow(rows, first, tensors) if known is not None and known.cache is cache else None

    def of_all(
        self, seq_id: int, past: RowsAt, geometry: CacheGeometry
    ) -> tuple[dict[int, LayerCount], dict[int, LayerCount]]:
        """The histograms of keys and of values of every layer that holds rows, with the peaks of every channel."""
        layers = [layer.index for layer in geometry.attention_layers]
        keys = self.counts(seq_id, "keys", past, layers, every_channel=True)
        return keys, self.counts(seq_id, "values", past, layers, every_channel=True)

    def of_wall(
        self, request: WallRequest, past: RowsAt, geometry: CacheGeometry
    ) -> tuple[Magnitudes | None, Magnitudes | None]:
        """The ranges of the tensor that is drawn, and of the other one where that is counted."""
        if request.max_columns * request.max_rows <= 1:  # asked for the sake of who holds which token
            return None, None
        layers = [layer.index for layer in geometry.attention_layers]
        tensors = tensors_counted(request, past.cache.spec)
        found = [self.counts(request.seq_id, tensor, past, layers) for tensor in tensors]
        ranges = [magnitudes_of([counts[layer] for layer in layers if layer in counts]) for counts in found]
        return ranges[0], ranges[1] if len(ranges) > 1 else None

    def of_head(self, request: HeadRequest, past: RowsAt) -> Magnitudes | None:
        """The range of a head's layer; None where it holds no rows."""
        found = self.counts(request.seq_id, request.tensor, past, [request.layer])
        return magnitudes_of(list(found.values())) if found else None


def tensors_counted(request: WallRequest, spec: CacheSpec) -> tuple[TensorName, ...]:
    """The tensor that a wall draws; and the other one, which may have the largest numbers, if its rows are counted as
    they come: counting all of it again would cost as much as the picture."""
    other: TensorName = "values" if request.tensor == "keys" else "keys"
    is_cheap = spec.retention.keeps_all and not spec.recomputes and spec.layout != "quantized"
    return (request.tensor, other) if is_cheap else (request.tensor,)


def of_pair(pair: Pair, tensor: TensorName) -> torch.Tensor:
    """K or V of a pair."""
    return pair[0] if tensor == "keys" else pair[1]
