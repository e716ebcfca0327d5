"""Keeps the pictures that a window watches up to date: after a step it sends the changed columns of each, or the whole
picture where these are unknown."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.look.canvas import Canvas
from engine.look.finer import Finer, coarser, rank_of, size_of
from engine.wire.commands import PICTURES_PER_SECOND, SetPace, Watched
from engine.wire.pictures import (
    AttentionRequest,
    CellUpdate,
    HeadPicture,
    HeadRequest,
    OutliersRequest,
    Picture,
    PictureRequest,
    PictureUpdate,
    RowPicture,
    RowRequest,
    TablePicture,
    TableRequest,
    Unchanged,
    WallPicture,
    WallRequest,
)
from engine.wire.records import StepRecord

if TYPE_CHECKING:
    from engine.look.source import Source
    from engine.session.pictures import VisibleSequence
    from engine.session.session import Session

# After pictures were made, none are made for this many times their cost: they take less than 7 % of the time. Where
# decoding is slower than 20 tokens a second, every token still has its pictures.
REST_RATIO = 14.0

# Numbers about all rows (colour ranges, histograms, largest numbers) are updated only as often as other text during a
# run; when the engine stops they are brought up to date.
COUNTS_PER_SECOND = 4


@dataclass(eq=False)
class WatchedPicture:
    """A watched picture and what was last sent of it: the `request` that it answered, the picture that was `sent`
    (after an update only with the changed cells; None: send it whole), and the `source` that it was made of.
    `num_counted` rows are included in its numbers about all rows. Where a slow line cannot carry it in time, `coarser`
    is what is sent in its place, until it has gone itself or the line carries another number of `most_bytes`."""

    watched: Watched
    request: PictureRequest | None = None
    sent: Picture | None = None
    source: Source | None = None
    num_counted: int = 0
    canvas: Canvas = field(default_factory=Canvas)
    coarser: WatchedPicture | None = None
    most_bytes: int = 0

    @property
    def is_owed(self) -> bool:
        """Whether only the coarser one was sent."""
        return self.coarser is not None and self.source is None

    def invalidate(self) -> None:
        """Send it whole the next time, because its rows may not be those that were sent."""
        self.request = self.source = None
        self.canvas.forget()
        if self.coarser is not None:
            self.coarser.invalidate()


class Watcher:
    """The pictures that a window watches. It is called after every step, and returns what is to be sent of them.

    All of them are sent together and after the same step, so that pictures side by side are of the same step. Those
    that are too large for a slow line are coarser during a run, and follow whole when no step does.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cost: Callable[[], float] = time.thread_time,
        finer: Finer | None = None,
    ) -> None:
        self._clock, self._cost, self._finer = clock, cost, finer
        self._pictures: list[WatchedPicture] = []
        self._interval_s = 1 / PICTURES_PER_SECOND
        self._due = self._counts_due = 0.0
        self._previous: dict[int, int] = {}  # by sequence, its number of tokens before its newest step
        self._is_late = False  # there was a step since pictures were sent
        self._is_uncounted = False  # numbers about all rows do not yet include all rows that were sent
        self._shows_half = False  # the latest pictures are of a suspended step
        self._failures: list[tuple[int, Exception]] = []

    def set_pace(self, command: SetPace) -> None:
        """Set how often pictures are sent while the engine runs."""
        rate = command.pictures_per_second
        self._interval_s = 0.0 if rate is None else 1 / rate
        self._due = 0.0

    def watch(self, session: Session, pictures: tuple[Watched, ...]) -> list[Picture | PictureUpdate]:
        """Watch these pictures and no others; returns those that are new, whole."""
        before = {picture.watched: picture for picture in self._pictures}
        self._pictures = [before.get(watched, WatchedPicture(watched)) for watched in pictures]
        self._drop(*(watched.id for watched in before if watched not in pictures))
        self._drop(*((type(watched.request), None) for watched in pictures))  # those that were taken of them
        return self._updates_for(session, [picture for picture in self._pictures if picture.sent is None])

    def take_failures(self) -> list[tuple[int, Exception]]:
        """The pictures that failed since the last call, by id, with their errors: these are no longer watched."""
        failures, self._failures = self._failures, []
        return failures

    @property
    def is_due(self) -> bool:
        """Whether pictures are to be sent with the next step."""
        return bool(self._pictures) and self._clock() >= self._due

    def forget(self) -> None:
        """Watch nothing any more, because another history, cache or step has become the present."""
        self._drop(*(picture.watched.id for picture in self._pictures))
        self._pictures.clear()
        self._previous.clear()
        self._is_late = self._is_uncounted = False

    def _drop(self, *whole: Hashable) -> None:
        """Send none of these any more."""
        for each in whole:
            if self._finer is not None:
                self._finer.drop(each)

    def invalidate(self) -> None:
        """After a failed or suspended step, send every picture whole the next time."""
        for picture in self._pictures:
            picture.invalidate()

    def at_phase(self, session: Session) -> list[Picture | PictureUpdate]:
        """Every picture, whole, of a step that is suspended."""
        self.invalidate()
        self._is_late, self._shows_half = False, True
        return self._updates_for(session, self._pictures, is_last=True)

    def undone(self, session: Session) -> list[Picture | PictureUpdate]:
        """After a step that failed or was given up: if a part of it was shown, every picture as it was before it."""
        self.invalidate()
        found = self._updates_for(session, self._pictures) if self._shows_half else []
        self._shows_half = False
        return found

    def after_step(
        self, session: Session, record: StepRecord, *, is_last: bool, is_behind: bool = False
    ) -> list[Picture | PictureUpdate]:
        """What to send after a step: nothing if pictures are not due, or if the client is behind with the ones before.
        After the last step of a run everything is sent."""
        self._previous.update({part.seq_id: part.first_position for part in record.sequences})
        for picture in self._pictures:
            if picture.watched.request.seq_id in record.preempted:
                picture.invalidate()
        if self._shows_half:  # rows were shown that have since been quantised or evicted
            self._shows_half = False
            self.invalidate()
        self._is_late = True
        if is_last:
            return self.catch_up(session)
        began = self._clock()
        if not self._pictures or is_behind or began < self._due:
            return []
        return self._catch_up(session, is_counted=not self._interval_s or began >= self._counts_due)

    def catch_up(self, session: Session) -> list[Picture | PictureUpdate]:
        """What has changed since pictures were last sent, when no step follows."""
        is_owed = self._is_late or self._is_uncounted or any(each.is_owed for each in self._pictures)
        return self._catch_up(session, is_counted=True, is_last=True) if is_owed else []

    def _catch_up(self, session: Session, *, is_counted: bool, is_last: bool = False) -> list[Picture | PictureUpdate]:
        began = self._cost()  # CPU time of this thread: wall time would include other processes
        found = self._updates_for(session, self._pictures, is_counted=is_counted, is_last=is_last)
        now, cost_s = self._clock(), self._cost() - began
        is_behind = now - self._due > self._interval_s
        regular = now + self._interval_s if is_behind else self._due + self._interval_s
        self._due = max(regular, now + REST_RATIO * cost_s) if self._interval_s else now
        if is_counted:
            self._counts_due = now + 1 / COUNTS_PER_SECOND
        self._is_late, self._is_uncounted = False, not is_counted
        return found

    @torch.inference_mode()
    def _updates_for(
        self, session: Session, pictures: list[WatchedPicture], *, is_counted: bool = True, is_last: bool = False
    ) -> list[Picture | PictureUpdate]:
        """What is to be sent of each picture; one that fails does not stop the others. `is_last`: no step follows."""
        found: list[Picture | PictureUpdate] = []
        failed: list[WatchedPicture] = []
        shown: dict[int, VisibleSequence] = {}  # shared by several pictures, so that rows are dequantised once
        draw = partial(self._update_for, session, shown=shown, is_counted=is_counted)
        free = 0  # bytes on the line for those that are left
        if self._finer is not None:
            free, pictures = self._finer.most_bytes, sorted(pictures, key=lambda each: rank_of(each.watched.request))
        for number, picture in enumerate(pictures):
            try:
                if self._finer is None:
                    found += draw(picture)
                    continue
                carried = [*self._carried(picture, self._finer, draw, is_last, free // (len(pictures) - number))]
                free = max(0, free - sum(map(size_of, carried)))
                found += carried
            except Exception as error:
                failed.append(picture)
                self._failures.append((picture.watched.id, error))
        self._pictures = [picture for picture in self._pictures if picture not in failed]
        return found

    def _carried(
        self,
        picture: WatchedPicture,
        finer: Finer,
        draw: Callable[[WatchedPicture], Iterator[Picture | PictureUpdate]],
        is_last: bool,
        share: int,
    ) -> Iterator[Picture | PictureUpdate]:
        """What is to be sent of a picture over a slow line: of one of more bytes than its `share`, a coarser one. Where
        no step follows, it is sent itself when the line has time; a later step takes that back, or finds that it has
        gone."""
        number = picture.watched.id
        if picture.is_owed:
            finer.drop(number)
            if picture.most_bytes != finer.most_bytes:
                picture.coarser = None
        if not picture.is_owed and (found := [*draw(picture)]):
            if picture.coarser is not None and not finer.drop(number):
                picture.coarser = None
            if picture.coarser is None:
                smaller = next(filter(None, (coarser(each, picture.watched.request, share) for each in found)), None)
                if smaller is None:
                    yield from found
                    return
                picture.coarser = WatchedPicture(replace(picture.watched, request=smaller))
                picture.most_bytes = finer.most_bytes
            picture.invalidate()
        if not picture.is_owed or picture.coarser is None:
            return
        yield from draw(picture.coarser)
        if is_last:
            for whole in draw(picture):
                finer.put(number, whole)

    def _update_for(
        self, session: Session, picture: WatchedPicture, *, shown: dict[int, VisibleSequence], is_counted: bool
    ) -> Iterator[Picture | PictureUpdate]:
        seq_id = picture.watched.request.seq_id
        if seq_id not in shown:
            try:
                shown[seq_id] = session.pictures.visible(seq_id)
            except InputError:  # it was removed
                return
        visible = shown[seq_id]
        count, half = visible.source.num_tokens, visible.source.half
        if half is None:
            request = request_now(picture.watched, count, session.history.last_step, self._previous.get(seq_id))
        else:
            request = request_now(picture.watched, count, half.step, session.cache_of(seq_id).num_tokens)
        is_owed = is_counted and picture.source is not None and picture.num_counted < picture.source.num_tokens
        if request is None or (request == picture.request and not is_owed):
            return
        found: Picture | PictureUpdate
        before = picture.sent if picture.source is not None else None  # None: it is to be sent whole
        if isinstance(request, (WallRequest, HeadRequest)):
            assert before is None or isinstance(before, (WallPicture, HeadPicture))
            found = session.pictures.drawn(request, visible, picture.canvas, before, is_counted=is_counted)
        elif is_row_unchanged(picture, visible.source):
            found = Unchanged(request)
        else:
            found = session.pictures.picture(request, visible)
            if isinstance(found, TablePicture) and is_same_table(found, before):
                found = Unchanged(request)
        if not isinstance(found, Unchanged):
            picture.sent = found.picture if isinstance(found, CellUpdate) else found
        picture.request, picture.source = request, visible.source
        if is_counted or not isinstance(found, CellUpdate):
            picture.num_counted = visible.source.num_tokens
        yield replace(found, reply_to=picture.watched.id)


def is_row_unchanged(picture: WatchedPicture, source: Source) -> bool:
    """Whether a watched row of a token is as it was sent."""
    was, before = picture.source, picture.sent
    if not isinstance(before, RowPicture) or was is None or was.owner != source.owner:
        return False
    deltas = source.changes(was.num_tokens) if source.num_tokens >= was.num_tokens else None
    return deltas is not None and not any(delta.touches(before.request.position) for delta in set(deltas))


def is_same_table(table: TablePicture, before: Picture | None) -> bool:
    """Whether no page has come or gone, so that the table need not be sent with every token that fills a page."""
    if not isinstance(before, TablePicture) or len(table.tables) != len(before.tables):
        return False
    return all(np.array_equal(a, b) for a, b in zip(table.tables, before.tables, strict=True))


def request_now(watched: Watched, count: int, last_step: int | None, previous: int | None) -> PictureRequest | None:
    """The request of a watched picture when its sequence has `count` tokens, and had `previous` before its newest step;
    None where the requested row does not exist."""
    request, extent = watched.request, watched.extent
    match request:
        case WallRequest():
            before = (request.previous_tokens if previous is None else previous) if request.change else count
            return replace(request, num_tokens=count, previous_tokens=min(before, count))
        case HeadRequest():
            start, stop = span_of(request.start, request.stop, count, extent)
            return replace(request, num_tokens=count, start=min(max(start, 0), count), stop=min(max(stop, 0), count))
        case AttentionRequest():
            step = last_step if last_step is not None else request.step
            if extent == "all":
                return replace(request, step=step, start=0, stop=None)
            start, stop = span_of(request.start, request.stop or count, count, extent)
            return replace(request, step=step, start=start, stop=stop)
        case RowRequest():
            return replace(request, num_tokens=count) if request.position < count else None
        case TableRequest():
            return replace(request, num_tokens=count)
        case OutliersRequest():
            step = last_step if last_step is not None else request.step
            return replace(request, num_tokens=count, step=step)


def span_of(start: int, stop: int, count: int, extent: str) -> tuple[int, int]:
    """The positions `start … stop` of a picture when its sequence has `count` tokens."""
    if extent == "all":
        return 0, count
    return (max(0, count - (stop - start)), count) if extent == "newest" else (start, stop)
