"""The engine's state as last reported, and the last thing it said in words."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from engine.spec.cache import CacheSpec
from engine.spec.model import BUNDLED, BUNDLED_NAME
from engine.wire.status import EngineStatus, ModelInfo, OpenedFile

EngineLoss = Literal["", "gone", "silent"]


class Status(QObject):
    """Holds the newest `EngineStatus`; only the controller writes it.

    `changed` is silent where the engine runs on as it did: what counts with the steps is read when the timeline is
    legible.
    """

    changed = Signal(object, object)
    noticed = Signal(str)
    failed = Signal(str)
    engine_changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._now: EngineStatus | None = None
        self._notice = ""
        self._failure = ""
        self._engine = ""
        self._loss: EngineLoss = ""
        self._busy = self._unwritten = ""
        self._sources: dict[str, str] = {}  # of the models that were loaded, by fingerprint

    @property
    def now(self) -> EngineStatus | None:
        return self._now

    @property
    def model(self) -> ModelInfo | None:
        """The model that is loaded."""
        return self._now.model if self._now is not None else None

    def source_of(self, fingerprint: str) -> str:
        """Where a model came from that was loaded in this window; empty where none had that fingerprint."""
        return self._sources.get(fingerprint, "")

    @property
    def source_of_file(self) -> str:
        """Where the model of the opened file is known to be: it was loaded here before, known by its fingerprint, or is
        the bundled one; empty where a person has to say."""
        if self.opened is None or self.model is None:
            return ""
        by_name = BUNDLED if self.opened.model == BUNDLED_NAME else ""
        return self.source_of(self.model.fingerprint) or by_name

    @property
    def last_source(self) -> str:
        """Where the last model came from that was loaded; empty where there was none."""
        return next(reversed(self._sources.values()), "")

    @property
    def cache(self) -> CacheSpec:
        """The cache mode in use."""
        return self._now.cache if self._now is not None else CacheSpec()

    @property
    def opened(self) -> OpenedFile | None:
        """The file that is open in place of a live session."""
        return self._now.opened if self._now is not None else None

    @property
    def has_file(self) -> bool:
        return self.opened is not None

    @property
    def why_no_rows(self) -> str:
        """Why there is no K and V to look at; empty where there is."""
        if self.is_unloaded and self.is_loading:
            return "The model is being loaded: its K and V come with it."
        if self.is_unloaded:
            return "The model is unloaded: load it again to have its K and V."
        return self.why_unmeasured("K and V")

    @property
    def is_unloaded(self) -> bool:
        """Whether a model was here and was let go."""
        return self._now is not None and self._now.model is None and bool(self._sources)

    @property
    def is_loading(self) -> bool:
        """Whether a model is being loaded, with a session of its own."""
        return self._now is not None and self._now.work is not None and self._now.work.is_loading

    def why_unmeasured(self, what: str) -> str:
        """Why there is nothing of what a step measures: a session is open, which is written down without; empty where
        there is."""
        if self.opened is None or self.opened.has_rows:
            return ""
        return f"A session file has no {what}: go on with its model to compute them."

    @property
    def is_busy(self) -> bool:
        """Whether the engine runs, works, or has not said yet that it rests."""
        return self._now is None or self._now.running or self._now.work is not None

    @property
    def notice(self) -> str:
        """The last piece of news, one line."""
        return self._notice

    @property
    def failure(self) -> str:
        """What went wrong last and what to do, empty when nothing did."""
        return self._failure

    @property
    def engine(self) -> str:
        """Where the engine runs: in a thread or in a process; empty while there is none."""
        return self._engine

    @property
    def loss(self) -> EngineLoss:
        """Whether the engine is gone, or silent and may come back; empty while it is there."""
        return self._loss

    @property
    def busy(self) -> str:
        """What the engine is busy with and for how long, where it has not got on for seconds; empty where it does."""
        return self._busy

    @property
    def unwritten(self) -> str:
        """Why what is done now would be lost with a crash; empty where it would not."""
        return self._unwritten

    @property
    def is_engine_lost(self) -> bool:
        """Whether the engine is gone or does not answer: it can be restarted."""
        return bool(self._loss)

    def set_engine(self, kind: str) -> None:
        """An engine begins there."""
        self._engine = kind
        self.lose_engine("")

    def lose_engine(self, loss: EngineLoss) -> None:
        """The engine is gone or does not answer, or answers again."""
        self._loss = loss
        if loss != "silent":
            self._busy = ""
        self.engine_changed.emit()
        self._tell_again()

    def set_busy(self, words: str) -> None:
        """The engine has not got on for seconds, or has again, for the empty text."""
        self._busy = words
        self._tell_again()

    def set_unwritten(self, why: str) -> None:
        """The journal of the session cannot be written, or is written again, for the empty text."""
        self._unwritten = why
        self._tell_again()

    def _tell_again(self) -> None:
        if self._now is not None:
            self.changed.emit(self._now, self._now)

    @property
    def is_running(self) -> bool:
        return self._now is not None and self._now.running

    def set(self, status: EngineStatus) -> None:
        old, self._now = self._now, status
        if status.model is not None and status.opened is None:
            self._sources.pop(status.model.fingerprint, None)  # the newest stands last
            self._sources[status.model.fingerprint] = status.model.source
        if old is None or not _runs_on(old, status):
            self.changed.emit(old, status)

    def notify(self, text: str) -> None:
        self._notice = text
        self.noticed.emit(text)

    def fail(self, text: str) -> None:
        """Tell a failure; the empty text takes it back."""
        self._failure = text
        self.failed.emit(text)


def _runs_on(old: EngineStatus, new: EngineStatus) -> bool:
    """Whether the engine only went on: other counts, and nothing that anybody waits for."""
    if not (old.running and new.running) or len(old.sequences) != len(new.sequences):
        return False
    pairs = zip(old.sequences, new.sequences, strict=True)
    same = all(
        (was.seq_id, was.stop, was.state, was.sampling) == (now.seq_id, now.stop, now.state, now.sampling)
        for was, now in pairs
    )
    capture = replace(new.capture, costs_ms=old.capture.costs_ms)  # told at rest: they change with every step
    return same and replace(new, sequences=old.sequences, step=old.step, capture=capture) == old
