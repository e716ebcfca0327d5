"""Screen-sized pictures of a source, reduced on the device where the tensors are.

A cell of a reduced picture keeps both its smallest and its largest value, so that a single outlier channel never
averages away; a NaN makes its cell NaN. A picture of an earlier step shows the rows as they were then; where the cache
no longer knows them, it shows what is stored now and says so. What was counted and drawn of the rows is kept, so that
the next picture of them costs only what is new.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from msgspec import structs
from torch.nn.functional import pad

from engine.cache.contract import StateMatrix
from engine.cache.stacking import on_one_device
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.look.canvas import Alike, Canvas, Grid, alike_of, has_no_size, held_in_columns
from engine.look.lenses import held_of_all, queries_words, read, read_all, why_not
from engine.look.magnitudes import Blocks, Counts, HeadStatistics, LayerCount
from engine.look.measures import entropy_of
from engine.look.reductions import (
    as_slice,
    largest_weights,
    missing_rows,
    ms_since,
    num_positions_of,
    per_cell,
    pooled,
    pooled_weights,
)
from engine.look.source import Held, Rows, Source, holders, of_latest, provenance_from, provenance_of, rewrites, row_at
from engine.spec.codec import PARTS, Part
from engine.spec.lenses import LENSES, Lens
from engine.wire.pictures import (
    Attended,
    AttentionPicture,
    AttentionRequest,
    CellUpdate,
    HeadPicture,
    HeadRequest,
    Outlier,
    OutliersPicture,
    OutliersRequest,
    Picture,
    PictureRequest,
    RowPicture,
    RowRequest,
    StatePicture,
    TablePicture,
    TableRequest,
    WallPicture,
    WallRequest,
)
from engine.wire.records import Floats, Ints, Provenance, read_only_floats, read_only_ints

if TYPE_CHECKING:
    from engine.session.pictures import Queries


def picture_of(request: PictureRequest, source: Source, geometry: CacheGeometry, memo: PictureMemo) -> Picture:
    """One picture of a source. A wall reuses what the last one of the same rows has drawn."""
    match request:
        case WallRequest() | HeadRequest():
            reuses = isinstance(request, WallRequest) and not has_no_size(request)
            picture = drawn(request, source, geometry, memo, memo.wall if reuses else Canvas())
            assert not isinstance(picture, CellUpdate), "there is no picture before"
            return picture
        case RowRequest():
            return row_picture(request, source, geometry)
        case TableRequest():
            return table_picture(request, source)
    raise InputError("Of this there are pictures of the wall, of a head, of a row and of the page table.")


def limited(
    request: PictureRequest, source: Source, geometry: CacheGeometry, whose: str
) -> tuple[PictureRequest, Source]:
    """A request limited to existing tokens, and the rows that it is about. Raises `InputError` for a lens, layer or
    head that does not exist; `whose` names the model or file."""
    if (lens := getattr(request, "lens", "keys")) not in LENSES:
        raise InputError(f"There is no lens '{lens}': choose one of {', '.join(LENSES)}.")
    layer, head = getattr(request, "layer", 0), getattr(request, "kv_head", getattr(request, "head", 0))
    if not 0 <= layer < len(geometry.layers):
        raise InputError(f"There is no layer {layer}: {whose} has layers 0 … {len(geometry.layers) - 1}.")
    if head < 0:
        raise InputError(f"There is no head {head}: count from 0.")
    request = within(request, source.num_tokens)
    wanted = getattr(request, "num_tokens", source.num_tokens)
    return request, source if wanted == source.num_tokens else source.at(wanted)


def within(request: PictureRequest, num_tokens: int) -> PictureRequest:
    """A request limited to existing tokens: since it was sent, the sequence may have gone back."""
    changes: dict[str, int] = {}
    for name in ("num_tokens", "previous_tokens", "start", "stop"):
        value = getattr(request, name, None)
        if value is not None:
            changes[name] = min(max(value, 0), num_tokens)
    if (count := getattr(request, "count", None)) is not None:
        changes["count"] = max(1, count)
    return structs.replace(request, **changes)


# ---- what is kept for the next picture ------------------------------------------------------------------------------


# By part, layer, kv head and channel: the position of the number farthest from zero, and that number
Peaks = dict[tuple[Part, int, int, int], tuple[int, float]]


class PictureMemo:
    """What was counted and drawn of the rows of one owner (`rows_of`), so that the next picture costs only what is new.
    To be discarded when rows that were there before may have other numbers."""

    def __init__(self, rows_of: object) -> None:
        self.rows_of = rows_of
        self.blocks, self.wall, self.peaks = Blocks(), Canvas(), Peaks()
        self.queries: Queries | None = None
        self.full: dict[int, Held] = {}


class PictureMemos:
    """The memos of the sequences of a session."""

    def __init__(self) -> None:
        self._of: dict[int, PictureMemo] = {}

    def of(self, seq_id: int, cache: object) -> PictureMemo:
        """The memo of a sequence in this cache; that of any other cache is discarded."""
        known = self._of.get(seq_id)
        if known is None or known.rows_of is not cache:
            known = self._of[seq_id] = PictureMemo(cache)
        return known

    def forget(self, seq_id: int) -> None:
        """Discard it for a sequence that is removed, or whose rows may have been overwritten."""
        self._of.pop(seq_id, None)

    def forget_all(self) -> None:
        """Discard all, when other sequences become the present ones."""
        self._of.clear()


# ---- wall and head --------------------------------------------------------------------------------------------------


# largest share of changed cells for which an update is sent: beyond it, the cells' places make the whole wall cheaper
WORTH_UPDATING = 0.5


def drawn(
    request: WallRequest | HeadRequest,
    source: Source,
    geometry: CacheGeometry,
    memo: PictureMemo,
    canvas: Canvas,
    before: WallPicture | HeadPicture | None = None,
    *,
    is_counted: bool = True,
) -> WallPicture | HeadPicture | CellUpdate:
    """A wall or head, for which the canvas draws only what differs from the last one. Whole; or an update of the
    picture `before`, if that is what was drawn last and little of it differs: then numbers about all rows are brought
    up to date only if `is_counted`."""
    began = time.perf_counter()
    if isinstance(request, HeadRequest) and (state := state_slice(request, source, geometry)) is not None:
        return state
    places = canvas.aim(request, source, geometry)
    grid, is_wall = canvas.grid, isinstance(request, WallRequest)
    assert grid is not None
    if before is None or (
        places is not None and is_wall and places.shape[1] > WORTH_UPDATING * np.prod(grid.shape[:3])
    ):
        places = None
    canvas.draw()
    if is_counted or places is None or before is None:
        make_numbers = numbers_of_wall if is_wall else numbers_of_head
        numbers = make_numbers(canvas, source, memo)
    else:
        names = NUMBERS_OF_WALL if is_wall else NUMBERS_OF_HEAD
        numbers = {name: getattr(before, name) for name in names}
    picture = (wall_of if is_wall else head_of)(canvas, source, geometry, places, numbers)
    picture = structs.replace(picture, took_ms=ms_since(began))
    if places is None:
        return picture
    holders_at = touched_positions(canvas) if isinstance(picture, WallPicture) and picture.holders is not None else None
    return CellUpdate(picture, places if is_wall else places[2:], grid.num_columns, canvas.num_removed, holders_at)


def provenance_through(lens: str, source: Source, layers: Sequence[int], first: int = 0) -> Provenance:
    """The provenance of what a lens shows, from position `first` on: of its part of the rows, or of the queries."""
    if LENSES[lens].reads == "queries" and source.queries is not None:
        return source.queries.provenance(source.num_queries)
    part = LENSES[lens].part
    return provenance_of(source, layers, PARTS if part is None else (part,), first)


def cells_at(canvas: Canvas, places: Ints | None) -> dict[str, Any]:
    """Extremes, and how many rows are missing, of all cells or of those at some places; as fields of a picture: `[L, H,
    columns, rows]` of a wall, `[columns, rows]` of a head."""
    grid, request, absent = canvas.grid, canvas.request, absent_cells(canvas)
    assert grid is not None
    shape = grid.shape[2:] if isinstance(request, HeadRequest) else grid.shape
    both = [canvas.low] if grid.per_column == grid.per_row == 1 else [canvas.low, canvas.high]  # one number a cell
    if places is None:
        extremes = [each.reshape(shape).copy() for each in both]
        absent = None if absent is None else absent.reshape(shape[:-1])
    else:
        extremes = [canvas.drawn_again(each, places) for each in both]
        absent = None if absent is None else canvas.drawn_again(absent, places)
    if isinstance(request, WallRequest) and request.only_farthest:
        low, high = extremes[0], extremes[-1]
        extremes = [np.where(-low > high, low, high)]
    extremes = [read_only_floats(each) for each in extremes]
    return {
        "low": extremes[0],
        "high": extremes[-1],
        "absent": None if absent is None else read_only_ints(absent),
    }


def absent_cells(canvas: Canvas) -> np.ndarray | None:
    """How many positions of each cell `[L, H, columns]` have no row; None where no rows can be missing."""
    grid, source = canvas.grid, canvas.source
    assert grid is not None
    assert source is not None
    is_half = source.half is not None and isinstance(canvas.request, WallRequest)
    if not (grid.is_scattered or is_half):
        return None
    expected = num_positions_of(np.arange(grid.num_columns), grid.per_column, grid.stop - grid.first)
    held = canvas.held.copy()
    for alike in grid.alike:
        is_run = alike.held.positions is None
        if is_half and is_run:
            held[alike.places] = held_in_columns(alike.held, grid, range(grid.num_columns))
        held[alike.places, alike.num_heads if is_half or not is_run else 0 :] = expected
    absent: np.ndarray = np.maximum(expected - held, 0)
    return absent


# ---- wall -----------------------------------------------------------------------------------------------------------


NUMBERS_OF_WALL = ("magnitudes", "other_magnitudes")


def wall_of(
    canvas: Canvas, source: Source, geometry: CacheGeometry, places: Ints | None, numbers: dict[str, Any]
) -> WallPicture:
    """The picture of a drawn wall, with all cells or those at some places."""
    grid, request = canvas.grid, canvas.request
    assert grid is not None
    assert isinstance(request, WallRequest)
    indices, part = list(grid.held), LENSES[request.lens].part
    cells = cells_at(canvas, places)
    shown_at = None
    if cells["absent"] is not None:
        shown_at = np.arange(request.num_tokens) if places is None else touched_positions(canvas)
    whole, held = (0, request.num_tokens), list(grid.held.values())
    spans = [(each.first, each.stop) if each.positions is None else whole for each in held]
    exact_from = [source.exact_from(layer, each) for each in (PARTS if part is None else (part,)) for layer in indices]
    return WallPicture(
        request=request,
        provenance=provenance_from(source, exact_from) if part else provenance_through(request.lens, source, indices),
        dtype=held[-1].dtype if held else "",
        layers=tuple(indices),
        heads=tuple([each.num_heads for each in held]),
        num_tokens=request.num_tokens,
        tokens_per_column=grid.per_column,
        dims_per_row=grid.per_row,
        note=note_of_wall(grid, request, source, geometry),
        took_ms=0.0,
        holders=None if shown_at is None else holders(held, shown_at),
        states=() if has_no_size(request) else state_pictures(source, geometry),
        held=None if set(spans) <= {whole} else read_only_ints(np.array(spans)),
        exact_from=tuple(exact_from) if part is not None and any(exact_from) else (),
        **cells,
        **numbers,
    )


def touched_positions(canvas: Canvas) -> Ints:
    """The positions of rows that were written or evicted since the picture before, in any layer."""
    deltas, request = canvas.deltas, canvas.request
    assert request is not None
    if deltas is None:
        return read_only_ints(np.arange(request.num_tokens))
    runs = {run for delta in deltas for run in (delta.written, delta.left_window)}
    evicted = {id(went): went for delta in deltas for went in delta.evicted}
    parts = [np.arange(run.start, run.stop) for run in runs] + [w.cpu().numpy().ravel() for w in evicted.values()]
    positions = np.unique(np.concatenate(parts))
    return read_only_ints(positions[positions < request.num_tokens])


def numbers_of_wall(canvas: Canvas, source: Source, memo: PictureMemo) -> dict[str, Any]:
    """The colour ranges of what is drawn; and of the other part of the rows, which may have the largest numbers, where
    that is cheap."""
    grid, request = canvas.grid, canvas.request
    assert grid is not None
    assert isinstance(request, WallRequest)
    if has_no_size(request):
        return dict.fromkeys(NUMBERS_OF_WALL)
    other: Part = "values" if request.lens == "keys" else "keys"
    is_other_shown = request.lens in PARTS and source.is_cheap(other)
    lenses = [LENSES[request.lens], LENSES[other]][: 1 + is_other_shown]
    ranges = memo.blocks.magnitudes(lenses, source, grid.held)
    return dict(zip(NUMBERS_OF_WALL, (*ranges, None), strict=False))


def note_of_wall(grid: Grid, request: WallRequest, source: Source, geometry: CacheGeometry) -> str:
    """A note on missing rows, or on changes that are unknown; empty where there is nothing to say."""
    if source.why_not:
        return source.why_not
    lens = LENSES[request.lens]
    one_head = f"The {lens.label} is a picture of one head, not of all: choose another lens."
    if why := why_not(source, lens) if lens.is_of_every_head else one_head:
        return why
    every = {layer.index for layer in geometry.attention_layers}
    if not every:
        return "This architecture keeps a recurrent state and no K and V."
    if source.half is not None and source.half.note and lens.reads != "queries":
        return source.half.note
    # rows of layers that hold none of the drawn positions, only later ones
    others = every - grid.held.keys()
    later = [held for index in sorted(others) if (held := source.held(index, ever=True)) is not None]
    if not grid.held and not later:
        if source.gave_rows_up:
            return "Nothing is held now: the sequence gave its rows up, and computes them anew when it goes on."
        return "Nothing is held: no step has been computed in this cache mode yet."
    if words := queries_words(source, lens):
        return words
    if lens.part is None and request.change:
        return "A step adds attention and changes none: look at it without the change."
    if request.change and not knows_change(source, request):
        return "What this step rewrote in older rows is not known any more."
    all_held = [each.held for each in grid.alike] + later
    is_scattered = not later and grid.is_scattered
    gone = 0 if is_scattered else max([rows.first for rows in all_held], default=0)
    if geometry.has_encoder:
        gone = 0  # the decoder's rows begin after those of the source
    return f"Positions before {gone} have left the window of some layers." if gone else ""


def knows_change(source: Source, request: WallRequest) -> bool:
    """Whether the difference to the step before is known for all rows."""
    if source.spec.quantizer is not None:
        return request.previous_tokens == 0
    if not rewrites(source.spec):
        return True
    return source.is_known and source.before(request.previous_tokens) is not None


# ---- head -----------------------------------------------------------------------------------------------------------


STATISTICS = ("counts", "edges", "limit", "lowest", "highest", "num_nan", "num_inf")
NUMBERS_OF_HEAD = ("magnitudes", *STATISTICS)


def head_of(
    canvas: Canvas, source: Source, geometry: CacheGeometry, places: Ints | None, numbers: dict[str, Any]
) -> HeadPicture:
    """The picture of a drawn head, with all columns or those at some places."""
    grid, request = canvas.grid, canvas.request
    assert grid is not None
    assert isinstance(request, HeadRequest)
    layer, lens = geometry.layers[request.layer], LENSES[request.lens]
    group = max(1, layer.num_heads // max(1, layer.num_kv_heads))
    columns = np.arange(grid.num_columns if places is None else 1)
    group = 1 if lens.heads == "query" else group
    readers = range(request.kv_head * group, (request.kv_head + 1) * group)
    note = source.why_not or why_not(source, lens) or queries_words(source, lens)
    note = note or ("" if lens.reads == "queries" else missing_note(source, request.layer))
    return HeadPicture(
        request=request,
        provenance=provenance_through(request.lens, source, (request.layer,), request.start),
        dtype=grid.held[request.layer].dtype if grid.held else "",
        positions=read_only_ints(grid.first + columns * grid.per_column),
        tokens_per_column=grid.per_column,
        values_per_row=grid.per_row,
        query_heads=tuple(readers),
        tensor_label=tensor_label(layer.kind, request.lens),
        note=note or ("" if grid.held else no_rows(layer.kind, source.is_now)),
        took_ms=0.0,
        exact_from=0 if lens.part is None else source.exact_from(request.layer, lens.part),
        is_causal=layer.kind != "cross",
        **cells_at(canvas, places),
        **numbers,
    )


def numbers_of_head(canvas: Canvas, source: Source, memo: PictureMemo) -> dict[str, Any]:
    """The colour range of a head's layer, and the statistics of the rows that are drawn."""
    grid, request = canvas.grid, canvas.request
    assert grid is not None
    assert isinstance(request, HeadRequest)
    (magnitudes,) = memo.blocks.magnitudes([LENSES[request.lens]], source, grid.held)
    counted_to, statistics = canvas.statistics or (0, None)
    if statistics is None or not statistics.add(numbers_drawn(request, source, grid, range(counted_to, grid.stop))):
        statistics = HeadStatistics(numbers_drawn(request, source, grid, range(grid.first, grid.stop)))
    canvas.statistics = grid.stop, statistics
    return {"magnitudes": magnitudes, **statistics_of(statistics)}


