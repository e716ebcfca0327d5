"""One watched picture: what was last sent of it, and the update that makes it the present one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.cache.contract import Pair
from engine.cache.row_delta import RowDelta
from engine.look.magnitude_counts import LayerCount
from engine.look.magnitudes import of_pair, tensors_counted
from engine.look.reductions import per_cell
from engine.look.rows_at import rewrites
from engine.look.slices import Tile, provenance_of_head
from engine.look.tile_statistics import TileStatistics
from engine.look.updates import appended_head, appended_wall, changed_head, changed_wall
from engine.look.wall import has_no_size, provenance_of_wall
from engine.wire.commands import Watched
from engine.wire.requests import HeadRequest, RowRequest, SliceRequest, TableRequest, WallRequest
from engine.wire.slices import CellUpdate, HeadSlice, Slice, SliceUpdate, TableSlice, Unchanged, WallSlice

if TYPE_CHECKING:
    from engine.cache.sequence_cache import SequenceCache
    from engine.session.session import Session

Changes = Callable[["SequenceCache", int], "list[RowDelta] | None"]


@dataclass(eq=False)
class WatchedPicture:
    """A watched picture and what was last sent of it: the `request` that it answered; `piece`, the last slice (after an
    update, only with the changed cells; None if nothing was sent yet); and the `cache` from which it was taken. Of
    `num_tokens` rows, `num_counted` are included in its numbers about all rows. `statistics` of a head are made when
    the first row is appended."""

    watched: Watched
    request: SliceRequest | None = None
    piece: Slice | None = None
    cache: SequenceCache | None = None
    num_tokens: int = 0
    num_counted: int = 0
    statistics: TileStatistics | None = None


def update_of(
    session: Session, picture: WatchedPicture, request: SliceRequest, changes: Changes, *, is_counted: bool
) -> SliceUpdate | None:
    """The update that turns a picture into that of `request`; None where it has to be sent whole.
    `changes(cache, num_tokens)` gives what happened to the rows since. Numbers about all rows are updated only if
    `is_counted`."""
    cache, piece, before = session.cache_of(request.seq_id), picture.piece, picture.request
    if piece is None or picture.cache is not cache or cache.num_tokens < picture.num_tokens:
        return None
    if isinstance(piece, TableSlice):
        return unchanged_table(session, piece, request) if isinstance(request, TableRequest) else None
    if not isinstance(request, WallRequest | HeadRequest | RowRequest):
        return None
    # a picture of changes must also redraw the cells that the step before had changed
    since = before.previous_tokens if isinstance(before, WallRequest) and before.change else picture.num_tokens
    deltas = changes(cache, since)
    match piece, request:
        case _ if deltas is None:
            return None
        case WallSlice(), WallRequest():
            counted = picture.num_counted if is_counted else None
            return with_provenance(session, wall_update(session, piece, request, deltas, counted))
        case HeadSlice(), HeadRequest() if piece.low.shape[1]:
            delta = deltas[request.layer]
            update = head_update(session, picture, piece, request, delta, is_counted=is_counted)
            return with_provenance(session, update)
        case _, RowRequest() if not any(delta.touches(request.position) for delta in deltas):
            return Unchanged(request)
    return None


def with_provenance(session: Session, update: CellUpdate | None) -> CellUpdate | None:
    """An update that tells which rows of its picture are exact now: a step may have quantised some."""
    if update is None:
        return None
    request, piece = update.request, update.piece
    past = session.rows_at(request.seq_id, request.num_tokens)
    if isinstance(request, WallRequest):
        assert isinstance(piece, WallSlice)
        facts = provenance_of_wall(past, request, piece.layers)
    else:
        facts = provenance_of_head(past, request)
    return replace(update, piece=replace(piece, **facts))


def unchanged_table(session: Session, piece: TableSlice, request: TableRequest) -> Unchanged | None:
    """`Unchanged` if no page has come or gone, so that the table is not sent with every token that fills a page."""
    table = session.take_slice(request)
    assert isinstance(table, TableSlice)
    are_same = len(table.tables) == len(piece.tables) and all(
        a.shape == b.shape and bool((a == b).all()) for a, b in zip(table.tables, piece.tables, strict=True)
    )
    return Unchanged(request) if are_same else None


def wall_update(
    session: Session, piece: WallSlice, request: WallRequest, deltas: list[RowDelta], counted: int | None
) -> CellUpdate | None:
    """The cells of a wall in which steps have changed rows, as long as equally many tokens share a column. If `counted`
    is given, its magnitudes include that many rows and are to include all; if None, they stay."""
    cache, size = session.cache_of(request.seq_id), piece.tokens_per_column
    is_pooled_alike = per_cell(request.num_tokens, request.max_columns) == size
    if not (is_pooled_alike or has_no_size(request)):
        return None
    has_all_rows = piece.layers and not piece.states and piece.absent is None and piece.held is None
    is_appended = has_all_rows and all(delta.is_plain for delta in deltas)
    tells_rewritten = request.change and rewrites(cache)
    if is_appended and deltas[piece.layers[0]].written and not tells_rewritten and not has_no_size(request):
        first = deltas[piece.layers[0]].written.start // size * size
        start = first if counted is None else min(first, counted)
        rows = cache.all_newest_rows(start)
        if set(piece.layers) <= rows.keys():
            rows = {layer: rows[layer] for layer in piece.layers}
            tensors = () if counted is None else tensors_counted(request, cache.spec)
            counts = session.magnitudes.follow(request.seq_id, cache, rows, start, tensors)
            if counts is not None:
                return appended_wall(request, piece, first, skip_rows(rows, first - start), counts)
    past, geometry = session.rows_at(request.seq_id, request.num_tokens), session.model.info.geometry
    magnitudes = piece.magnitudes, piece.other_magnitudes
    if counted is not None:
        magnitudes = session.magnitudes.of_wall(request, past, geometry)
    return changed_wall(request, piece, deltas, past, geometry, magnitudes)


def skip_rows(rows: Mapping[int, Pair], num_rows: int) -> Mapping[int, Pair]:
    """Rows by layer, K and V `[H_kv, T, D]`, without the first `num_rows`."""
    return (
        {layer: (keys[:, num_rows:], values[:, num_rows:]) for layer, (keys, values) in rows.items()}
        if num_rows
        else rows
    )


def head_update(
    session: Session,
    picture: WatchedPicture,
    piece: HeadSlice,
    request: HeadRequest,
    delta: RowDelta,
    *,
    is_counted: bool,
) -> CellUpdate | None:
    """The columns of a head in which steps have changed rows, as long as equally many tokens share a column."""
    if delta.is_plain and delta.written and piece.absent is None:
        update = appended_head_of(session, picture, piece, request, is_counted=is_counted)
        if update is not None:
            return update
    picture.statistics = None
    past = session.rows_at(request.seq_id, request.num_tokens)
    magnitudes = session.magnitudes.of_head(request, past) if is_counted else piece.magnitudes
    return changed_head(request, piece, delta, past, magnitudes, is_counted=is_counted)


def appended_head_of(
    session: Session, picture: WatchedPicture, piece: HeadSlice, request: HeadRequest, *, is_counted: bool
) -> CellUpdate | None:
    """The new columns of a head to which rows were appended; None where it has scrolled, or more tokens now share a
    column."""
    size, cache, before = piece.tokens_per_column, session.cache_of(request.seq_id), picture.request
    assert isinstance(before, HeadRequest)
    stop, had = min(request.stop, request.num_tokens), min(before.stop, picture.num_tokens)
    if (
        not request.start == before.start == piece.positions[0]
        or request.start > had
        or per_cell(stop - request.start, request.max_columns) != size
    ):
        return None
    first = min(request.start + (had - request.start) // size * size, cache.num_tokens - 1)
    counted = min(before.stop, picture.num_counted) if is_counted else had  # the first row that is not counted yet
    start = min(first, max(request.start, counted))
    newest = cache.newest_rows(request.layer, start)
    if newest is None:
        return None
    pair = newest.keys[0], newest.values[0]
    head = min(request.kv_head, pair[0].shape[0] - 1)
    tile = of_pair(pair, request.tensor)[head].float()[: max(0, stop - start)]
    count: LayerCount | None = None
    if is_counted:
        counts = session.magnitudes.follow(request.seq_id, cache, {request.layer: pair}, start, (request.tensor,))
        if counts is None:
            return None
        count = counts[request.tensor][request.layer]
        if picture.statistics is None or not picture.statistics.add(tile[max(0, counted - start) :]):
            past = session.rows_at(request.seq_id, request.num_tokens)
            picture.statistics = TileStatistics(Tile.of(request, past).values)
    statistics = picture.statistics if is_counted else None
    return appended_head(request, piece, had, tile[first - start :] if stop > had else tile[:0], statistics, count)
