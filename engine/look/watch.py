"""Pictures that are kept up to date: after a step the new columns of each, or, where that cannot be told, all of it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.cache.row_delta import RowDelta
from engine.errors import InputError
from engine.look.magnitude_counts import LayerCount
from engine.look.magnitudes import of_pair, tensors_counted
from engine.look.reductions import per_cell
from engine.look.rows_at import rewrites
from engine.look.slices import Tile, within
from engine.look.tile_statistics import TileStatistics
from engine.look.updates import appended_head, appended_wall, changed_head, changed_wall
from engine.look.wall import has_no_size
from engine.wire.commands import PICTURES_PER_SECOND, SetPace, Watched
from engine.wire.records import StepRecord
from engine.wire.requests import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    RowRequest,
    SliceRequest,
    TableRequest,
    WallRequest,
)
from engine.wire.slices import CellUpdate, HeadSlice, Slice, SliceUpdate, TableSlice, Unchanged, WallSlice

if TYPE_CHECKING:
    from engine.cache.sequence_cache import SequenceCache
    from engine.session.session import Session

Changes = Callable[["SequenceCache", int], "list[RowDelta] | None"]

# Pictures that were taken are followed by this many times their own cost without any: looking stays under 7 %, and
# where decoding is slower than 20 a second every token has its pictures.
REST_RATIO = 14.0


@dataclass(eq=False)
class WatchedPicture:
    """A watched picture and what was last sent of it: the request that it answered, the last slice, of which an update
    has but the cells that it changed, and the cache it was taken from. `statistics` of a head are made with the first
    row that is appended. `piece` None: it was never sent."""

    watched: Watched
    request: SliceRequest | None = None
    piece: Slice | None = None
    cache: SequenceCache | None = None
    num_tokens: int = 0
    statistics: TileStatistics | None = None


class Watcher:
    """What a window watches. It is handed every step, and says what of the pictures is to be sent.

    All of them are sent together, as they are after the same step: what stands side by side is of one moment.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cost: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cost = clock, cost
        self._pictures: list[WatchedPicture] = []
        self._interval_s = 1 / PICTURES_PER_SECOND
        self._due = 0.0
        self._previous: dict[int, int] = {}  # the tokens that a sequence had before its newest step
        self._is_late = False  # a step was taken since they were sent
        self._shows_half = False  # what was sent last is of a step that was suspended
        self._failures: list[tuple[int, Exception]] = []

    def set_pace(self, command: SetPace) -> None:
        """How often pictures are sent while the engine runs."""
        rate = command.pictures_per_second
        self._interval_s = 0.0 if rate is None else 1 / rate
        self._due = 0.0

    def watch(self, session: Session, pictures: tuple[Watched, ...]) -> list[Slice | SliceUpdate]:
        """Watch these and no others: those that were not watched before, whole."""
        before = {picture.watched: picture for picture in self._pictures}
        self._pictures = [before.get(watched, WatchedPicture(watched)) for watched in pictures]
        return self._sent(session, [picture for picture in self._pictures if picture.piece is None])

    def take_failures(self) -> list[tuple[int, Exception]]:
        """What could not be taken since this was last asked, by the id of the picture: it is watched no more, the
        others are."""
        failures, self._failures = self._failures, []
        return failures

    @property
    def is_due(self) -> bool:
        """Whether pictures are to be sent with the next step that is shown."""
        return bool(self._pictures) and self._clock() >= self._due

    def forget(self) -> None:
        """The present is another one: another history, another cache, an earlier step."""
        self._pictures.clear()
        self._previous.clear()
        self._is_late = False

    def doubt(self) -> None:
        """Rows may not be those that were sent, after a step that failed or was suspended: what is sent next is sent
        whole."""
        for picture in self._pictures:
            picture.cache = picture.request = None

    def at_phase(self, session: Session) -> list[Slice | SliceUpdate]:
        """A step is suspended: every picture, whole, as far as it has come."""
        self.doubt()
        self._is_late, self._shows_half = False, True
        return self._sent(session, self._pictures)

    def undone(self, session: Session) -> list[Slice | SliceUpdate]:
        """A step failed or was given up: whoever saw a part of it sees at once what stood before it."""
        self.doubt()
        found = self._sent(session, self._pictures) if self._shows_half else []
        self._shows_half = False
        return found

    def after_step(
        self, session: Session, record: StepRecord, *, is_last: bool, is_behind: bool = False
    ) -> list[Slice | SliceUpdate]:
        """What to send after a step; nothing between two pictures, or to one who is behind with those before. The last
        step before a rest is always shown."""
        self._previous.update({part.seq_id: part.first_position for part in record.sequences})
        for picture in self._pictures:
            if picture.watched.request.seq_id in record.preempted:
                picture.cache = None
        if self._shows_half:  # rows were shown before they were coded or dropped
            self._shows_half = False
            self.doubt()
        self._is_late = True
        is_due = self._clock() >= self._due and not is_behind
        return self.catch_up(session) if is_last or is_due else []

    def catch_up(self, session: Session) -> list[Slice | SliceUpdate]:
        """What the steps have changed since it was last sent."""
        if not (self._is_late and self._pictures):
            return []
        began = self._cost()  # not the time that passes: another process may have had the processor meanwhile
        found = self._sent(session, self._pictures)
        now, cost_s = self._clock(), self._cost() - began
        is_behind = now - self._due > self._interval_s
        regular = now + self._interval_s if is_behind else self._due + self._interval_s
        self._due = max(regular, now + REST_RATIO * cost_s) if self._interval_s else now
        self._is_late = False
        return found

    def _sent(self, session: Session, pictures: list[WatchedPicture]) -> list[Slice | SliceUpdate]:
        """What is to be sent of each; one that fails does not take the others with it."""
        found: list[Slice | SliceUpdate] = []
        failed: list[WatchedPicture] = []
        changes = functools.cache(lambda seen, since: seen.changes_since(since))  # of several pictures at once
        for picture in pictures:
            try:
                found += self._news_of(session, picture, changes)
            except Exception as error:
                failed.append(picture)
                self._failures.append((picture.watched.id, error))
        self._pictures = [picture for picture in self._pictures if picture not in failed]
        return found

    def _news_of(self, session: Session, picture: WatchedPicture, changes: Changes) -> Iterator[Slice | SliceUpdate]:
        request = self._request_now(session, picture.watched)
        if request is None or request == picture.request:
            return
        update = update_of(session, picture, request, changes)
        if update is None:
            picture.piece, picture.statistics = session.take_slice(request), None
        elif isinstance(update, CellUpdate):
            picture.piece = update.piece
        picture.request, picture.cache = request, session.cache_of(request.seq_id)
        picture.num_tokens = picture.cache.num_tokens
        found = update or picture.piece
        assert found is not None
        yield replace(found, reply_to=picture.watched.id)

    def _request_now(self, session: Session, watched: Watched) -> SliceRequest | None:
        """What to ask for now; None where the sequence, or what is asked of it, is not there."""
        seq_id = watched.request.seq_id
        try:
            count, half = session.slices.num_tokens(seq_id), session.slices.half_written(seq_id)
        except InputError:  # it was removed
            return None
        if half is not None:
            return request_now(watched, count, half.step, session.cache_of(seq_id).num_tokens)
        return request_now(watched, count, session.last_step, self._previous.get(seq_id))


