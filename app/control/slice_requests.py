"""Turns what the views want into slice requests: only when it changed, one on its way per kind, latest wins.

While the engine runs all of them are asked for together, and answered between the same two steps: what stands side by
side on the screen is of one moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from app.draw.token_range import rows_of
from app.models import Models, Selected, Wanted
from app.models.slices import ATTENTION, HEAD, OUTLIERS, ROW, TABLE, WALL, Picture, cost_of, kind_of
from app.models.standing import selected_info
from engine.wire.commands import (
    AttentionRequest,
    Command,
    HeadRequest,
    OutliersRequest,
    RowRequest,
    SliceRequest,
    TableRequest,
    TakeSlice,
    WallRequest,
)

# While the engine runs, slices are followed by this many times their own cost without any: looking stays under 4 %.
REST_RATIO = 25.0
# Drawing them costs the interpreter, which both threads share, more than taking them cost the engine: four times a
# second are enough to see a cache grow.
LEAST_REST_S = 0.25
# A request the engine never answered (the model went away beneath it) is asked again after this many seconds.
PATIENCE_S = 5.0


class Looker:
    """Asks for slices and remembers what was asked. `look()` is called once per tick."""

    def __init__(
        self, models: Models, send: Callable[[Command], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._models = models
        self._send = send
        self._clock = clock
        self._asked: dict[str, SliceRequest] = {}
        self._held: dict[
            str, int
        ] = {}  # the rows that the sequence had when a picture was asked for, if it had lost some
        self._waiting: dict[str, float] = {}
        self._spent_ms = 0.0  # on the slices that were asked for last
        self._rest_until = 0.0
        self._is_owed = False  # a person moved, and what is wanted now could not be asked yet
        self._is_for_person = False  # what is on its way was asked because a person moved
        self._stamp = 0
        self._table_version = (0, 0)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self._waiting)

    @property
    def is_urgent(self) -> bool:
        """Whether a person moved and does not see yet what that shows."""
        return self._is_owed or (self._is_for_person and self.is_waiting)

    @property
    def is_content(self) -> bool:
        """Whether everything that is wanted was asked and answered."""
        return not self._waiting and all(self._is_asked(kind, request) for kind, request in self._wanted().items())

    def reset(self) -> None:
        """Forget what was asked: the present is another one (new history, another cache, a rewind)."""
        self._asked.clear()
        self._waiting.clear()
        self._rest_until = 0.0

    def answered(self, piece: Picture) -> bool:
        """Note an answer; False for one that was asked before the present changed."""
        kind = kind_of(piece)
        asked = self._asked.get(kind)
        if asked is None or piece.request.stamp < asked.stamp:
            return False
        self._waiting.pop(kind, None)
        self._spent_ms += cost_of(piece)
        self._rest_until = self._clock() + max(LEAST_REST_S, self._spent_ms / 1000.0 * REST_RATIO)
        return True

    def failed(self) -> None:
        """The engine refused something: do not ask for the same picture again until something else is wanted."""
        self._waiting.clear()

    def look(self, *, is_eager: bool = False) -> None:
        """Ask for what is wanted and not yet asked; eagerly when a person moved, who should not wait out a rest."""
        now = self._clock()
        is_running = self._models.status.is_running
        self._waiting = {kind: since for kind, since in self._waiting.items() if now - since < PATIENCE_S}
        self._is_owed = self._is_owed or is_eager  # it may have to wait for answers first
        if is_running and (self._waiting or (now < self._rest_until and not self._is_owed)):
            return
        self._is_for_person, self._is_owed = self._is_owed, False
        if not self._waiting:
            self._spent_ms = 0.0
        for kind, request in self._wanted().items():
            if kind not in self._waiting and not self._is_asked(kind, request):
                self._ask(kind, request, now)

    def _is_asked(self, kind: str, request: SliceRequest) -> bool:
        asked = self._asked.get(kind)
        is_same = asked is not None and replace(asked, stamp=0) == request
        return is_same and self._held.get(kind) == self._num_held()

    def _num_held(self) -> int | None:
        """How many rows the selected sequence has, while it waits or its tokens are read: one that gave its pages up
        has the same tokens and other rows, and then more of them with every step."""
        info = selected_info(self._models)
        return info.num_tokens if info is not None and info.state in ("waiting", "prefill") else None

    def _ask(self, kind: str, request: SliceRequest, now: float) -> None:
        self._stamp += 1
        stamped = replace(request, stamp=self._stamp)
        self._asked[kind] = stamped
        self._held.pop(kind, None)
        if (num_held := self._num_held()) is not None:
            self._held[kind] = num_held
        self._waiting[kind] = now
        if isinstance(request, TableRequest):
            self._table_version = self._version()
        self._send(TakeSlice(stamped))

    # ---- what is wanted, unstamped -------------------------------------------------------------------------------

    def _wanted(self) -> dict[str, SliceRequest]:
        """One request per visible picture, for the selected step."""
        selected, wanted = self._models.selection.now, self._models.viewport.now
        record = self._models.timeline.at(selected.step)
        status = self._models.status.now
        if record is None or status is None or status.model is None:
            return {}
        if all(sequence.seq_id != selected.seq_id for sequence in status.sequences):
            return {}  # it was removed: the engine has nothing of it any more
        num_tokens = self._models.timeline.num_tokens(selected.seq_id, record.step)
        if num_tokens == 0:
            return {}
        part = self._models.timeline.part(selected.seq_id, record.step)
        previous = part.first_position if part else num_tokens
        requests = {
            WALL: _wall(selected, wanted, num_tokens, previous),
            HEAD: _head(selected, wanted, num_tokens),
            ATTENTION: _attention(selected, wanted, record.step, num_tokens),
            ROW: _row(selected, wanted, num_tokens),
            OUTLIERS: OutliersRequest(0, selected.seq_id, num_tokens, record.step) if wanted.wants_outliers else None,
            TABLE: self._table(num_tokens) if (wanted.wants_table or wanted.wants_row) and record.page_maps else None,
        }
        return {kind: request for kind, request in requests.items() if request is not None}

    def _table(self, num_tokens: int) -> SliceRequest:
        """A table is asked again only when a page of it has changed: not with every token that fills one."""
        asked = self._asked.get(TABLE)
        if asked is not None and self._table_version == self._version():
            return replace(asked, stamp=0)
        return TableRequest(0, self._models.selection.now.seq_id, num_tokens)

    def _version(self) -> tuple[int, int]:
        selected, record = self._models.selection.now, self._models.timeline.at(self._models.selection.now.step)
        step = record.step if record is not None else 0
        return selected.seq_id, self._models.pages.changed_at(selected.seq_id, step)


def _wall(selected: Selected, wanted: Wanted, num_tokens: int, previous: int) -> SliceRequest | None:
    # who still holds which token comes with the wall: where that is hidden, the smallest picture does
    size = wanted.wall_size or ((1, 1) if wanted.wants_holders else None)
    if size is None:
        return None
    columns, rows = size
    # Only a picture of the change depends on the step before.
    previous = previous if selected.change else num_tokens
    return WallRequest(0, selected.seq_id, num_tokens, previous, selected.tensor, selected.change, columns, rows)


def _head(selected: Selected, wanted: Wanted, num_tokens: int) -> SliceRequest | None:
    if wanted.head_columns is None:
        return None
    start, stop = rows_of(wanted.head_range, num_tokens)
    layer, kv_head, tensor = wanted.head_place or (selected.layer, selected.kv_head, selected.tensor)
    return HeadRequest(0, selected.seq_id, num_tokens, tensor, layer, kv_head, start, stop, wanted.head_columns)


def _attention(selected: Selected, wanted: Wanted, step: int, num_tokens: int) -> SliceRequest | None:
    if wanted.attention_columns is None:
        return None
    layer = selected.layer if wanted.attention_layer is None else wanted.attention_layer
    start, stop = rows_of(wanted.attention_range, num_tokens)
    is_all = wanted.attention_range is None
    return AttentionRequest(0, selected.seq_id, step, layer, wanted.attention_columns, start, None if is_all else stop)


def _row(selected: Selected, wanted: Wanted, num_tokens: int) -> SliceRequest | None:
    if not wanted.wants_row or selected.position is None or selected.position >= num_tokens:
        return None
    return RowRequest(0, selected.seq_id, num_tokens, selected.position)