def numbers_drawn(request: HeadRequest, source: Source, grid: Grid, span: range) -> torch.Tensor:
    """The numbers of a head's rows at some positions."""
    for alike in grid.alike:
        for rows in read_all(source, LENSES[request.lens], alike.layers, alike.held, span, grid.head):
            if rows.positions is None:
                return rows.numbers
            return rows.numbers[(rows.positions >= span.start) & (rows.positions < span.stop)]
    return torch.empty(0)


def statistics_of(statistics: HeadStatistics) -> dict[str, Any]:
    """Statistics of the numbers drawn as fields of a head's picture."""
    found = {name: getattr(statistics, name) for name in STATISTICS}
    return found | {"counts": read_only_ints(statistics.counts), "edges": read_only_floats(statistics.edges)}


def tensor_label(kind: str, lens: str) -> str:
    """The name of what a lens shows: latent attention caches a compressed latent and one rotary key instead of K and
    V."""
    if kind == "latent" and lens in PARTS:
        return "latent" if lens == "keys" else "rotary key"
    return LENSES[lens].label


def no_rows(kind: str, is_now: bool = True) -> str:
    """A note that says why a layer of this kind has no rows."""
    if kind == "linear" and not is_now:
        return "This layer keeps a recurrent state, which moves on with every token: go to this step to see it."
    if kind == "linear":
        return "This layer keeps a recurrent state of constant size, and no K and V."
    if kind == "shared":
        return "This layer reads the K and V of an earlier layer and keeps none of its own."
    return "This layer holds no K and V now."