def request_now(watched: Watched, count: int, last_step: int | None, previous: int | None) -> SliceRequest | None:
    """What to ask for when the sequence has so many tokens, `previous` before its newest step; None where what is asked
    of it is not there."""
    request, extent = watched.request, watched.extent
    match request:
        case WallRequest():
            before = (request.previous_tokens if previous is None else previous) if request.change else count
            return replace(request, num_tokens=count, previous_tokens=min(before, count))
        case HeadRequest():
            start, stop = moved(request.start, request.stop, count, extent)
            return within(replace(request, num_tokens=count, start=start, stop=stop), count)
        case AttentionRequest():
            step = last_step if last_step is not None else request.step
            if extent == "all":
                return replace(request, step=step, start=0, stop=None)
            start, stop = moved(request.start, request.stop or count, count, extent)
            return replace(request, step=step, start=start, stop=stop)
        case RowRequest():
            return replace(request, num_tokens=count) if request.position < count else None
        case TableRequest():
            return replace(request, num_tokens=count)
        case OutliersRequest():
            step = last_step if last_step is not None else request.step
            return replace(request, num_tokens=count, step=step)


def moved(start: int, stop: int, count: int, extent: str) -> tuple[int, int]:
    """The positions `start … stop` of a picture once its sequence has `count` tokens."""
    if extent == "all":
        return 0, count
    return (max(0, count - (stop - start)), count) if extent == "newest" else (start, stop)


