"""The engine's status on its way into the models, and what follows from it there."""

from __future__ import annotations

import time

from msgspec.structs import replace

from app.control.measuring import MeasurementControl
from app.control.restore import Restore
from app.models import Models
from app.models.sequence_status import selected_info, why_ended
from engine.wire.events import StateChanged
from engine.wire.status import EngineStatus, ModelInfo

GAVE_UP = " · the step between its phases was given up"
AT_ONCE_S = 2.0  # what comes so soon behind a step that was given up is what gave it up


class StatusWriter:
    """Holds the newest status until the models are told of it: it may wait for the picture of the same step."""

    def __init__(self, models: Models, measuring: MeasurementControl, restore: Restore) -> None:
        self._models = models
        self._restore = restore
        self._measuring = measuring
        self._held: EngineStatus | None = None
        self._news, self._news_at = "", -AT_ONCE_S  # what was done last, and when that was told
        self._given_up_at = -AT_ONCE_S  # when a step was given up between its phases
        self._known: object = None  # what tells the model that was loaded last from others

    @property
    def is_held(self) -> bool:
        return self._held is not None

    @property
    def can_wait(self) -> bool:
        """Whether it tells of nothing but steps: the same model, cache and sequences, and no other work."""
        old, new = self._models.status.now, self._held
        if new is None or old is None:
            return old is not None
        same_sequences = [s.seq_id for s in new.sequences] == [s.seq_id for s in old.sequences]
        return same_sequences and new.work is None and (new.model, new.cache) == (old.model, old.cache)

    def hold(self, event: StateChanged) -> None:
        """A newer one replaces the one before."""
        self._held = event.status

    def tell(self) -> None:
        """Write what is held, if there is any."""
        status, self._held = self._held, None
        if status is None:
            return
        old = self._models.status.now
        if old is not None and self._restore.is_going_on:  # it has not got there yet, and will
            status = replace(status, sequences=old.sequences, step=old.step, cache=old.cache)
        if status.model is not None and _identity(status.model) != self._known:
            self._begin_model(status)
        if old is not None and status.model != old.model:  # over a wire an equal one is another object
            self._models.pages.forget_model()
        ids = [sequence.seq_id for sequence in status.sequences]
        if ids and self._models.selection.now.seq_id not in ids and not self._models.timeline.is_elsewhere:
            self._models.selection.update(seq_id=ids[-1])
        self._models.status.set(status)
        if self._models.phases.follow(status.suspended, status.step):
            self._tell_given_up()
        self._tell_end(old)

    def with_given_up(self, news: str) -> str:
        """News of what was done, with the step that it gave up."""
        self._news, self._news_at = news, time.monotonic()
        return f"{news}{GAVE_UP}" if self._news_at - self._given_up_at <= AT_ONCE_S else news

    def _tell_given_up(self) -> None:
        """Alone, or behind what was done instead; which of both the engine tells first is open."""
        now = time.monotonic()
        if now - self._news_at <= AT_ONCE_S:
            self._models.status.notify(f"{self._news}{GAVE_UP}")
        else:
            self._given_up_at = now
            self._models.status.notify("The step was given up between its phases: nothing has changed")

    def _begin_model(self, status: EngineStatus) -> None:
        """Another model: nothing that was looked at or measured is there any more."""
        assert status.model is not None
        self._known = _identity(status.model)
        self._models.viewport.forget_places()
        self._models.viewport.show_all()
        layers = status.model.geometry.attention_layers
        self._models.selection.update(layer=layers[0].index if layers else 0, kv_head=0, position=None)
        self._measuring.forget()

    def _tell_end(self, old: EngineStatus | None) -> None:
        """Say once why the selected sequence goes on no more."""
        info = selected_info(self._models)
        was = {sequence.seq_id: sequence.stop for sequence in old.sequences} if old is not None else {}
        if info is not None and info.stop is not None and was.get(info.seq_id, info.stop) is None:
            self._models.status.notify(f"Sequence {info.seq_id}: {why_ended(info)}")


def _identity(model: ModelInfo) -> object:
    """What is the same for the same model: a file that was brought from elsewhere may have no fingerprint."""
    return model.fingerprint, len(model.geometry.layers)
