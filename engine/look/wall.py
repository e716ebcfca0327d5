"""The wall: thumbnails of every layer and head, of K or V or of what a step changed in them."""

from __future__ import annotations

import time

import numpy as np
import torch

from engine.cache.contract import HeldRows
from engine.geometry.dimensions import CacheGeometry
from engine.look.probe import frozen
from engine.look.reductions import fill_cells, frozen_ints, scattered, since
from engine.look.rows_at import RowsAt, chosen, holders, rewrites, run_of
from engine.wire.commands import WallRequest
from engine.wire.slices import Magnitudes, WallSlice


def wall_slice(
    request: WallRequest,
    past: RowsAt,
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


def changes(
    tensor: torch.Tensor, places: torch.Tensor, before: RowsAt, layer: int, request: WallRequest
) -> torch.Tensor:
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


def changed_rows(tensor: torch.Tensor, first: int, previous_tokens: int) -> tuple[torch.Tensor, int]:
    """The rows a step wrote: everything before them is, in these layouts, untouched."""
    start = max(first, previous_tokens)
    return tensor[:, :, start - first :], start


def note_of(held: dict[int, HeldRows], request: WallRequest, past: RowsAt, geometry: CacheGeometry) -> str:
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


def knows_change(past: RowsAt, request: WallRequest) -> bool:
    """Whether the difference to the step before can be told for all rows."""
    if past.cache.spec.quantizer is not None:
        return request.previous_tokens == 0
    if not rewrites(past.cache):
        return True
    return past.is_known and past.before_step(request.previous_tokens).is_known