def missing_note(source: Source, layer: int) -> str:
    """Why a layer has no rows of a suspended step; empty where it has them, or no step is suspended."""
    return source.half.note if source.half is not None and not source.half.has_passed(layer) else ""


# ---- recurrent states -----------------------------------------------------------------------------------------------


STATE_COLUMNS, STATE_ROWS = 64, 32  # most in the small picture of a state
STATE_MATRICES = 64  # most drawn of one layer; layers with a delta rule have one for each head


def state_pictures(source: Source, geometry: CacheGeometry) -> tuple[StatePicture, ...]:
    """The states of all layers that have one. Empty for an earlier step: earlier states are not kept."""
    layers = [layer.index for layer in geometry.layers if layer.kind == "linear" or layer.state_elements]
    return tuple(state_picture(index, matrix) for index in layers for matrix in source.states(index)[:STATE_MATRICES])


def state_picture(layer: int, matrix: StateMatrix) -> StatePicture:
    """The small picture of one part of a state."""
    values = landscape(matrix.values)
    columns, rows = values.shape
    low, high, _ = pooled(values[None], 0, per_cell(columns, STATE_COLUMNS), per_cell(rows, STATE_ROWS))
    largest = float(values.nan_to_num(0.0, 0.0, 0.0).abs().max()) if values.numel() else 0.0
    dtype = str(matrix.values.dtype).removeprefix("torch.")
    return StatePicture(
        layer, matrix.name, matrix.shape, dtype, read_only_floats(low[0]), read_only_floats(high[0]), largest
    )


