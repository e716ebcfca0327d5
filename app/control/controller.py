"""The window and its engine, tick by tick: wishes go out as commands, events come in, pictures are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject

from app.control.events import PICTURES, EventHandlers
from app.control.intents import Intents
from app.control.pace import ChosenPace
from app.control.requests import Requests
from app.control.saving import Saving
from app.control.sender import Sender
from app.control.waiting import Waiting
from app.models import Models, Selected
from app.models.sequence_status import fitting_sequence
from engine.wire.commands import Command
from engine.wire.events import Event

# How soon to look into the outbox again: as often as pictures come while running; at once when a person waits; rarely
# when nothing moves.
RUNNING_MS, EAGER_MS, IDLE_MS = 30, 8, 200


class Controller(QObject):
    """Puts together who sends and who takes, and drains the engine's outbox once per `tick()`."""

    def __init__(
        self,
        models: Models,
        send: Callable[[Command], None],
        drain: Callable[[], Sequence[Event]],
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._models = models
        self._drain = drain
        sender = Sender(send)
        pace = ChosenPace(sender)
        self.waiting = Waiting(self)
        self.requests = Requests.through(sender, models)
        self.intents = Intents(models, sender, self.requests, self.waiting, pace, self)
        self.events = EventHandlers(models, self.requests, self.waiting, pace, self)
        self.saving = Saving(models, self)
        self._are_words_owed = False  # they are due, and not told yet
        self._has_turned = False  # the engine began to run, or to rest: every panel says that of its step
        models.viewport.changed.connect(self._on_view_moved)
        models.selection.changed.connect(self._on_selected)
        models.status.changed.connect(self._on_turned)

    def tick(self, *, with_words: bool = True, pictures_first: bool = False) -> None:
        """Take what the engine said, tell the models, and ask for the pictures they now want.

        Without words, pictures, tokens, counter and timeline follow a running engine, and words and numbers wait: they
        change too fast to be read. With pictures first, words and status that come with the first picture after a
        person's step wait until the next tick, when it has been painted, and the charts of a run wait until the tick
        after its words.
        """
        events = self._drain()
        self.saving.take(events, is_repeating=self.requests.restore.is_going_on)
        may_wait = pictures_first and self.waiting.is_for_pictures
        were_owed = self._are_words_owed
        if self.events.take(events, may_wait=may_wait):
            return
        self._are_words_owed |= with_words or self._has_turned
        # of a run, words and pictures are painted one after the other: together they would hold the window up
        come_later = pictures_first and not were_owed and any(isinstance(event, PICTURES) for event in events)
        timeline, is_running = self._models.timeline, self._models.status.is_running
        timeline.tell_charts()  # of the words of the tick before
        if not is_running or (self._are_words_owed and not come_later):
            timeline.tell(again=self._has_turned, charts_later=is_running and pictures_first)
            self._has_turned = self._are_words_owed = False
        self._ask_for_pictures()

    @property
    def interval_ms(self) -> int:
        """When the next tick is due."""
        is_awaited = self.waiting.is_for_step or self.requests.pictures.is_waiting or not self.events.are_told
        if self.waiting.is_eager and is_awaited:
            return EAGER_MS  # a person did something: the first step or picture that follows is shown at once
        if self._models.status.is_busy:
            return RUNNING_MS
        return EAGER_MS if self.waiting.is_eager else IDLE_MS

    @property
    def frame_ms(self) -> int:
        """How soon after a tick the next may follow when there is something new."""
        return RUNNING_MS if self.interval_ms == RUNNING_MS else 0

    @property
    def owes_words(self) -> bool:
        """Whether words are due that waited for a picture to be painted, or charts that waited for words."""
        return self._are_words_owed or self._models.timeline.owes_charts

    @property
    def is_settled(self) -> bool:
        """Whether the engine rests and every picture that is wanted has arrived."""
        return not self._models.status.is_busy and self.events.are_told and self.requests.are_settled

    def replay(self) -> None:
        """An engine has begun again with the same model: have it do the steps that there were once more."""
        self.events.forget_engine()
        self.requests.restore.begin()
        self.waiting.wake()

    def _ask_for_pictures(self) -> None:
        if self._models.status.model is not None and not self._models.status.is_engine_lost:
            self.requests.ask_for_pictures()

    def _on_view_moved(self) -> None:
        self._ask_for_pictures()
        self.waiting.wake()

    def _on_selected(self, old: Selected, new: Selected) -> None:
        if self._models.timeline.is_elsewhere:
            self._models.slices.clear()  # they are of the live cache
        if (
            old.step != new.step
            and old.seq_id == new.seq_id
            and (fitting := fitting_sequence(self._models)) != new.seq_id
        ):
            self._models.selection.update(seq_id=fitting, position=None)
        if old.seq_id != new.seq_id:
            self._models.viewport.show_all()
        self._models.timeline.tell()  # every view looks anew, and must find the same step
        self._on_view_moved()

    def _on_turned(self) -> None:
        self._has_turned = True
