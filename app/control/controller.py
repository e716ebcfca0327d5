"""The controller reads the engine's events on every tick, updates the models and requests pictures; and its clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from app.control.events import OF_STEPS, EventHandlers
from app.control.intents import Intents
from app.control.requests import Requests
from app.control.saving import Saving
from app.control.sender import PersonWaiting, Sender
from app.models import Models, Selected
from app.models.sequence_status import fitting_sequence
from engine.garbage import garbage
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
        self.requests = Requests(models, sender)
        self.intents = Intents(models, sender, self.requests, self.waiting, self)
        self.events = EventHandlers(models, sender, self.requests, self.waiting, self)
        self.saving = Saving(models, self)
        self._is_held = False  # whether texts wait for the picture of a step
        self._has_changed = False  # the status changed since the timeline was last announced to the panels
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
        has_news = bool(events) or self._is_held
        is_run = self._models.status.now.running and all(isinstance(event, OF_STEPS) for event in events)
        with self._models.refreshes.frame(is_spread=pictures_first and is_run):
            if has_news:
                self.saving.take(events, is_repeating=self.requests.replaying.is_going_on)
                may_wait = pictures_first and self.waiting.is_for_pictures
                self._is_held = self.events.take(events, may_wait=may_wait)
                if self._is_held:
                    return
            self._announce_texts(are_due=with_words)
        if has_news or self.requests.pictures.may_ask_again:  # what is wanted changes with what arrives
            self._ask_for_pictures()

    def _announce_texts(self, *, are_due: bool) -> None:
        """Let texts and numbers be read again: at rest also where nothing but counts of the status is new."""
        is_running, status = self._models.status.now.running, self.events.status
        if are_due or self._has_changed or not is_running:
            self._models.timeline.announce(again=self._has_changed or (status.has_news and not is_running))
            self._has_changed = status.has_news = False

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
        are_models_current = self.events.status.is_written and self._models.refreshes.is_empty
        return not self._models.status.is_busy and are_models_current and self.requests.are_all_answered

    def replay(self, *, after_load: bool = False) -> None:
        """Have an engine that was restarted with the same model repeat the recorded steps; `after_load`: once the
        present engine has loaded it again."""
        self.events.forget_engine()
        self.requests.replaying.begin(after_load=after_load)
        self.waiting.wake()

    def _ask_for_pictures(self) -> None:
        """Request the pictures needed, unless a new prompt is about to replace all sequences."""
        status = self._models.status
        if not (status.now.model is None or status.loss or self.requests.sequences.is_replacing_all):
            self.requests.pictures.ask()
            self.requests.comparing.ask()

    def _on_view_moved(self) -> None:
        self._models.refreshes.ask(self._ask_for_pictures)
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
        self._has_changed = True


POLL_MS = 100  # a frame comes at the latest after this time: texts become due, an engine falls silent
HELD_MS = 8  # or after this, where texts were held back for the picture that has just been shown
WORDS_MS = 250.0  # texts and numbers are updated at most this often, so that they can be read


class FrameClock(QObject):
    """Ticks the controller when the client announces events, which it does by `ring()`, from any thread: at once, or
    while the engine runs, as soon as the last frame was `Controller.frame_ms` ago. Decides which frames update
    texts."""

    _rung = Signal()

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._words_due = time.monotonic() + WORDS_MS / 1e3
        self._ticked = 0.0
        self.timer = QTimer(self, timerType=Qt.TimerType.PreciseTimer)
        self.timer.timeout.connect(self.on_frame)
        self._rung.connect(self._on_rung, Qt.ConnectionType.QueuedConnection)

    def start(self) -> None:
        self.timer.start(HELD_MS)

    def stop(self) -> None:
        self.timer.stop()

    def ring(self) -> None:
        """Announce that there are events; may be called from any thread."""
        self._rung.emit()

    def _on_rung(self) -> None:
        if self.timer.isActive():
            since_ms = (time.monotonic() - self._ticked) * 1e3
            frame_ms = self._controller.frame_ms
            self.timer.setInterval(max(0, min(frame_ms, math.ceil(frame_ms - since_ms))))

    def on_frame(self) -> None:
        now = self._ticked = time.monotonic()
        are_words_due = now >= self._words_due
        if are_words_due:  # counted from when they were due and not from this frame, or the delays would add up
            self._words_due = max(self._words_due, now - WORDS_MS / 1e3) + WORDS_MS / 1e3
        self._controller.tick(with_words=are_words_due, pictures_first=True)
        if self.timer.isActive():
            self.timer.setInterval(POLL_MS if self._controller.events.status.is_written else HELD_MS)


EVERY_MS = 100


class GarbageTimer(QObject):
    """Takes over automatic collection from `start` to `stop` (see `engine.garbage`)."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._timer = QTimer(self, interval=EVERY_MS)
        self._timer.timeout.connect(garbage.collect_due)

    def start(self) -> None:
        garbage.own()
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()
        garbage.disown()