def state_slice(request: HeadRequest, source: Source, geometry: CacheGeometry) -> HeadPicture | None:
    """The picture of a part of a recurrent layer's state now, where `kv_head` counts the parts; None where there is
    none."""
    began = time.perf_counter()
    states = source.states(request.layer) if geometry.layers[request.layer].kind == "linear" else ()
    if request.kv_head >= len(states):
        return None
    matrix = states[request.kv_head]
    values = landscape(matrix.values)
    per_column = per_cell(values.shape[0], request.max_columns)
    low, high, _ = pooled(values[None], 0, per_column, 1)
    return HeadPicture(
        request=request,
        provenance=source.exact_provenance,
        dtype=str(matrix.values.dtype).removeprefix("torch."),
        low=read_only_floats(low[0]),
        high=read_only_floats(high[0]),
        positions=read_only_ints(np.arange(low.shape[1]) * per_column),
        tokens_per_column=per_column,
        query_heads=(),
        tensor_label=matrix.name,
        note="",
        took_ms=ms_since(began),
        state_shape=matrix.shape,
        **statistics_of(HeadStatistics(values)),
    )


def landscape(values: torch.Tensor) -> torch.Tensor:
    """A matrix as `[columns, rows]` of a picture, with its longer side horizontal."""
    values = values.float()
    return values.mT if values.shape[0] < values.shape[1] else values


