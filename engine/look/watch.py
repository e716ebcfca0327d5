"""Pictures that are kept up to date: after a step the new columns of each, or, where that cannot be told, all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.look.magnitude_counts import LayerCount
from engine.look.magnitudes import of_pair, writes_rows_once
from engine.look.slices import within
from engine.look.tile_statistics import TileStatistics
from engine.look.updates import head_update, per_column, wall_update
from engine.wire.commands import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    RowRequest,
    SetPace,
    SliceRequest,
    TableRequest,
    TensorName,
    WallRequest,
    Watched,
)
from engine.wire.records import StepRecord
from engine.wire.slices import HeadSlice, Slice, SliceUpdate, TableSlice, Unchanged, WallSlice

if TYPE_CHECKING:
    from engine.cache.sequence_cache import SequenceCache
    from engine.session.session import Session

PICTURES_PER_SECOND = 25.0
# Pictures that were taken are followed by this many times their own cost without any: looking stays under 7 %, and
# where decoding is slower than 20 a second every token has its pictures.
REST_RATIO = 14.0


@dataclass(eq=False)
class Picture:
    """A watched picture and what was last sent of it: the request that it answered, the last whole slice, the cache it
    was taken from. `statistics` of a head are made with its first update. `piece` None: it was never sent."""

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
        self._pictures: list[Picture] = []
        self._interval_s = 1 / PICTURES_PER_SECOND
        self._due = 0.0
        self._previous: dict[int, int] = {}  # the tokens that a sequence had before its newest step
        self._is_late = False  # a step was taken since they were sent
        self._failures: list[tuple[int, Exception]] = []

    def set_pace(self, command: SetPace) -> None:
        """How often pictures are sent while the engine runs."""
        rate = command.pictures_per_second
        self._interval_s = 0.0 if rate is None else 1 / rate
        self._due = 0.0

    def watch(self, session: Session, pictures: tuple[Watched, ...]) -> list[Slice | SliceUpdate]:
        """Watch these and no others: those that were not watched before, whole."""
        before = {picture.watched: picture for picture in self._pictures}
        self._pictures = [before.get(watched, Picture(watched)) for watched in pictures]
        return self._sent(session, [picture for picture in self._pictures if picture.piece is None])

    def take_failures(self) -> list[tuple[int, Exception]]:
        """What could not be taken since this was last asked, by the id of the picture: it is watched no more, the
        others are."""
        failures, self._failures = self._failures, []
        return failures

    def forget(self) -> None:
        """The present is another one: another history, another cache, an earlier step."""
        self._pictures.clear()
        self._previous.clear()
        self._is_late = False

    def doubt(self) -> None:
        """A step failed, and rows may have been computed anew: whatever is sent next is sent whole."""
        for picture in self._pictures:
            picture.cache = None

    def after_step(self, session: Session, record: StepRecord, *, is_last: bool) -> list[Slice | SliceUpdate]:
        """What to send after a step; nothing between two pictures. The last step before a rest is always shown."""
        self._previous.update({part.seq_id: part.first_position for part in record.sequences})
        for picture in self._pictures:
            if picture.watched.request.seq_id in record.preempted:
                picture.cache = None
        self._is_late = True
        return self.catch_up(session) if is_last or self._clock() >= self._due else []

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

    def _sent(self, session: Session, pictures: list[Picture]) -> list[Slice | SliceUpdate]:
        """What is to be sent of each; one that fails does not take the others with it."""
        found: list[Slice | SliceUpdate] = []
        failed: list[Picture] = []
        for picture in pictures:
            try:
                found += self._news_of(session, picture)
            except Exception as error:
                failed.append(picture)
                self._failures.append((picture.watched.id, error))
        self._pictures = [picture for picture in self._pictures if picture not in failed]
        return found

    def _news_of(self, session: Session, picture: Picture) -> Iterator[Slice | SliceUpdate]:
        request = self._request_now(session, picture.watched)
        if request is None or request == picture.request:
            return
        update = update_of(session, picture, request)
        if update is None:
            picture.piece, picture.statistics = session.take_slice(request), None
        picture.request, picture.cache = request, session.cache_of(request.seq_id)
        picture.num_tokens = picture.cache.num_tokens
        found = update or picture.piece
        assert found is not None
        yield replace(found, reply_to=picture.watched.id)

    def _request_now(self, session: Session, watched: Watched) -> SliceRequest | None:
        """What to ask for now; None where the sequence, or what is asked of it, is not there."""
        request, extent = watched.request, watched.extent
        try:
            count = session.cache_of(request.seq_id).num_tokens
        except InputError:  # it was removed
            return None
        match request:
            case WallRequest():
                previous = self._previous.get(request.seq_id, request.previous_tokens) if request.change else count
                return replace(request, num_tokens=count, previous_tokens=min(previous, count))
            case HeadRequest():
                start, stop = moved(request.start, request.stop, count, extent)
                return within(replace(request, num_tokens=count, start=start, stop=stop), count)
            case AttentionRequest():
                step = session.last_step if session.last_step is not None else request.step
                if extent == "all":
                    return replace(request, step=step, start=0, stop=None)
                start, stop = moved(request.start, request.stop or count, count, extent)
                return replace(request, step=step, start=start, stop=stop)
            case RowRequest():
                return replace(request, num_tokens=count) if request.position < count else None
            case TableRequest():
                return replace(request, num_tokens=count)
            case OutliersRequest():
                step = session.last_step if session.last_step is not None else request.step
                return replace(request, num_tokens=count, step=step)


def moved(start: int, stop: int, count: int, extent: str) -> tuple[int, int]:
    """The positions `start … stop` of a picture once its sequence has `count` tokens."""
    if extent == "all":
        return 0, count
    return (max(0, count - (stop - start)), count) if extent == "newest" else (start, stop)


def update_of(session: Session, picture: Picture, request: SliceRequest) -> SliceUpdate | None:
    """What a picture lacks to be that of `request`; None where it has to be sent whole."""
    cache, piece = session.cache_of(request.seq_id), picture.piece
    if piece is None or picture.cache is not cache or cache.num_tokens < picture.num_tokens:
        return None
    if isinstance(piece, TableSlice) and isinstance(request, TableRequest):
        return unchanged_table(session, piece, request)
    if not (writes_rows_once(cache) and keeps_every_row(session, request.seq_id)):
        return None
    match piece, request:
        case WallSlice(), WallRequest() if request.max_columns * request.max_rows <= 1:  # of no size: see `holders`
            return Unchanged(request)
        case WallSlice(), WallRequest(change=False):
            return wall_update_of(session, picture, piece, request)
        case HeadSlice(), HeadRequest() if picture.watched.extent != "newest":
            return head_update_of(session, picture, piece, request)
        case _, RowRequest():
            return Unchanged(request)
    return None


def unchanged_table(session: Session, piece: TableSlice, request: TableRequest) -> Unchanged | None:
    """A page table is sent when a page has come or gone, not with every token that fills one."""
    table = session.take_slice(request)
    assert isinstance(table, TableSlice)
    are_same = len(table.tables) == len(piece.tables) and all(
        a.shape == b.shape and bool((a == b).all()) for a, b in zip(table.tables, piece.tables, strict=True)
    )
    return Unchanged(request) if are_same and table.note == piece.note else None


def keeps_every_row(session: Session, seq_id: int) -> bool:
    """Whether no layer has let a row go: those with a window do once it is full."""
    windows = [layer.window for layer in session.model.info.geometry.attention_layers if layer.window is not None]
    return not windows or session.cache_of(seq_id).num_tokens < min(windows) - 1


def wall_update_of(session: Session, picture: Picture, piece: WallSlice, request: WallRequest) -> SliceUpdate | None:
    """The new columns of the wall, while as many tokens share one."""
    size, cache = piece.tokens_per_column, session.cache_of(request.seq_id)
    if per_column(request.num_tokens, request.max_columns) != size or not piece.layers:
        return None
    first = picture.num_tokens // size * size
    rows = cache.all_newest_rows(first)
    if not set(piece.layers) <= rows.keys():
        return None
    rows = {layer: rows[layer] for layer in piece.layers}
    tensors: tuple[TensorName, ...] = ("keys", "values")
    counts = session.magnitudes.follow(request.seq_id, cache, rows, first, tensors)
    return wall_update(request, piece, picture.num_tokens, rows, counts) if counts is not None else None


def head_update_of(session: Session, picture: Picture, piece: HeadSlice, request: HeadRequest) -> SliceUpdate | None:
    """The new columns of a head, while as many tokens share one."""
    size, cache, before = piece.tokens_per_column, session.cache_of(request.seq_id), picture.request
    assert isinstance(before, HeadRequest)
    stop, had = min(request.stop, request.num_tokens), min(before.stop, picture.num_tokens)
    if (
        request.start != before.start
        or request.start > had
        or per_column(stop - request.start, request.max_columns) != size
        or not piece.low.size
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
    if picture.statistics is None or not picture.statistics.add(tile[had - first :].cpu().numpy()):
        picture.statistics = tile_statistics(cache, request, head, stop)
    count: LayerCount = counts[request.tensor][request.layer]
    shown = tile if stop > had else tile[:0]
    return head_update(request, piece, had, shown, picture.statistics, count)


def tile_statistics(cache: SequenceCache, request: HeadRequest, head: int, stop: int) -> TileStatistics:
    """Those of all rows of a head's tile, counted anew."""
    rows = cache.newest_rows(request.layer, request.start)
    tile: torch.Tensor = torch.empty(0, 0)
    if rows is not None:
        tile = of_pair((rows.keys[0], rows.values[0]), request.tensor)[head, : stop - request.start].float()
    return TileStatistics(tile.cpu().numpy())
