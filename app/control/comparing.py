"""Starts a comparison of two runs, requests its pictures, and writes the answers into `Models.comparison`."""

from __future__ import annotations

from functools import partial

from app.control.sender import Sender
from app.draw.token_range import rows_of
from app.kit.question import Question
from app.models import Models
from app.models.comparison import SIDES, ComparedPair, Pictures
from app.models.loaded import head_of
from engine.wire.commands import EndDuel, StartDuel, TakeSlice
from engine.wire.duel import DuelEnded, DuelScanned, DuelStarted, DuelStep, Opponent, OtherStep
from engine.wire.events import Failed
from engine.wire.slices import (
    AttentionRequest,
    HeadRequest,
    Side,
    Slice,
    SliceRequest,
    WallRequest,
)


class Comparing:
    """The only writer of `Models.comparison`. The pictures of both runs and of their difference are requested together
    for one step; the next three are requested when these have arrived."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models, self._sender = models, sender
        self._comparison = models.comparison
        self._starts: dict[int, Opponent] = {}  # command id -> what to compare with, of starts not answered yet
        self._started_by: int | None = None  # id of the newest start, unless it was cancelled
        self._against: Opponent = OtherStep(0)  # of the comparison that is shown
        self._unanswered: set[Side] = set()  # the sides whose pictures were requested and have not arrived
        self._arrived: dict[Side, Slice] = {}
        self._request: SliceRequest | None = None  # of the pictures that are shown or not answered yet

    def start(self, seq_id: int, against: Opponent) -> None:
        """Compare a sequence with another run."""
        self._comparison.ask(against)
        self._started_by = self._sender.ask(Question(StartDuel(seq_id, against), on_refusal=self._refuse_start))
        self._starts[self._started_by] = against

    def end(self) -> None:
        """End the comparison; the engine frees the other run."""
        self._sender.post(EndDuel())

    # ---- what the engine says ------------------------------------------------------------------------------------

    def take_started(self, event: DuelStarted) -> None:
        """Show the comparison that has started, or the current one sent again. If its start had been cancelled too late
        for the engine, end it."""
        self._forget_pictures()
        was_asked, is_awaited = event.reply_to in self._starts, self._awaits(event.reply_to)
        self._against = self._answered_start(event.reply_to) or self._against
        compared = ComparedPair(
            event.seq_id, self._against, event.a, event.b, event.layers, event.tolerance, event.no_rows
        )
        self._comparison.start(compared, event.steps, is_new=is_awaited)
        if was_asked and not is_awaited and self._started_by is None:
            self.end()

    def _awaits(self, reply_to: int | None) -> bool:
        return self._started_by is not None and reply_to == self._started_by

    def _answered_start(self, reply_to: int | None) -> Opponent | None:
        """What the start command that is answered compares with; None for any other command. Earlier starts get no
        answer any more and are dropped."""
        if reply_to is None or reply_to not in self._starts:
            return None
        if self._awaits(reply_to):
            self._started_by = None
        against = self._starts[reply_to]
        self._starts = {number: other for number, other in self._starts.items() if number > reply_to}
        return against

    def take_step(self, event: DuelStep) -> None:
        self._comparison.append(event)
        if self._comparison.no_pictures:  # a picture that was refused at an earlier step may be possible now
            self._request = None

    def take_scanned(self, event: DuelScanned) -> None:
        self._comparison.scan(event.num_tokens, event.first)

    def take_ended(self, event: DuelEnded) -> None:
        self._forget_pictures()
        self._comparison.end(f"The comparison ended: {event.reason}." if event.reason else "")
        if self._started_by is not None:
            self._comparison.ask(self._starts[self._started_by])

    def _take_picture(self, side: Side, piece: Slice) -> None:
        """Take a picture. They are shown when all three have arrived."""
        self._unanswered.discard(side)
        self._arrived[side] = piece
        if len(self._arrived) == len(SIDES):
            self._comparison.put(Pictures(*(self._arrived[side] for side in SIDES)))
            self._arrived.clear()

    def _refuse_picture(self, side: Side, failure: Failed) -> None:
        self._unanswered.discard(side)
        if failure.message:
            self._comparison.refuse_pictures(failure.message)

    def _refuse_start(self, failure: Failed) -> None:
        is_awaited = self._awaits(failure.reply_to)
        if self._answered_start(failure.reply_to) is not None and is_awaited:
            self._comparison.refuse(failure.message)

    def stop_waiting(self) -> None:
        """Note that the comparison being started was cancelled."""
        if self._started_by is not None:
            self._started_by = None
            self._comparison.refuse("")

    def forget(self) -> None:
        """Note that the engine is gone, and the other run with it."""
        self._forget_pictures()
        self._starts.clear()
        self._started_by = None
        if self._comparison.now is not None or self._comparison.asked is not None:
            self._comparison.end("The comparison ended with its engine: start it again.")

    # ---- pictures ------------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether the pictures that are wanted were requested and have arrived."""
        return not self._unanswered and self._wanted() in (None, self._request)

    def ask(self) -> None:
        """Request the pictures that are wanted and not shown, unless some are still unanswered."""
        request = self._wanted()
        if request is None or request == self._request or self._unanswered:
            return
        self._request = request
        self._arrived.clear()
        for side in SIDES:
            self._unanswered.add(side)
            take, refuse = partial(self._take_picture, side), partial(self._refuse_picture, side)
            self._sender.ask(Question(TakeSlice(request, side=side), take, refuse, slot=side))

    def _forget_pictures(self) -> None:
        for side in SIDES:
            self._sender.withdraw(side)
        self._unanswered.clear()
        self._arrived.clear()
        self._request = None

    def _wanted(self) -> SliceRequest | None:
        """The request for the picture that the panel shows, at the step that is shown; None if it needs none."""
        wanted, selected = self._models.viewport.now, self._models.selection.now
        picture, compared = wanted.compared, self._comparison.now
        step = self._comparison.at(selected.step)
        if picture is None or compared is None or step is None or compared.no_rows:
            return None
        seq_id, count = compared.seq_id, step.num_tokens
        if picture.kind == "wall":
            return WallRequest(seq_id, count, count, selected.lens, False, picture.columns, picture.rows)
        if picture.kind == "attention":
            start, stop = rows_of(wanted.attention_range, count)
            lens = wanted.attention_lens
            head = head_of(self._models, lens, selected.layer, selected.kv_head)
            return AttentionRequest(
                seq_id, step.step, selected.layer, picture.columns, start, stop, lens, head, picture.rows
            )
        start, stop = rows_of(wanted.head_range, count)
        layer, lens = selected.layer, selected.lens
        head = head_of(self._models, lens, layer, selected.kv_head)
        return HeadRequest(seq_id, count, lens, layer, head, start, stop, picture.columns)
