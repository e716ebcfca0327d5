"""The controller: on every tick it reads the engine's events, updates the models and requests the pictures needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject

from app.control.events import OF_STEPS, EventHandlers
from app.control.intents import Intents
from app.control.requests import Requests
from app.control.saving import Saving
from app.control.sender import Sender
from app.control.waiting import PersonWaiting
from app.models import Models, Selected
from app.models.sequence_status import fitting_sequence
from engine.wire.events import Event
from engine.wire.message import Command

FRAME_MS = 30  # between two frames of a run


class Controller(QObject):
    """Wires intents, requests and event handlers together, and reads the engine's outbox once per `tick()`."""

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
        self.waiting = PersonWaiting()
        self.requests = Requests(sender, models)
        self.intents = Intents(models, sender, self.requests, self.waiting, self)
        self.events = EventHandlers(models, sender, self.requests, self.waiting, self)
        self.saving = Saving(models, self)
        self._has_new_status = False  # the status changed since the timeline was last announced to the panels
        models.viewport.changed.connect(self._on_view_moved)
        models.selection.changed.connect(self._on_selected)
        models.status.changed.connect(self._on_status)

    def tick(self, *, with_words: bool = True, pictures_first: bool = False) -> None:
        """Handle the events that arrived since the last tick, update the models and request the pictures now needed.

        `with_words` False: a running engine updates pictures, tokens, counter and timeline only; texts and numbers wait
        for a later tick, because they change too fast to be read. `pictures_first` True: after a step or run that the
        user started, status and texts that arrive with the first picture wait for the next tick, so that the picture is
        painted before them; and while the engine runs, each model's views are refreshed in their own turn of the event
        loop, pictures before texts.
        """
        events = self._drain()
        self.saving.take(events, is_repeating=self.requests.restore.is_going_on)
        is_run = self._models.status.is_running and all(isinstance(event, OF_STEPS) for event in events)
        with self._models.refreshes.spread(is_wanted=pictures_first and is_run):
            may_wait = pictures_first and self.waiting.is_for_pictures
            if not self.events.take(events, may_wait=may_wait):
                self._announce_texts(are_due=with_words)
                self._ask_for_pictures()

    def _announce_texts(self, *, are_due: bool) -> None:
        if are_due or self._has_new_status or not self._models.status.is_running:
            self._models.timeline.announce(again=self._has_new_status)
            self._has_new_status = False

    @property
    def frame_ms(self) -> int:
        """The least number of milliseconds between two ticks: none at rest, and where the user waits for a step or a
        picture that they have just asked for."""
        is_awaited = self.waiting.is_for_step or self.requests.pictures.is_waiting
        is_run = self._models.status.is_busy and not (self.waiting.is_eager and is_awaited)
        return FRAME_MS if is_run else 0

    @property
    def is_idle(self) -> bool:
        """Whether the engine is idle, and every picture that is wanted has arrived and been shown."""
        are_models_current = self.events.are_models_current and self._models.refreshes.is_empty
        return not self._models.status.is_busy and are_models_current and self.requests.are_all_answered

    def replay(self, *, after_load: bool = False) -> None:
        """Have an engine that was restarted with the same model repeat the recorded steps; `after_load`: once the
        present engine has loaded it again."""
        self.events.forget_engine()
        self.requests.restore.begin(after_load=after_load)
        self.waiting.wake()

    def _ask_for_pictures(self) -> None:
        """Request the pictures needed, unless a new prompt is about to replace all sequences."""
        status = self._models.status
        if not (status.model is None or status.is_engine_lost or self.requests.sequences.replace_all):
            self.requests.pictures.ask()
            self.requests.comparing.ask()

    def _on_view_moved(self) -> None:
        self._ask_for_pictures()
        self.waiting.wake()

    def _on_selected(self, old: Selected, new: Selected) -> None:
        self.requests.pictures.follow_branch()
        if (
            old.step != new.step
            and old.seq_id == new.seq_id
            and (fitting := fitting_sequence(self._models)) != new.seq_id
        ):
            self._models.selection.update(seq_id=fitting, position=None)
        if old.seq_id != new.seq_id:
            self._models.viewport.show_all()
        self._models.timeline.announce()  # every view refreshes, and all of them must show the same step
        self._on_view_moved()

    def _on_status(self) -> None:
        self._has_new_status = True
