"""How large the numbers of a layer are: what colours span, the largest of all, and where it stands.

Magnitudes are counted on a logarithmic scale, sixteen bins to the octave, read straight from the bits of a float32.
Rows that no later step writes anew are counted as they come, O(new rows); others, such as those that a codec has still
to quantise, at every picture, and so is any earlier step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.contract import HeldRows, Pair
from engine.cache.sequence_cache import SequenceCache
from engine.geometry.dimensions import CacheGeometry
from engine.look.probe import frozen
from engine.look.rows_at import RowsAt, chosen, rewrites
from engine.wire.commands import HeadRequest, TensorName, WallRequest
from engine.wire.records import Magnitudes

QUANTILE = 0.995
# A channel apart is 1 / (H_kv * D) of a layer: more than the quantile leaves out in small layers. It shall not decide
# the colours of all others, so these reach no further than so many medians (normal numbers: 4.2 at the quantile).
MEDIANS = 8.0
COUNTED_AT_ONCE = 1 << 21

_SHIFT = 19  # of the 23 bits of a mantissa four are kept
_BINS = 1 << (31 - _SHIFT)
_FINITE = 255 << (23 - _SHIFT)  # the exponent 255 is that of infinities and NaN
_LOW, _HIGH = (127 - 40) << 4, (127 + 24) << 4  # kept apart: 2**-40 to 2**24; what is beyond falls into the end bins
_EDGES = (np.arange(_LOW, _HIGH + 1, dtype=np.uint32) << _SHIFT).view(np.float32).astype(np.float64)
_EDGES[0] = 0.0


@dataclass(eq=False)
class LayerCount:
    """One tensor of one layer: counts of finite magnitudes `[bins]`, and per kv head and channel `[H_kv, D]` the finite
    number farthest from zero. `num_rows` of them are in."""

    counts: npt.NDArray[np.int64]
    peak: npt.NDArray[np.float32]
    num_rows: int

    def add(self, other: LayerCount) -> None:
        """Take in the count of later rows."""
        self.counts += other.counts
        self.peak = np.where(np.abs(other.peak) > np.abs(self.peak), other.peak, self.peak)
        self.num_rows += other.num_rows

    def with_later(self, other: LayerCount) -> LayerCount:
        """Another count, with those of later rows taken in."""
        made = LayerCount(self.counts.copy(), self.peak, self.num_rows)
        made.add(other)
        return made


def magnitudes_of(counts: Sequence[LayerCount]) -> Magnitudes:
    """What the window is told of each of those layers."""
    if not counts:
        return Magnitudes(*(np.zeros(0, np.float32) for _ in range(3)))
    stacked = np.stack([count.counts for count in counts])  # [L, bins]
    used = np.flatnonzero(stacked.any(0))  # of a thousand bins some two hundred
    part = slice(int(used[0]), int(used[-1]) + 1) if used.size else slice(0, 1)
    stacked, edges = stacked[:, part], _EDGES[part.start : part.stop + 1]
    running = np.cumsum(stacked, axis=1)
    largest = np.abs(np.array([[count.peak.min(initial=0.0), count.peak.max(initial=0.0)] for count in counts])).max(1)
    most, median = (np.minimum(_quantile(stacked, running, edges, share), largest) for share in (QUANTILE, 0.5))
    limit = np.where(median > 0, np.minimum(most, MEDIANS * median), most)
    clipped = np.where(limit < largest, _share_beyond(stacked, running, edges, limit), 0.0)
    return Magnitudes(*(frozen(part) for part in (limit, largest, clipped)))


def _quantile(
    counts: npt.NDArray[np.int64], running: npt.NDArray[np.int64], edges: npt.NDArray[np.float64], share: float
) -> npt.NDArray[np.float64]:
    """`[L]`: the magnitude below which that share of the numbers lies, to a part of a sixteenth of an octave."""
    target = share * running[:, -1]
    bins = np.minimum((running < target[:, None]).sum(1), counts.shape[1] - 1)
    inside = np.take_along_axis(counts, bins[:, None], 1)[:, 0]
    before = np.take_along_axis(running, bins[:, None], 1)[:, 0] - inside
    part = np.where(inside > 0, (target - before) / np.maximum(inside, 1), 0.0)
    found: npt.NDArray[np.float64] = edges[bins] + part * (edges[bins + 1] - edges[bins])
    return found


def _share_beyond(
    counts: npt.NDArray[np.int64],
    running: npt.NDArray[np.int64],
    edges: npt.NDArray[np.float64],
    limit: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """`[L]`: the part of the numbers whose magnitude is larger than the limit."""
    bins = np.clip(np.searchsorted(edges, limit, "right") - 1, 0, counts.shape[1] - 1)
    inside = np.take_along_axis(counts, bins[:, None], 1)[:, 0]
    after = running[:, -1] - np.take_along_axis(running, bins[:, None], 1)[:, 0]
    rest = (edges[bins + 1] - limit) / (edges[bins + 1] - edges[bins])
    found: npt.NDArray[np.float64] = (after + inside * rest) / np.maximum(running[:, -1], 1)
    return found


def writes_rows_once(cache: SequenceCache) -> bool:
    """Whether a row, exact or coded, stays as it was written until it leaves."""
    spec = cache.spec
    return not (spec.recomputes or spec.layout == "quantized" or rewrites(cache)) and spec.retention.keeps_all


def num_final(past: RowsAt, layer: int, tensor: TensorName, rows: HeldRows) -> int:
    """How many rows, from the first on, stay as they are: what is counted of them need not be counted again."""
    is_present = past.num_tokens >= past.cache.num_tokens
    if rows.positions is not None or rows.first or not (is_present or writes_rows_once(past.cache)):
        return 0
    return min(past.cache.num_final(layer, tensor), rows.keys.shape[2])


# A layer, its rows [H_kv, T, D], and their positions [H_kv, T] where they stand apart
Part = tuple[int, torch.Tensor, torch.Tensor | None]


class RowMagnitudes:
    """The counts of one sequence's cache, each taken when somebody first looks, and kept up as rows come.

    To be thrown away when rows that were counted may have been written anew: after a rewind, or a failed step.
    """

    def __init__(self, cache: SequenceCache) -> None:
        self.cache = cache
        self._live: dict[tuple[TensorName, int], LayerCount] = {}
        self._other: dict[tuple[TensorName, int], tuple[object, LayerCount]] = {}

    @torch.inference_mode()
    def of(self, tensor: TensorName, past: RowsAt, layers: Iterable[int]) -> dict[int, LayerCount]:
        """The counts of the rows that those layers held when the sequence had as many tokens."""
        found: dict[int, LayerCount] = {}
        wanted: list[tuple[int, HeldRows, torch.Tensor, int]] = []  # rows that are in no count yet
        anew: list[
            tuple[int, HeldRows, torch.Tensor, int]
        ] = []  # rows that may be written anew, or are of another time
        kept_up: list[int] = []
        stamp = (past.num_tokens, past.cache.num_tokens, past.provenance)
        for layer in layers:
            other = self._other.get((tensor, layer))
            if other is not None and other[0] == stamp:
                found[layer] = other[1]
                continue
            rows = past.rows(layer)
            if rows is None:
                continue
            final, live, numbers = (
                num_final(past, layer, tensor, rows),
                self._live.get((tensor, layer)),
                chosen(rows, tensor),
            )
            known = 0 if live is None else live.num_rows
            if not final or known > final:
                anew.append((layer, rows, numbers, 0))
                continue
            if known < final:
                wanted.append((layer, rows, numbers[:, :, :final], known))
            if final < numbers.shape[2]:
                anew.append((layer, rows, numbers, final))
            else:
                kept_up.append(layer)
        for layer, count in counted(wanted, past):
            live = self._live.setdefault((tensor, layer), count)
            if live is not count:
                live.add(count)
        found |= {layer: self._live[tensor, layer] for layer in kept_up}
        rest = dict(counted(anew, past))
        for layer, _, _, start in anew:
            count = rest[layer]
            if start:
                count = self._live[tensor, layer].with_later(count)
            found[layer] = count
            self._other[tensor, layer] = (stamp, count)
        return found

    @torch.inference_mode()
    def follow(
        self, rows: Mapping[int, Pair], first: int, tensors: Sequence[TensorName]
    ) -> dict[TensorName, dict[int, LayerCount]] | None:
        """The counts of those layers with their newest rows taken in: K and V `[H_kv, T, D]` from position `first` on.
        None where rows before those were never counted."""
        found: dict[TensorName, dict[int, LayerCount]] = {tensor: {} for tensor in tensors}
        new: list[tuple[LayerCount, torch.Tensor]] = []
        for tensor in tensors:
            for layer, pair in rows.items():
                count, held = self._live.get((tensor, layer)), of_pair(pair, tensor)
                if count is None or count.num_rows < first:
                    return None
                found[tensor][layer] = count
                if count.num_rows - first < held.shape[1]:
                    new.append((count, held[:, count.num_rows - first :]))
        forms: dict[object, list[tuple[LayerCount, torch.Tensor]]] = {}
        for count, held in new:
            forms.setdefault((held.shape, held.dtype), []).append((count, held))
        for together in forms.values():
            for (count, _), more in zip(together, counted_rows([held for _, held in together]), strict=True):
                count.add(more)
        return found


class SessionMagnitudes:
    """The counts of every sequence of a session, and what its pictures are told of them."""

    def __init__(self) -> None:
        self._of: dict[int, RowMagnitudes] = {}

    def forget(self, seq_id: int) -> None:
        """The sequence is gone, or rows of it that were counted may be written anew."""
        self._of.pop(seq_id, None)

    def counts(self, seq_id: int, tensor: TensorName, past: RowsAt, layers: Iterable[int]) -> dict[int, LayerCount]:
        """By layer; another cache than the last time is counted by itself."""
        known = self._of.get(seq_id)
        if known is None or known.cache is not past.cache:
            known = self._of[seq_id] = RowMagnitudes(past.cache)
        return known.of(tensor, past, layers)

    def follow(
        self, seq_id: int, cache: SequenceCache, rows: Mapping[int, Pair], first: int, tensors: Sequence[TensorName]
    ) -> dict[TensorName, dict[int, LayerCount]] | None:
        """`RowMagnitudes.follow` of a sequence; None where this cache of it was never counted."""
        known = self._of.get(seq_id)
        return known.follow(rows, first, tensors) if known is not None and known.cache is cache else None

    def of_all(
        self, seq_id: int, past: RowsAt, geometry: CacheGeometry
    ) -> tuple[dict[int, LayerCount], dict[int, LayerCount]]:
        """Keys and values of every layer that holds rows."""
        layers = [layer.index for layer in geometry.attention_layers]
        return self.counts(seq_id, "keys", past, layers), self.counts(seq_id, "values", past, layers)

    def of_wall(
        self, request: WallRequest, past: RowsAt, geometry: CacheGeometry
    ) -> tuple[Magnitudes | None, Magnitudes | None]:
        """Of the tensor that is drawn, and of the other one, which may hold what a person looks for, where that is
        counted as rows come: counting all of it anew would cost as much as the picture."""
        if request.max_columns * request.max_rows <= 1:  # asked for the sake of who holds which token
            return None, None
        layers = [layer.index for layer in geometry.attention_layers]
        other: TensorName = "values" if request.tensor == "keys" else "keys"
        spec = past.cache.spec
        is_cheap = spec.retention.keeps_all and not spec.recomputes and spec.layout != "quantized"
        tensors = (request.tensor, other) if is_cheap else (request.tensor,)
        found = [self.counts(request.seq_id, tensor, past, layers) for tensor in tensors]
        told = [magnitudes_of([counts[layer] for layer in layers if layer in counts]) for counts in found]
        return told[0], told[1] if len(told) > 1 else None

    def of_head(self, request: HeadRequest, past: RowsAt) -> Magnitudes | None:
        """Of the layer of a head; None where it holds no rows."""
        found = self.counts(request.seq_id, request.tensor, past, [request.layer])
        return magnitudes_of(list(found.values())) if found else None


def of_pair(pair: Pair, tensor: TensorName) -> torch.Tensor:
    """K or V."""
    return pair[0] if tensor == "keys" else pair[1]


def counted_rows(tensors: Sequence[torch.Tensor]) -> list[LayerCount]:
    """Count tensors of a few rows each, `[H_kv, T, D]`, all of one form; for many rows see `counted`."""
    values = torch.stack(list(tensors)).float().cpu().numpy()  # [N, H_kv, T, D]
    num_tensors, num_bins = len(values), _HIGH - _LOW
    # without the sign, exponent and mantissa are in the order of the magnitudes
    bins = (values.view(np.int32) >> _SHIFT) & (_BINS - 1)
    is_finite = bins < _FINITE
    places = np.clip(bins - _LOW, 0, num_bins - 1) + np.arange(num_tensors)[:, None, None, None] * num_bins
    if not is_finite.all():
        places, values = places[is_finite], np.where(is_finite, values, np.float32(0))
    counts = np.bincount(places.ravel(), minlength=num_tensors * num_bins).reshape(num_tensors, num_bins)
    low, high = values.min(2), values.max(2)
    peaks = np.where(-low > high, low, high)
    return [LayerCount(count, peak, values.shape[2]) for count, peak in zip(counts, peaks, strict=True)]


def counted(items: Sequence[tuple[int, HeldRows, torch.Tensor, int]], past: RowsAt) -> Iterable[tuple[int, LayerCount]]:
    """Count layers `(index, rows, tensor [1, H_kv, S, D], first row to count)`; those of one form together."""
    forms: dict[object, list[Part]] = {}
    for layer, rows, tensor, start in items:
        new = tensor[0, :, start:]
        places = None if rows.positions is None else rows.positions[:, start:]
        form = (new.shape, new.dtype, new.device, places is None)
        forms.setdefault(form, []).append((layer, new, places))
    for parts in forms.values():
        at_once = max(1, COUNTED_AT_ONCE // max(1, parts[0][1].numel()))
        for start in range(0, len(parts), at_once):
            yield from _count_in_pieces(parts[start : start + at_once], past.num_tokens)


def _count_in_pieces(parts: Sequence[Part], num_tokens: int) -> Iterable[tuple[int, LayerCount]]:
    """Count layers of one form, so many rows at a time that what is made on the way stays small beside a long cache."""
    _, new, _ = parts[0]
    heads, num_rows, dims = new.shape
    rows_at_once = max(1, COUNTED_AT_ONCE // max(1, heads * dims))
    found: dict[int, LayerCount] = {}
    for start in range(0, max(1, num_rows), rows_at_once):
        rows = slice(start, start + rows_at_once)
        piece = [(layer, new[:, rows], None if at is None else at[:, rows]) for layer, new, at in parts]
        for layer, count in _count_together(piece, num_tokens):
            if layer in found:
                found[layer].add(count)
            else:
                found[layer] = count
    return found.items()


def _count_together(parts: Sequence[Part], num_tokens: int) -> Iterable[tuple[int, LayerCount]]:
    values = torch.stack([new for _, new, _ in parts]).float()  # [L, H_kv, T, D]
    num_layers, heads, num_rows, dims = values.shape
    if not num_rows:
        for layer, _, _ in parts:
            yield layer, LayerCount(np.zeros(_HIGH - _LOW, np.int64), np.zeros((heads, dims), np.float32), 0)
        return
    if any(places is not None for _, _, places in parts):
        is_later = torch.stack([places for _, _, places in parts if places is not None]) >= num_tokens
        if bool(is_later.any()):  # rows of later steps may stand among scattered ones
            values = values.masked_fill(is_later[..., None], torch.nan)
    # without the sign, exponent and mantissa are in the order of the magnitudes
    bins = ((values.view(torch.int32) >> _SHIFT) & (_BINS - 1)).flatten(1)
    bins += torch.arange(num_layers, dtype=torch.int32, device=values.device)[:, None] * _BINS
    found = _histogram(bins.flatten(), num_layers * _BINS).view(num_layers, _BINS)
    counts = found[:, _LOW:_HIGH].clone()
    counts[:, 0] += found[:, :_LOW].sum(1)
    counts[:, -1] += found[:, _HIGH:_FINITE].sum(1)
    if bool(found[:, _FINITE:].any()):
        values = values.masked_fill(~values.isfinite(), 0.0)
    low, high = values.amin(2), values.amax(2)
    kept, peak = counts.cpu().numpy(), torch.where(-low > high, low, high).cpu().numpy()
    for index, (layer, _, _) in enumerate(parts):
        yield layer, LayerCount(kept[index], peak[index], num_rows)


def _histogram(bins: torch.Tensor, count: int) -> torch.Tensor:
    """How often each of `count` numbers occurs; numpy counts five times faster where it can reach them."""
    if bins.device.type != "cpu":
        return torch.bincount(bins, minlength=count)
    return torch.from_numpy(np.bincount(bins.numpy(), minlength=count))