def update_of(session: Session, picture: WatchedPicture, request: SliceRequest, changes: Changes) -> SliceUpdate | None:
    """What a picture lacks to be that of `request`, `changes` being those of a cache since it had so many tokens; None
    where it has to be sent whole."""
    cache, piece, before = session.cache_of(request.seq_id), picture.piece, picture.request
    if piece is None or picture.cache is not cache or cache.num_tokens < picture.num_tokens:
        return None
    if isinstance(piece, TableSlice):
        return unchanged_table(session, piece, request) if isinstance(request, TableRequest) else None
    if not isinstance(request, WallRequest | HeadRequest | RowRequest):
        return None
    if piece.provenance != session.past(request.seq_id, request.num_tokens).provenance:
        return None  # the first rows were coded: all of the picture is said to be decoded from now on
    # a picture of a change is drawn anew where the step before it did something, too
    since = before.previous_tokens if isinstance(before, WallRequest) and before.change else picture.num_tokens
    deltas = changes(cache, since)
    match piece, request:
        case _ if deltas is None:
            return None
        case WallSlice(), WallRequest():
            return wall_update(session, piece, request, deltas)
        case HeadSlice(), HeadRequest() if piece.low.shape[1]:
            return head_update(session, picture, piece, request, deltas[request.layer])
        case _, RowRequest() if not any(delta.touches(request.position) for delta in deltas):
            return Unchanged(request)
    return None


def unchanged_table(session: Session, piece: TableSlice, request: TableRequest) -> Unchanged | None:
    """A page table is sent when a page has come or gone, not with every token that fills one."""
    table = session.take_slice(request)
    assert isinstance(table, TableSlice)
    are_same = len(table.tables) == len(piece.tables) and all(
        a.shape == b.shape and bool((a == b).all()) for a, b in zip(table.tables, piece.tables, strict=True)
    )
    return Unchanged(request) if are_same else None


def wall_update(session: Session, piece: WallSlice, request: WallRequest, deltas: list[RowDelta]) -> CellUpdate | None:
    """The cells of a wall whose rows the steps have touched, while as many tokens share a column."""
    cache, size = session.cache_of(request.seq_id), piece.tokens_per_column
    is_pooled_alike = per_cell(request.num_tokens, request.max_columns) == size
    if not (is_pooled_alike or has_no_size(request)):
        return None
    is_appended = (
        bool(piece.layers) and not piece.states and piece.absent is None and all(delta.is_plain for delta in deltas)
    )
    tells_rewritten = request.change and rewrites(cache)
    if is_appended and not tells_rewritten and not has_no_size(request):
        first = deltas[piece.layers[0]].written.start // size * size
        rows = cache.all_newest_rows(first)
        if set(piece.layers) <= rows.keys():
            rows = {layer: rows[layer] for layer in piece.layers}
            counts = session.magnitudes.follow(request.seq_id, cache, rows, first, tensors_counted(request, cache.spec))
            if counts is not None:
                return appended_wall(request, piece, first, rows, counts)
    past, geometry = session.past(request.seq_id, request.num_tokens), session.model.info.geometry
    magnitudes = session.magnitudes.of_wall(request, past, geometry)
    return changed_wall(request, piece, deltas, past, geometry, magnitudes)


def head_update(
    session: Session, picture: WatchedPicture, piece: HeadSlice, request: HeadRequest, delta: RowDelta
) -> CellUpdate | None:
    """The columns of a head whose rows the steps have touched, while as many tokens share one."""
    if delta.is_plain and piece.absent is None and (update := appended_head_of(session, picture, piece, request)):
        return update
    picture.statistics = None
    past = session.past(request.seq_id, request.num_tokens)
    return changed_head(request, piece, delta, past, session.magnitudes.of_head(request, past))


def appended_head_of(
    session: Session, picture: WatchedPicture, piece: HeadSlice, request: HeadRequest
) -> CellUpdate | None:
    """The new columns of a head to which rows were appended; None where it moved, or more tokens share a column."""
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
    newest = cache.newest_rows(request.layer, first)
    if newest is None:
        return None
    pair = newest.keys[0], newest.values[0]
    head = min(request.kv_head, pair[0].shape[0] - 1)
    counts = session.magnitudes.follow(request.seq_id, cache, {request.layer: pair}, first, (request.tensor,))
    if counts is None:
        return None
    tile = of_pair(pair, request.tensor)[head].float()[: max(0, stop - first)]
    if picture.statistics is None or not picture.statistics.add(tile[had - first :]):
        past = session.past(request.seq_id, request.num_tokens)
        picture.statistics = TileStatistics(Tile.of(request, past).values)
    count: LayerCount = counts[request.tensor][request.layer]
    return appended_head(request, piece, had, tile if stop > had else tile[:0], picture.statistics, count)