# ---- attention ------------------------------------------------------------------------------------------------------


class QueryWeights(NamedTuple):
    """The weights `[H, S]` of the newest query of one layer at one step, NaN where a row had been evicted, and its
    position; or what another lens has of the queries up to it. Without weights, `note` says why."""

    weights: torch.Tensor | None
    position: int
    provenance: Provenance
    note: str = ""
    first_query: int = 0
    queries_per_row: int = 1


def of_queries(request: AttentionRequest, source: Source) -> QueryWeights:
    """What a lens has of all queries that are known: of every head a number for each position, or of one head the
    weights by query, of which the largest of some stand in a row."""
    lens, newest, source = LENSES[request.lens], source.num_queries - 1, of_latest(source, request.latest)
    provenance = provenance_through(request.lens, source, [request.layer])
    is_map = lens.values == "tokens"
    if why := source.why_not or why_not(source, lens):
        return QueryWeights(None, newest, provenance, why)
    rows = read(source, lens, request.layer, head=request.head if is_map else None)
    if rows is None or not rows.numbers.numel():
        return QueryWeights(None, newest, provenance, f"There is no {lens.label} of this layer and head.")
    if not is_map:
        first = source.queries.first(source.num_queries) if source.queries is not None else 0
        return QueryWeights(rows.numbers[..., 0], newest, provenance, queries_words(source, lens), first)
    numbers = rows.numbers[0]
    per_row = -(-len(numbers) // max(1, request.max_rows))
    padded = torch.nn.functional.pad(numbers, (0, 0, 0, -len(numbers) % per_row), value=torch.nan)
    grouped = padded.reshape(-1, per_row, padded.shape[1])
    high, low = grouped.nan_to_num(-torch.inf).amax(1), grouped.nan_to_num(torch.inf).amin(1)
    found = torch.where(high.abs() >= low.abs(), high, low).masked_fill(high < low, torch.nan)  # else none was a number
    return QueryWeights(found, newest, provenance, queries_words(source, lens), rows.first, per_row)


def attention_picture(request: AttentionRequest, query: QueryWeights, geometry: CacheGeometry) -> AttentionPicture:
    """The newest query's weights of one layer at one step, as they were computed, or what another lens has of the
    queries up to it; or a difference, of which each column shows the number farthest from zero."""
    began = time.perf_counter()
    layer, is_difference = geometry.layers[request.layer], query.provenance == "difference"
    weights, positions, per_column = np.empty((0, 0), np.float32), np.empty(0, np.int64), 1
    absent: Ints | None = None
    top_positions: Ints | None = None
    top_weights: Floats | None = None
    entropy: Floats | None = None
    note, lens = query.note, LENSES[request.lens]
    if query.weights is None and not layer.num_heads:
        note = no_rows(layer.kind)
    elif query.weights is not None:
        row, base = held_columns(query.weights.float(), layer, query.position)
        end = base + row.shape[1]
        stop = end if request.stop is None else min(request.stop, end)
        first = min(max(request.start, base), max(base, stop - 1))
        per_column = max(1, -(-(stop - first) // max(1, request.max_columns)))
        shown = slice(first - base, stop - base)
        gone: torch.Tensor | None = None
        if bool(row.sum().isnan()):  # some may be, and reading them once is less than a flag for each
            is_nan = row.isnan()
            gone = is_nan if is_difference or lens.values == "tokens" else missing_rows(row)
        gone_here = None if gone is None else gone[:, shown]
        weights, absent = pooled_weights(row[:, shown], gone_here, per_column, is_signed=is_difference)
        positions = first + np.arange(weights.shape[1]) * per_column
        if not is_difference and lens.columns == "tokens":
            held = row if gone is None else row.masked_fill(gone, -1.0)
            top_positions, top_weights = largest_weights(held, base)
        if not is_difference and lens.reads == "weights":
            entropy = read_only_floats(entropy_of(row).cpu().numpy())
    return AttentionPicture(
        request=request,
        provenance=query.provenance,
        weights=read_only_floats(weights),
        positions=read_only_ints(positions),
        tokens_per_column=per_column,
        group_size=max(1, layer.num_heads // max(1, layer.num_kv_heads)),
        query_position=query.position,
        note=note,
        took_ms=ms_since(began),
        absent=absent,
        top_positions=top_positions,
        top_weights=top_weights,
        entropy=entropy,
        first_query=query.first_query,
        queries_per_row=query.queries_per_row,
        is_causal=layer.kind != "cross",
    )


def held_columns(row: torch.Tensor, layer: LayerGeometry, query_position: int) -> tuple[torch.Tensor, int]:
    """Weights `[H, S]` without the columns for which the layer has no rows, and the position of the first column: a
    cross layer has rows of the source only, any other layer up to the query."""
    if layer.kind == "cross":
        return row[:, : int((~row.isnan()).any(0).sum())], 0
    return row, query_position + 1 - row.shape[1]


# ---- rows and pages -------------------------------------------------------------------------------------------------


def row_picture(request: RowRequest, source: Source, geometry: CacheGeometry) -> RowPicture:
    """K and V of one position in all layers, exact."""
    began, position = time.perf_counter(), request.position
    span, lenses = range(position, position + 1), [LENSES[part] for part in PARTS]
    every = held_of_all(source, lenses[0], [layer.index for layer in geometry.attention_layers])
    held = {n: one for n, one in every.items() if one.positions is not None or one.first <= position < one.stop}
    keys, values = (rows_at_position(alike_of(held, lens, source, is_wall=True), lens, source, span) for lens in lenses)
    layers = [layer for layer in held if layer in keys and layer in values]
    evicted = [heads_without(held[layer], position) for layer in layers]
    dtype = held[layers[-1]].dtype if layers else ""
    note = source.half.note if source.half is not None and position >= source.half.had else ""
    note = source.why_not or note or ("" if layers else f"Position {position} is not in the cache.")
    coded_keys, coded_values = (tuple(source.exact_from(layer, part) > position for layer in layers) for part in PARTS)
    return RowPicture(
        request, provenance_of(source, layers, first=position), dtype, tuple(layers), tuple(keys[x] for x in layers),
        tuple(values[x] for x in layers), note, ms_since(began), tuple(evicted) if any(evicted) else (),
        coded_keys=coded_keys if any(coded_keys) else (), coded_values=coded_values if any(coded_values) else (),
    )  # fmt: skip


def rows_at_position(alike: Sequence[Alike], lens: Lens, source: Source, span: range) -> dict[int, Floats]:
    """K or V `[H_kv, D]` of the one position of `span`, by layer that holds it; NaN in heads that have evicted it."""
    found: dict[int, Floats] = {}
    for each in alike:
        for rows in read_all(source, lens, each.layers, each.held, span):
            numbers = rows.numbers.flatten(0, 1)
            positions = None if rows.positions is None else rows.positions.flatten(0, 1)
            row = row_at(Rows(numbers, rows.first, positions), span.start)
            if row is not None:
                row = row.view(*rows.numbers.shape[:2], -1)
                found |= zip(
                    [each.layers[n] for n in rows.places], map(read_only_floats, row.cpu().numpy()), strict=True
                )
    return found


def heads_without(held: Held, position: int) -> tuple[int, ...]:
    """The kv heads that have evicted a position which the others hold."""
    places = held.positions
    return () if places is None else tuple((~(places == position).any(1)).nonzero()[:, 0].tolist())


def table_picture(request: TableRequest, source: Source) -> TablePicture:
    """The pages of a sequence in logical order."""
    if not source.spec.is_paged:
        return TablePicture(request, 1, (), request.num_tokens, source.why_not or "This cache mode has no pages.")
    num_tokens, page_ids = source.pages()
    tables = tuple(read_only_ints(np.array(ids, np.int64)) for ids in page_ids)
    return TablePicture(request, source.spec.page_size, tables, num_tokens, source.why_not)


# ---- the largest numbers of K and V, and the tokens that receive most of the newest query's attention ---------------


def outliers_picture(
    request: OutliersRequest,
    source: Source,
    geometry: CacheGeometry,
    memo: PictureMemo,
    attention: Mapping[int, torch.Tensor],
    num_attended: int,
) -> OutliersPicture:
    """The list for the window. `attention` `[H, S]` by layer: weights of the newest of `num_attended` tokens, NaN where
    a row had been evicted."""
    began = time.perf_counter()
    held = held_of_all(source, LENSES["keys"], [layer.index for layer in geometry.attention_layers])
    keys, values = (memo.blocks.of(LENSES[part], source, held) for part in PARTS)
    return OutliersPicture(
        request=request,
        provenance=provenance_of(source, sorted(keys.keys() | values.keys())),
        keys=largest(keys, source, "keys", request.count, memo.peaks),
        values=largest(values, source, "values", request.count, memo.peaks),
        attended=most_attended(attention, geometry, request.count, num_attended),
        note=source.why_not or ("" if keys or values else "No K and V are held now."),
        took_ms=ms_since(began),
    )


def largest(
    counts: Mapping[int, LayerCount], source: Source, tensor: Part, how_many: int, known: Peaks
) -> tuple[Outlier, ...]:
    """The channels whose largest number is farthest beyond the colour range of their layer, one entry each. Not tokens
    and not bare numbers, because the same channel is large at many tokens, and layers differ in scale."""
    together = dict[Counts, list[tuple[int, int, float]]]()
    for layer, count in counts.items():
        limit = count.of.ranges[count.place][0]
        if limit > 0:
            together.setdefault(count.of, []).append((layer, count.place, limit))
    found: list[tuple[float, int, int, int, float]] = []
    for of, members in together.items():
        layers, places, limits_of = zip(*members, strict=True)
        peak = of.peak[as_slice(places)]
        ratios = (np.abs(peak) / np.array(limits_of)[:, None, None]).ravel()
        count = min(how_many, ratios.size)
        least = np.partition(ratios, -count)[-count]
        best = np.flatnonzero(ratios >= least)  # equal ones all: which are listed is decided by their places
        numbers, heads, channels = np.unravel_index(best, peak.shape)
        those = [layers[number] for number in numbers]
        columns = ratios[best], those, heads, channels, peak.ravel()[best]
        found += zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    return tuple([_located(source, tensor, known, *one) for one in sorted(found, key=_order)[:how_many]])


def _order(one: tuple[float, ...]) -> tuple[float, ...]:
    """Larger ratios first; where they are equal, by place."""
    return -one[0], *one[1:]


def _located(
    source: Source, tensor: Part, known: Peaks, ratio: float, layer: int, head: int, channel: int, peak: float
) -> Outlier:
    """The entry of a channel: the token at which its number is largest. That of a row which no later step overwrites is
    searched once."""
    place = tensor, layer, head, channel
    found = known.get(place)
    if found is None or found[1] != peak:
        found = _position_of_largest(source, tensor, layer, head, channel)
        if found[0] < source.num_final(layer, tensor):
            known[place] = found
    position, value = found
    is_coded = source.exact_from(layer, tensor) > position
    return Outlier(layer, head, channel, position, value, ratio, is_coded)


def _position_of_largest(source: Source, tensor: Part, layer: int, head: int, channel: int) -> tuple[int, float]:
    """The position at which a channel has its number farthest from zero, and that number."""
    rows = source.rows(layer, tensor, head=head)
    assert rows is not None, "a layer that was counted holds rows"
    column = rows.numbers[0, :, channel].float().nan_to_num(0.0, 0.0, 0.0)
    if rows.positions is not None:
        column = column.masked_fill(rows.positions[0] >= source.num_tokens, 0.0)
    slot = int(column.abs().argmax())
    return rows.first + slot if rows.positions is None else int(rows.positions[0, slot]), float(column[slot])


def most_attended(
    attention: Mapping[int, torch.Tensor], geometry: CacheGeometry, how_many: int, num_tokens: int
) -> tuple[Attended, ...]:
    """The positions with the largest mean weight over all layers and heads, each with the head that gave it most."""
    rows = on_one_device(attention.values())
    if not rows:
        return ()
    length = max([row.shape[1] for row in rows])
    # rows end at the newest token: a shorter row begins at a later position
    padded = [row if row.shape[1] == length else pad(row, (length - row.shape[1], 0)) for row in rows]
    aligned = torch.cat(padded).float().nan_to_num(0.0)
    owners = [(layer, head) for layer, row in zip(attention, rows, strict=True) for head in range(row.shape[0])]
    mean, first = aligned.mean(0), max(0, num_tokens - length)  # where every layer keeps a window
    weights, columns = mean.topk(min(how_many, length))
    most, givers = aligned[:, columns].max(0)
    found = []
    for column, weight, much, giver in zip(*(each.tolist() for each in (columns, weights, most, givers)), strict=True):
        layer, head = owners[giver]
        group = max(1, geometry.layers[layer].num_heads // max(1, geometry.layers[layer].num_kv_heads))
        found.append(Attended(first + column, weight, layer, head, head // group, much))
    return tuple(found)
