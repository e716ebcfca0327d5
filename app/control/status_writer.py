"""Writes the engine's status into the models, and updates selection, pages and phases to match it."""

from __future__ import annotations

import time

from msgspec.structs import replace

from app.control.requests import MeasurementControl, Restore
from app.models import Models
from app.models.sequence_status import selected_info, why_ended
from engine.wire.events import StateChanged
from engine.wire.status import EngineStatus, ModelInfo

GAVE_UP = " · the step between its phases was given up"
AT_ONCE_S = 2.0  # a message within this time of a given-up step is taken for what gave it up


class StatusWriter:
    """Holds the newest status until `write()` writes it into the models: it may wait for the picture of the same
    step."""

    def __init__(self, models: Models, measuring: MeasurementControl, restore: Restore) -> None:
        self._models = models
        self._restore = restore
        self._measuring = measuring
        self._unwritten: EngineStatus | None = None
        self._news, self._news_at = "", -AT_ONCE_S  # the latest message in the status line, and its time
        self._given_up_at = -AT_ONCE_S  # when a step suspended between its phases was last given up
        self._known: object = None  # identity of the model that was loaded last

    @property
    def has_unwritten(self) -> bool:
        return self._unwritten is not None

    @property
    def can_wait(self) -> bool:
        """Whether the held status differs in nothing but steps: same model, cache and sequences, and no other work."""
        old, new = self._models.status.now, self._unwritten
        if new is None or old is None:
            return old is not None
        same_sequences = [s.seq_id for s in new.sequences] == [s.seq_id for s in old.sequences]
        return same_sequences and new.work is None and (new.model, new.cache) == (old.model, old.cache)

    def keep_newest(self, event: StateChanged) -> None:
        """Hold a newer status in place of the one before."""
        self._unwritten = event.status

    def write(self) -> None:
        """Write the held status into the models, if there is one."""
        status, self._unwritten = self._unwritten, None
        if status is None:
            return
        old = self._models.status.now
        if old is not None and self._restore.is_going_on:  # the engine is still replaying: keep showing the old state
            status = replace(status, sequences=old.sequences, step=old.step, cache=old.cache)
        if status.model is not None and _identity(status.model) != self._known:
            self._begin_model(status)
        if old is not None and status.model != old.model:  # compared by value: each message brings a new object
            self._models.pages.forget_model()
        ids = [sequence.seq_id for sequence in status.sequences]
        if ids and self._models.selection.now.seq_id not in ids and not self._models.timeline.is_elsewhere:
            self._models.selection.update(seq_id=ids[-1])
        self._models.status.set(status)
        if self._models.phases.follow(status.suspended, status.step):
            self._report_given_up()
        self._report_end(old)

    def with_given_up(self, news: str) -> str:
        """The message for a command that was carried out, with a note if it gave up a suspended step."""
        self._news, self._news_at = news, time.monotonic()
        return f"{news}{GAVE_UP}" if self._news_at - self._given_up_at <= AT_ONCE_S else news

    def _report_given_up(self) -> None:
        """Say that a suspended step was given up: alone, or appended to the message about what replaced it. The engine
        may report the two in either order."""
        now = time.monotonic()
        if now - self._news_at <= AT_ONCE_S:
            self._models.status.notify(f"{self._news}{GAVE_UP}")
        else:
            self._given_up_at = now
            self._models.status.notify("The step was given up between its phases: nothing has changed")

    def _begin_model(self, status: EngineStatus) -> None:
        """Reset selection, view and measurements for another model."""
        assert status.model is not None
        self._known = _identity(status.model)
        self._models.viewport.forget_places()
        self._models.viewport.show_all()
        layers = status.model.geometry.attention_layers
        self._models.selection.update(layer=layers[0].index if layers else 0, kv_head=0, position=None)
        self._measuring.forget()

    def _report_end(self, old: EngineStatus | None) -> None:
        """Say once why the selected sequence has ended."""
        info = selected_info(self._models)
        was = {sequence.seq_id: sequence.stop for sequence in old.sequences} if old is not None else {}
        if info is not None and info.stop is not None and was.get(info.seq_id, info.stop) is None:
            self._models.status.notify(f"Sequence {info.seq_id}: {why_ended(info)}")


def _identity(model: ModelInfo) -> object:
    """What identifies a model: a file from elsewhere may have no fingerprint, so the number of layers counts too."""
    return model.fingerprint, len(model.geometry.layers)
