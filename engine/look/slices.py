"""One screen-sized picture of K, V or attention, now or at an earlier step, reduced where it lives.

A cell of a reduced picture keeps both its smallest and its largest value, so that a single hot channel never averages
away. NaN wins over everything. A picture of an earlier step shows the rows as they stood then; where a cache no longer
knows them, it shows what is stored now and says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from msgspec import structs

from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.geometry.dimensions import CacheGeometry
from engine.history.marks import Move, are_kept
from engine.look.probe import frozen
from engine.look.tile_statistics import TileStatistics
from engine.wire.commands import (
    AttentionRequest,
    HeadRequest,
    RowRequest,
    SliceRequest,
    TableRequest,
    TensorName,
    WallRequest,
)
from engine.wire.records import (
    AttentionSlice,
    Floats,
    HeadSlice,
    Ints,
    Magnitudes,
    Provenance,
    RowSlice,
    TableSlice,
    WallSlice,
)

TOP_POSITIONS = 5
STACKED_NUMBERS = 1 << 21


@dataclass(frozen=True, eq=False)
class Past:
    """The rows of a sequence when it had `num_tokens` tokens, and where they come from.

    `moves` are those of the sequence, through the cache modes that it was in. `live_provenance` is that of the present
    rows.
    """

    cache: SequenceCache
    num_tokens: int
    live_provenance: Provenance
    moves: tuple[Move, ...] = ()
    _kept: dict[int, HeldRows | None] = field(default_factory=dict, init=False)

    @property
    def is_known(self) -> bool:
        """Whether the rows are those of then, bit for bit."""
        # the last step before a change of the mode had as many tokens as the change, and other rows
        later = (move for move in self.moves if move.had >= self.num_tokens)
        is_present = self.num_tokens >= self.cache.num_tokens
        return (is_present or are_kept(self.num_tokens, later)) and self.cache.knows(self.num_tokens)

    @property
    def provenance(self) -> Provenance:
        if not self.is_known:
            return "as stored now"
        spec = self.cache.spec
        is_put_back = self.num_tokens < self.cache.num_tokens and not spec.retention.keeps_all and spec.codec.is_exact
        return "recorded" if is_put_back else self.live_provenance

    def rows(self, layer: int) -> HeldRows | None:
        """Asked once of the cache, which may have to decode them."""
        if layer not in self._kept:
            rows = self.cache.rows_at(layer, self.num_tokens) if self.is_known else self.cache.rows(layer)
            self._kept[layer] = cut(rows, self.num_tokens)
        return self._kept[layer]

    def before_step(self, num_tokens: int) -> Past:
        """What the step found that followed on so many tokens: after a change of the mode what that had made of it."""
        return replace(self, num_tokens=num_tokens, moves=tuple(m for m in self.moves if m.had > num_tokens))


def wall_slice(
    request: WallRequest,
    past: Past,
    geometry: CacheGeometry,
    magnitudes: tuple[Magnitudes | None, Magnitudes | None] = (None, None),
) -> WallSlice:
    """Thumbnails of every layer and head, over positions `0 … num_tokens`; `magnitudes` of the layers with rows, of
    the tensor that is drawn and of the other one."""
    began = time.perf_counter()
    held = {layer.index: rows for layer in geometry.attention_layers if (rows := past.rows(layer.index)) is not None}
    heads = tuple(rows.keys.shape[1] for rows in held.values())
    tokens = max(1, request.num_tokens)
    per_column = max(1, -(-tokens // max(1, request.max_columns)))
    dims = [chosen(rows, request.tensor).shape[3] for rows in held.values()]
    per_row = max(1, -(-max(dims, default=1) // max(1, request.max_rows)))
    shape = (len(held), max(heads, default=0), -(-tokens // per_column), -(-max(dims, default=1) // per_row))
    low, high = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    absent = np.zeros(shape[:3], np.int64) if any(r.positions is not None for r in held.values()) else None
    dtype = ""
    plain: list[tuple[int, torch.Tensor, int]] = []
    for n, rows in enumerate(held.values()):
        tensor = chosen(rows, request.tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if rows.positions is not None or (request.change and rewrites(past.cache)):
            places = rows.positions if rows.positions is not None else run_of(rows)
            if request.change:
                tensor = changes(tensor, places, past.before_step(request.previous_tokens), list(held)[n], request)
            found = scattered(tensor[0].float(), places, 0, request.num_tokens, per_column, per_row)
            place = (n, slice(0, tensor.shape[1]), slice(None), slice(0, found.low.shape[2]))
            low[place], high[place] = found.low, found.high
            if absent is not None:
                absent[place[:3]] = found.absent
            continue
        first = rows.first
        if request.change:
            # what is held and was not written is unchanged; what is not held stays empty
            columns = slice(first // per_column, request.previous_tokens // per_column)
            same = (n, slice(tensor.shape[1]), columns, slice(-(-tensor.shape[3] // per_row)))
            low[same] = high[same] = 0.0
            tensor, first = changed_rows(tensor, first, request.previous_tokens)
        if tensor.shape[2]:
            plain.append((n, tensor[0], first))
    fill_cells(low, high, plain, per_column, per_row)
    return WallSlice(
        request=request,
        provenance=past.provenance,
        dtype=dtype,
        layers=tuple(held),
        heads=heads,
        low=frozen(low),
        high=frozen(high),
        first_position=min((r.first for r in held.values()), default=0),
        num_tokens=request.num_tokens,
        tokens_per_column=per_column,
        dims_per_row=per_row,
        note=note_of(held, request, past, geometry),
        took_ms=since(began),
        absent=None if absent is None else frozen_ints(absent),
        holders=None if absent is None else holders(held.values(), request.num_tokens),
        magnitudes=magnitudes[0],
        other_magnitudes=magnitudes[1],
    )


def head_slice(
    request: HeadRequest, past: Past, geometry: CacheGeometry, magnitudes: Magnitudes | None = None
) -> HeadSlice:
    """One head over the token range asked for, with what a colour scale needs to know; `magnitudes` of its layer."""
    began = time.perf_counter()
    rows = past.rows(request.layer)
    layer = geometry.layers[request.layer]
    if rows is None:
        tile, first, dtype, places = torch.empty(0, 0), 0, "", None
    else:
        tensor = chosen(rows, request.tensor)[0]
        dtype = str(tensor.dtype).removeprefix("torch.")
        first = max(rows.first, request.start)
        head = min(request.kv_head, tensor.shape[0] - 1)
        if rows.positions is not None:
            places = rows.positions[head]
            places = places[(places >= first) & (places < min(request.stop, request.num_tokens))]
            tile = tensor[head, torch.isin(rows.positions[head], places)].float()
        else:
            places = None
            tile = tensor[head, first - rows.first : max(0, request.stop - rows.first)].float()
    stop = min(request.stop, request.num_tokens)
    num_positions = tile.shape[0] if places is None else max(0, stop - first)
    per_column = max(1, -(-num_positions // max(1, request.max_columns)))
    absent = None
    if places is not None:
        found = scattered(tile[None], places[None] - first, 0, num_positions, per_column, 1)
        low, high, absent = found.low, found.high, frozen_ints(found.absent[0])
    elif tile.numel():
        low, high, _ = pooled(tile[None], 0, per_column, 1)
    else:
        low = high = np.empty((1, 0, 0), np.float32)
    statistics = TileStatistics(tile.cpu().numpy())
    group = max(1, layer.num_heads // max(1, layer.num_kv_heads))
    return HeadSlice(
        request=request,
        provenance=past.provenance,
        dtype=dtype,
        low=frozen(low[0]),
        high=frozen(high[0]),
        positions=frozen_ints(first + np.arange(low.shape[1]) * per_column),
        tokens_per_column=per_column,
        counts=frozen_ints(statistics.counts),
        edges=frozen(statistics.edges),
        limit=statistics.limit,
        lowest=statistics.lowest,
        highest=statistics.highest,
        num_nan=statistics.num_nan,
        num_inf=statistics.num_inf,
        query_heads=tuple(range(request.kv_head * group, (request.kv_head + 1) * group)),
        tensor_label=tensor_label(layer.kind, request.tensor),
        note="" if rows is not None else no_rows(layer.kind),
        took_ms=since(began),
        absent=absent,
        magnitudes=magnitudes,
    )


def attention_slice(
    request: AttentionRequest,
    row: torch.Tensor | None,
    query_position: int | None,
    geometry: CacheGeometry,
    newest: bool,
) -> AttentionSlice:
    """The newest query's weights `[H, S]` of one layer at one step, as they were computed; `query_position` None: the
    sequence had no rows then, and so no query that looked at them."""
    began = time.perf_counter()
    layer = geometry.layers[request.layer]
    group = max(1, layer.num_heads // max(1, layer.num_kv_heads))
    weights, positions, per_column, note = np.empty((0, 0), np.float32), np.empty(0, np.int64), 1, ""
    absent: Ints | None = None
    top_positions: Ints | None = None
    top_weights: Floats | None = None
    if query_position is None:
        query_position, note = (
            0,
            f"The sequence held no rows after step {request.step}: it waited for room in the pool.",
        )
    elif row is None:
        note = f"The attention of step {request.step} is no longer kept." if layer.num_heads else no_rows(layer.kind)
    else:
        base = query_position + 1 - row.shape[1]  # the first position of the row
        stop = query_position + 1 if request.stop is None else min(request.stop, query_position + 1)
        first = min(max(request.start, base), max(base, stop - 1))
        per_column = max(1, -(-(stop - first) // max(1, request.max_columns)))
        held = row.float()
        is_gone = missing(held)
        shown = slice(first - base, stop - base)
        weights, absent = pooled_weights(held[:, shown], is_gone[:, shown], per_column)
        positions = first + np.arange(weights.shape[1]) * per_column
        top_positions, top_weights = most_attended(held.masked_fill(is_gone, -1.0), base)
    return AttentionSlice(
        request=request,
        provenance="live cache" if newest else "recorded",
        weights=frozen(weights),
        positions=frozen_ints(positions),
        tokens_per_column=per_column,
        group_size=group,
        query_position=query_position,
        note=note,
        took_ms=since(began),
        absent=absent,
        top_positions=top_positions,
        top_weights=top_weights,
    )


def row_slice(request: RowRequest, past: Past, geometry: CacheGeometry) -> RowSlice:
    """K and V of one position through all layers, exact."""
    began = time.perf_counter()
    layers, keys, values, dropped, dtype = [], [], [], [], ""
    for layer in geometry.attention_layers:
        rows = past.rows(layer.index)
        pair = None if rows is None else row_at(rows, request.position)
        if rows is None or pair is None:
            continue
        layers.append(layer.index)
        keys.append(frozen(pair[0].cpu().numpy()))
        values.append(frozen(pair[1].cpu().numpy()))
        dropped.append(without(rows, request.position))
        dtype = str(rows.keys.dtype).removeprefix("torch.")
    note = "" if layers else f"Position {request.position} is not in the cache."
    return RowSlice(
        request, past.provenance, dtype, tuple(layers), tuple(keys), tuple(values), note, since(began),
        tuple(dropped) if any(dropped) else (),
    )  # fmt: skip


def table_slice(request: TableRequest, cache: SequenceCache) -> TableSlice:
    """The pages of a sequence in logical order, as they were when it had `num_tokens` tokens."""
    if not cache.spec.is_paged:
        return TableSlice(request, 1, (), request.num_tokens, "This cache mode has no pages.")
    tables = tuple(frozen_ints(np.array(page_ids, np.int64)) for page_ids in cache.page_ids_at(request.num_tokens))
    return TableSlice(request, cache.spec.page_size, tables, min(request.num_tokens, cache.num_tokens), "")


# ---- reductions --------------------------------------------------------------------------------------------------


def fill_cells(
    low: Floats,
    high: Floats,
    tensors: Sequence[tuple[int, torch.Tensor, int]],
    per_column: int,
    per_row: int,
    first_column: int = 0,
) -> None:
    """Write the extremes of layers `(index, [H, S, D], first position)` into cells `[L, H, columns, rows]`, whose
    columns begin with `first_column`."""
    for layers, tensor, first in stacked(tensors):
        low_cells, high_cells, column = pooled(tensor.float(), first, per_column, per_row)
        num_heads, num_columns, num_rows = low_cells.shape[0] // len(layers), *low_cells.shape[1:]
        start = column - first_column
        cells = (layers, slice(0, num_heads), slice(start, start + num_columns), slice(0, num_rows))
        form = len(layers), num_heads, num_columns, num_rows
        low[cells], high[cells] = low_cells.reshape(form), high_cells.reshape(form)


def stacked(tensors: Sequence[tuple[int, torch.Tensor, int]]) -> Iterator[tuple[list[int], torch.Tensor, int]]:
    """Layers `(index, [H, S, D], first position)` of one form as `[L * H, S, D]`, as many at once as are small: for
    those the number of products costs more than the numbers, for large ones a copy would."""
    forms: dict[object, list[tuple[int, torch.Tensor, int]]] = {}
    for item in tensors:
        forms.setdefault((item[1].shape, item[1].dtype, item[1].device, item[2]), []).append(item)
    for items in forms.values():
        at_once = max(1, STACKED_NUMBERS // max(1, items[0][1].numel()))
        for start in range(0, len(items), at_once):
            part = items[start : start + at_once]
            together = part[0][1] if len(part) == 1 else torch.cat([tensor for _, tensor, _ in part])
            yield [index for index, _, _ in part], together, part[0][2]


def pooled(tensor: torch.Tensor, first: int, per_column: int, per_row: int) -> tuple[Floats, Floats, int]:
    """Smallest and largest value of each cell of `[H, S, D]`: two arrays `[H, columns, rows]`, and the first column.

    Columns are aligned to absolute positions, so a cell does not wander when tokens are added or dropped.
    """
    column = first // per_column
    low = high = tensor
    if per_column > 1:
        lead = first - column * per_column
        tail = -(lead + tensor.shape[1]) % per_column
        parts = split(edge_padded(tensor, lead, tail), per_column)
        low, high = parts.amin(2), parts.amax(2)
    if per_row > 1:
        tail = -tensor.shape[2] % per_row
        wide = split(edge_padded(low.mT, 0, tail), per_row)
        tall = wide if low is high else split(edge_padded(high.mT, 0, tail), per_row)
        low, high = wide.amin(2).mT, tall.amax(2).mT
    return low.cpu().numpy(), high.cpu().numpy(), column


@dataclass(frozen=True, eq=False)
class Scattered:
    """Cells of rows that stand apart: extremes `[H, columns, rows]`, and how many positions of each column are gone."""

    low: Floats
    high: Floats
    absent: Ints


def scattered(
    tensor: torch.Tensor, positions: torch.Tensor, start: int, stop: int, per_column: int, per_row: int
) -> Scattered:
    """`[H, S, D]` at `positions` `[H, S]`, as cells over all positions below `stop`; those before `start` are left out.

    A column that holds no row is NaN; a NaN in a row still wins over everything.
    """
    low = high = tensor
    if per_row > 1:
        low, high = (torch.from_numpy(cells) for cells in pooled(tensor, 0, 1, per_row)[:2])
        positions = positions.cpu()
    heads, columns = tensor.shape[0], -(-stop // per_column)
    is_shown = (positions >= start) & (positions < stop)
    cells = (positions // per_column).clamp(0, max(0, columns - 1))[..., None].expand(-1, -1, low.shape[2])
    lowest = low.new_full((heads, columns, low.shape[2]), torch.inf)
    low = lowest.scatter_reduce(1, cells, low.masked_fill(~is_shown[..., None], torch.inf), "amin")
    high = (-lowest).scatter_reduce(1, cells, high.masked_fill(~is_shown[..., None], -torch.inf), "amax")
    is_empty = low > high
    held = torch.zeros(heads, columns, dtype=torch.long, device=tensor.device)
    held.scatter_add_(1, cells[..., 0], is_shown.long())
    room = torch.full((columns,), per_column)
    if columns:
        room[-1] = stop - (columns - 1) * per_column
    return Scattered(
        low.masked_fill(is_empty, torch.nan).cpu().numpy(),
        high.masked_fill(is_empty, torch.nan).cpu().numpy(),
        (room - held.cpu()).clamp(min=0).numpy(),
    )


def missing(row: torch.Tensor) -> torch.Tensor:
    """Where a row `[H, S]` had nothing to look at.

    A softmax with a NaN in it is NaN everywhere, and the newest row is always there: so a head whose last weight is a
    number has NaN only where rows were missing.
    """
    return row.isnan() & ~row[:, -1:].isnan() if row.shape[1] else row.isnan()


def pooled_weights(row: torch.Tensor, is_gone: torch.Tensor, per_column: int) -> tuple[Floats, Ints | None]:
    """The largest weight of each column of a row `[H, S]` and how many of its positions had no row to look at."""
    tail = -row.shape[1] % per_column
    padded = torch.nn.functional.pad(row.masked_fill(is_gone, -1.0), (0, tail), value=-1.0)
    weights = padded.reshape(len(row), -1, per_column).amax(2)
    if not bool(is_gone.any()):
        return weights.cpu().numpy(), None
    gone = torch.nn.functional.pad(is_gone.long(), (0, tail)).reshape(len(row), -1, per_column).sum(2)
    return weights.masked_fill(weights < 0, torch.nan).cpu().numpy(), frozen_ints(gone.cpu().numpy())


def most_attended(row: torch.Tensor, base: int) -> tuple[Ints, Floats]:
    """The positions of a row `[H, S]` from position `base` on that received most, and what they received, `[H, N]`.
    Negative weights are those of rows that were not there."""
    found = row.topk(min(TOP_POSITIONS, row.shape[1]), dim=1)
    weights = found.values.masked_fill(found.values < 0, torch.nan)
    return frozen_ints(found.indices.cpu().numpy() + base), frozen(weights.cpu().numpy())


def run_of(rows: HeldRows) -> torch.Tensor:
    """The positions `[H_kv, S]` of rows that stand in one run."""
    count = rows.keys.shape[2]
    places = torch.arange(rows.first, rows.first + count, device=rows.keys.device)
    return places.expand(rows.keys.shape[1], -1)


def rewrites(cache: SequenceCache) -> bool:
    """Whether a step may write older rows anew: residuals that are coded late, scales that wait, keys that turn."""
    spec = cache.spec
    return spec.retention.rerotate or any(c.is_kivi or c.waits_for_prompt for c in spec.codec.codings)


def changes(tensor: torch.Tensor, places: torch.Tensor, before: Past, layer: int, request: WallRequest) -> torch.Tensor:
    """What a step did to rows `[1, H, S, D]` at `places` `[H, S]`: new rows whole, older ones as the difference to
    what they were, which is zero unless the cache writes rows anew."""
    is_new = places >= request.previous_tokens
    changed = tensor.float() * 1.0
    older = before.rows(layer) if before.is_known and rewrites(before.cache) else None
    if older is None:
        return changed.masked_fill(~is_new[None, :, :, None], 0.0)
    then = chosen(older, request.tensor)[0].float()
    known = older.positions if older.positions is not None else run_of(older)
    slots = torch.searchsorted(known.contiguous(), places.contiguous()).clamp(max=known.shape[1] - 1)
    is_known = known.gather(1, slots) == places
    heads = torch.arange(len(slots), device=slots.device)[:, None]
    difference = changed[0] - then[heads, slots]
    difference = difference.masked_fill(~is_known[..., None], 0.0)
    return torch.where(is_new[..., None], changed[0], difference)[None]


def holders(held: Iterable[HeldRows], num_tokens: int) -> Ints:
    """How many kv heads, and how many layers, hold each position: `[2, num_tokens]`."""
    heads, layers = np.zeros(num_tokens, np.int64), np.zeros(num_tokens, np.int64)
    for rows in held:
        places = rows.positions if rows.positions is not None else run_of(rows)
        count = torch.bincount(places.flatten().clamp(max=num_tokens), minlength=num_tokens + 1)[:num_tokens]
        heads += count.cpu().numpy()
        layers += (count > 0).cpu().numpy()
    return frozen_ints(np.stack([heads, layers]))


def without(rows: HeldRows, position: int) -> tuple[int, ...]:
    """The heads that do not hold a position."""
    if rows.positions is None:
        return ()
    return tuple((~(rows.positions == position).any(1)).nonzero()[:, 0].tolist())


def row_at(rows: HeldRows, position: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """K and V `[H_kv, D]` of one position, NaN in heads that have dropped it; None where no head holds it."""
    if rows.positions is None:
        if not rows.first <= position < rows.stop:
            return None
        offset = position - rows.first
        return rows.keys[0, :, offset].float(), rows.values[0, :, offset].float()
    is_here = rows.positions == position
    if not bool(is_here.any()):
        return None
    slots, lost = is_here.int().argmax(1), ~is_here.any(1)
    heads = torch.arange(len(slots), device=slots.device)
    keys, values = (t[0, heads, slots].float().masked_fill(lost[:, None], torch.nan) for t in (rows.keys, rows.values))
    return keys, values


def split(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """`[H, S, D]` -> `[H, S / size, size, D]`."""
    return tensor.reshape(tensor.shape[0], -1, size, tensor.shape[2])


def edge_padded(tensor: torch.Tensor, lead: int, tail: int) -> torch.Tensor:
    """Repeat the first and last row along axis 1: padding that changes no minimum and no maximum."""
    parts = [tensor[:, :1].expand(-1, lead, -1), tensor, tensor[:, -1:].expand(-1, tail, -1)]
    return torch.cat([p for p in parts if p.shape[1]], 1)


def cut(rows: HeldRows | None, num_tokens: int) -> HeldRows | None:
    """The rows as they were when the sequence had `num_tokens` tokens.

    Scattered rows that are not those of then may be of another number in every head: they are cut where they are drawn.
    """
    if rows is None or rows.first >= num_tokens:
        return None
    positions, keep = rows.positions, num_tokens - rows.first
    if positions is not None:
        counts = (positions < num_tokens).sum(1)
        keep = int(counts[0])
        if keep == 0 or bool((counts != keep).any()):
            return rows
        positions = positions[:, :keep]
    return HeldRows(rows.keys[:, :, :keep], rows.values[:, :, :keep], rows.first, positions)


def changed_rows(tensor: torch.Tensor, first: int, previous_tokens: int) -> tuple[torch.Tensor, int]:
    """The rows a step wrote: everything before them is, in these layouts, untouched."""
    start = max(first, previous_tokens)
    return tensor[:, :, start - first :], start


def chosen(rows: HeldRows, tensor: TensorName) -> torch.Tensor:
    return rows.keys if tensor == "keys" else rows.values


def tensor_label(kind: str, tensor: TensorName) -> str:
    """What a cached tensor is: latent attention caches a compressed latent and one rotary key instead of K and V."""
    if kind == "latent":
        return "latent" if tensor == "keys" else "rotary key"
    return "K" if tensor == "keys" else "V"


def no_rows(kind: str) -> str:
    if kind == "linear":
        return "This layer keeps a recurrent state of constant size, and no K and V."
    if kind == "shared":
        return "This layer reads the K and V of an earlier layer and keeps none of its own."
    return "This layer holds no K and V now."


def note_of(held: dict[int, HeldRows], request: WallRequest, past: Past, geometry: CacheGeometry) -> str:
    if not geometry.attention_layers:
        return "This architecture keeps a recurrent state and no K and V."
    # layers that hold none of the rows drawn, but later ones
    later = [
        r for layer in geometry.attention_layers if layer.index not in held and (r := past.cache.rows(layer.index))
    ]
    if not held and not later:
        if any(move.had and not move.num_tokens for move in past.moves[-1:]):
            return "Nothing is held now: the sequence gave its rows up, and computes them anew when it goes on."
        return "Nothing is held: no step has been computed in this cache mode yet."
    if request.change and not knows_change(past, request):
        return "What this step rewrote in older rows is not known any more."
    is_scattered = any(rows.positions is not None for rows in held.values())
    gone = max((rows.first for rows in (*held.values(), *later)), default=0) if later or not is_scattered else 0
    return f"Positions before {gone} have left the window of some layers." if gone else ""


def knows_change(past: Past, request: WallRequest) -> bool:
    """Whether the difference to the step before can be told for all rows."""
    if past.cache.spec.quantizer is not None:
        return request.previous_tokens == 0
    if not rewrites(past.cache):
        return True
    return past.is_known and past.before_step(request.previous_tokens).is_known


def frozen_ints(array: np.ndarray) -> Ints:
    array = np.ascontiguousarray(array, np.int64)
    array.flags.writeable = False
    return array


def since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


def within(request: SliceRequest, num_tokens: int) -> SliceRequest:
    """A request as far as there are tokens: one may have been sent before some of them were taken back."""
    changes: dict[str, int] = {}
    for name in ("num_tokens", "previous_tokens", "start", "stop"):
        value = getattr(request, name, None)
        if value is not None:
            changes[name] = min(max(value, 0), num_tokens)
    if (count := getattr(request, "count", None)) is not None:
        changes["count"] = max(1, count)
    return structs.replace(request, **changes)
