"""Requests the pictures that the visible views need: pictures of the newest step are subscribed to (`Watch`), and the
engine then keeps them up to date; pictures of an earlier step are requested once each (`TakePicture`)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from app.control.sender import Sender
from app.draw.grid import TokenRange, rows_of
from app.models import Models, Selected, WantedPictures
from app.models.pictures import ATTENTION, HEAD, OUTLIERS, ROW, TABLE, WALL, kind_of
from app.models.places import head_of
from engine.spec.lenses import LENSES
from engine.wire.commands import TakePicture, Watch, Watched
from engine.wire.events import Failed
from engine.wire.pictures import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    Picture,
    PictureUpdate,
    RowRequest,
    TableRequest,
    WallRequest,
)
from engine.wire.records import StepRecord

# A picture that the engine has not answered after this many seconds (its model was unloaded, say) is requested again.
PATIENCE_S = 10.0
# A picture that the engine refused is requested again after a later step, at the earliest after this many seconds.
RETRY_S = 1.0
# The ids of this many of the latest requests are remembered, to recognise a refusal that comes too late to matter.
MOST_SENT = 256
ADVANCED = {"num_tokens", "previous_tokens", "step"}  # fields of a request that the engine advances


class PendingPicture(Struct, frozen=True):
    """The newest request for one kind of picture. Everything that answers it repeats its id,
    `watched.id`. `essence` is the part of the request that must change before it is sent again: without tokens and step
    for a subscribed picture, which the engine advances by itself; with the step that another picture has to name."""

    watched: Watched
    essence: object


class PictureRequests:
    """Sends a request when a picture other than the last one requested is wanted; at most one request per kind is
    unanswered, and the newest counts. `ask()` is called once per tick and whenever the user moves the view."""

    def __init__(self, models: Models, sender: Sender, clock: Callable[[], float] = time.monotonic) -> None:
        self._models = models
        self._sender = sender
        self._clock = clock
        self._asked: dict[str, PendingPicture] = {}
        self._is_watching = False
        self._watch_id = 0
        self._waiting: dict[str, float] = {}
        self._refused: dict[str, tuple[int | None, float]] = {}  # kind -> (newest step then, time of the refusal)
        self._sent: deque[int] = deque(maxlen=MOST_SENT)  # ids of pictures and of the commands that requested them
        self._tip: int | None = None  # newest step of the branch shown, if that is not the live branch

    @property
    def is_waiting(self) -> bool:
        """Whether a request is unanswered."""
        return bool(self._waiting)

    @property
    def may_ask_again(self) -> bool:
        """Whether time alone may make it request a picture: one did not come yet, or was refused."""
        return bool(self._waiting or self._refused)

    @property
    def is_complete(self) -> bool:
        """Whether every picture that is wanted was requested and has arrived."""
        return not self._waiting and not self._changed(self._wanted())

    def reset(self) -> None:
        """Drop all requests, because the live state is another one (new history, cache or step), and the engine has
        ended its subscriptions."""
        self._asked.clear()
        self._waiting.clear()
        self._refused.clear()
        self._is_watching = False

    def answered(self, picture: Picture | PictureUpdate) -> bool:
        """Note an answer or an update; False for a picture that is no longer wanted."""
        kind = kind_of(picture)
        asked = self._asked.get(kind)
        if asked is None or picture.reply_to != asked.watched.id:
            return False
        self._waiting.pop(kind, None)
        self._refused.pop(kind, None)
        return True

    def refused(self, failure: Failed) -> bool:
        """Note that the engine refused a picture: it is requested again when the request changes, or after a later
        step. True if the refused picture is no longer wanted, so that the user need not be told."""
        refused = [
            kind for kind, asked in self._asked.items() if failure.reply_to in (asked.watched.id, self._watch_id)
        ]
        for kind in refused:
            self._waiting.pop(kind, None)
            self._refused[kind] = self._newest_step(), self._clock()
        return not refused and failure.reply_to in self._sent

    def ask(self) -> None:
        """Send requests for the pictures that are wanted and were not requested yet."""
        now = self._clock()
        for kind in [kind for kind, since in self._waiting.items() if now - since >= PATIENCE_S]:
            del self._waiting[kind], self._asked[kind]
        is_live = self._models.selection.now.step is None
        self.follow_branch()
        if self._is_watching and not is_live:  # the subscriptions end, including those that were not answered yet
            self._waiting.clear()
        wanted = self._wanted()
        changed = {kind: one for kind, one in self._changed(wanted).items() if kind not in self._waiting}
        gone = [kind for kind in self._asked if kind not in wanted] if is_live else []
        if not (changed or (gone and self._is_watching) or (self._is_watching and not is_live)):
            return
        for kind in gone:
            del self._asked[kind]
            self._waiting.pop(kind, None)
        for kind, (watched, essence) in changed.items():
            self._refused.pop(kind, None)
            self._asked[kind] = PendingPicture(replace(watched, id=self._sender.next_id()), essence)
            self._waiting[kind] = now
        self._send_live(wanted) if is_live else self._send_once(changed)

    def follow_branch(self) -> None:
        """Drop requests and pictures when another branch is shown."""
        timeline = self._models.timeline
        tip = timeline.tip if timeline.is_elsewhere else None
        if tip != self._tip:
            self._tip = tip
            self._asked.clear()
            self._waiting.clear()
            self._models.pictures.clear()

    def _send_live(self, wanted: dict[str, tuple[Watched, object]]) -> None:
        self._is_watching = True
        pictures = tuple(self._asked[kind].watched for kind in wanted if kind in self._asked)
        self._watch_id = self._sender.post(Watch(pictures))
        self._sent.extend((self._watch_id, *(picture.id for picture in pictures)))

    def _send_once(self, changed: dict[str, tuple[Watched, object]]) -> None:
        if self._is_watching:
            self._is_watching = False
            self._sent.append(self._sender.post(Watch(())))
        for kind in changed:
            watched = self._asked[kind].watched
            self._sent.append(self._sender.post(TakePicture(watched.request, node=self._named_node, id=watched.id)))

    def _changed(self, wanted: dict[str, tuple[Watched, object]]) -> dict[str, tuple[Watched, object]]:
        asked = self._asked
        return {
            kind: one
            for kind, one in wanted.items()
            if kind not in asked or asked[kind].essence != one[1] or self._is_worth_retrying(kind)
        }

    def _is_worth_retrying(self, kind: str) -> bool:
        """Whether a picture of the newest step was refused at an earlier step, and at least `RETRY_S` ago."""
        if kind not in self._refused or self._models.selection.now.step is not None:
            return False
        step, refused = self._refused[kind]
        return step != self._newest_step() and self._clock() - refused >= RETRY_S

    @property
    def _other_node(self) -> int | None:
        """The step shown, if it is on another branch than the live one; else None."""
        return self._models.selection.now.step if self._models.timeline.is_elsewhere else None

    @property
    def _named_node(self) -> int | None:
        """The step shown, where its number of tokens alone does not say which rows are meant: it is on another branch,
        or rows were edited since, maybe when there were as many tokens. Else None."""
        step = self._models.selection.now.step
        if step is None or not any(made.step > step for made in self._models.edits.on_path()):
            return self._other_node
        return step

    def _newest_step(self) -> int | None:
        record = self._models.timeline.at(None)
        return record.step if record is not None else None

    # ---- what is wanted --------------------------------------------------------------------------------------------

    def _wanted(self) -> dict[str, tuple[Watched, object]]:
        """One request per visible picture of the selected step, with its essence, by kind."""
        selected, wanted = self._models.selection.now, self._models.viewport.now
        record = self._models.timeline.at(selected.step)
        status = self._models.status.now
        if record is None or status.model is None:
            return {}
        node, seq_ids = self._other_node, [sequence.seq_id for sequence in status.sequences]
        if node is None and selected.seq_id not in seq_ids:
            return {}  # the sequence was removed, and the engine cannot draw it any more
        if status.opened is not None and not status.opened.has_rows:
            return {}  # a session file has no K and V rows to draw
        num_tokens = self._models.timeline.num_tokens(selected.seq_id, record.step)
        if num_tokens == 0:
            return {}
        found = {kind: one for kind, one in self._pictures(selected, wanted, record, num_tokens).items() if one}
        is_live = selected.step is None
        return {
            kind: (one, _essence(one) if is_live else (self._named_node, one.request)) for kind, one in found.items()
        }

    def _pictures(
        self, selected: Selected, wanted: WantedPictures, record: StepRecord, num_tokens: int
    ) -> dict[str, Watched | None]:
        part = self._models.timeline.part(selected.seq_id, record.step)
        previous = part.first_position if part else num_tokens
        seq_id, step = selected.seq_id, record.step
        needs_table = (wanted.wants_table or wanted.wants_row) and record.page_maps
        return {
            WALL: _wall(selected, wanted, num_tokens, previous),
            HEAD: _head(self._models, selected, wanted, num_tokens),
            ATTENTION: _attention(self._models, selected, wanted, step, num_tokens),
            ROW: _row(selected, wanted, num_tokens),
            OUTLIERS: Watched(OutliersRequest(seq_id, num_tokens, step)) if wanted.wants_outliers else None,
            TABLE: Watched(TableRequest(seq_id, num_tokens)) if needs_table else None,
        }


def _essence(watched: Watched) -> object:
    """A subscribed request without the fields that the engine advances by itself; of a range of positions that moves as
    tokens are added, only its length is left."""
    request = watched.request
    fields = dict.fromkeys(ADVANCED & set(request.__struct_fields__), 0)
    if isinstance(request, HeadRequest | AttentionRequest) and watched.extent != "fixed":
        length = (request.stop or 0) - request.start if watched.extent == "newest" else 0
        fields |= {"start": 0, "stop": length}
    return watched.extent, replace(request, **fields)


def _wall(selected: Selected, wanted: WantedPictures, num_tokens: int, previous: int) -> Watched | None:
    # The wall's answer also says which layers still hold which token: if the wall is hidden, request the smallest one.
    size = wanted.wall_size or ((1, 1) if wanted.wants_holders else None)
    if size is None:
        return None
    columns, rows = size
    # Only the picture of what changed depends on the step before.
    previous = previous if selected.change else num_tokens
    tensor, change = selected.lens, selected.change
    return Watched(
        WallRequest(selected.seq_id, num_tokens, previous, tensor, change, columns, rows, only_farthest=True)
    )


def _head(models: Models, selected: Selected, wanted: WantedPictures, num_tokens: int) -> Watched | None:
    if wanted.head_columns is None:
        return None
    start, stop = rows_of(wanted.head_range, num_tokens)
    layer, kv_head, lens = wanted.head_place or (selected.layer, selected.kv_head, selected.lens)
    head = head_of(models, lens, layer, kv_head)
    request = HeadRequest(selected.seq_id, num_tokens, lens, layer, head, start, stop, wanted.head_columns)
    return _ranged(request, wanted.head_range, num_tokens)


def _attention(
    models: Models, selected: Selected, wanted: WantedPictures, step: int, num_tokens: int
) -> Watched | None:
    if wanted.attention_columns is None:
        return None
    layer = selected.layer if wanted.attention_layer is None else wanted.attention_layer
    start, stop = rows_of(wanted.attention_range, num_tokens)
    end = None if wanted.attention_range is None else stop
    lens = wanted.attention_lens
    request = AttentionRequest(
        selected.seq_id, step, layer, wanted.attention_columns, start, end, lens, latest=wanted.attention_latest
    )
    if not LENSES[lens].is_of_every_head:
        head = head_of(models, lens, layer, selected.kv_head)
        request = replace(request, head=head, max_rows=wanted.attention_rows)
    return _ranged(request, wanted.attention_range, num_tokens)


def _ranged(request: HeadRequest | AttentionRequest, wanted: TokenRange | None, num_tokens: int) -> Watched:
    """Subscribe to a request, and say how its range of positions moves as tokens are added."""
    if wanted is None or wanted.within(0, num_tokens) is None:
        return Watched(request)
    return Watched(request, "newest" if wanted.follows else "fixed")


def _row(selected: Selected, wanted: WantedPictures, num_tokens: int) -> Watched | None:
    if not wanted.wants_row or selected.position is None or selected.position >= num_tokens:
        return None
    return Watched(RowRequest(selected.seq_id, num_tokens, selected.position))
