"""What the engine last reported: its status, message and failure; the step in phases; servers that run elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from engine.spec.cache import CacheSpec, preset_of
from engine.spec.model import BUNDLED, BUNDLED_NAME
from engine.spec.sampling import SamplingParams
from engine.wire.serving import ServersChanged, ServerState
from engine.wire.status import (
    Chosen,
    EngineStatus,
    LayerDone,
    PhaseReached,
    Scheduled,
    SuspendedStep,
    Written,
)

EngineLoss = Literal["", "gone", "silent"]
# Before the engine has reported its status: no model, nothing is done, and checkpoints may take what they may at first.
NOT_YET = EngineStatus(None, CacheSpec(), SamplingParams(), (), None, running=False, work=None, kept_limit=1 << 30)

HALTED = "Halted at "  # begins the message of a run that halted, which goes with the next step


class Status(QObject):
    """Holds the newest `EngineStatus`. Only the controller writes it.

    Signals: `changed(old, new)`, but not where only counts differ, as after a step: whoever shows counts follows the
    timeline's `texts_due`; `noticed(text)`, a message; `failed(text)`, a failure; `engine_changed()`, the engine or its
    loss.
    """

    changed = Signal(object, object)
    noticed = Signal(str)
    failed = Signal(str)
    engine_changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.now = NOT_YET
        self.notice = ""  # the latest message, one line
        self.failure = ""  # what went wrong last and what to do; empty if nothing did
        self.engine = ""  # where it runs: "thread", "process" or the address of another machine; empty if there is none
        self.line = ""  # the name of that other machine, and how long an answer takes; empty until it has answered
        self.versions = ""  # of packages there
        self.loss: EngineLoss = ""  # whether the engine is gone, or silent and may come back
        self.is_replaying = False  # whether a restarted engine repeats the steps: what is shown is from before
        self.busy = ""  # what it has been busy with for seconds without progress, and for how long
        self.unwritten = ""  # why a crash would lose what is done now
        self.folder = Path.home()  # of this machine, where a file was written or opened last: dialogs begin there
        self._sources: dict[str, str] = {}  # fingerprint -> source of each model that was loaded, the newest last

    @property
    def is_known(self) -> bool:
        """Whether the engine has reported its status."""
        return self.now is not NOT_YET

    def source_of(self, fingerprint: str) -> str:
        """The source of a model loaded in this window with that fingerprint; empty if there is none."""
        return self._sources.get(fingerprint, "")

    @property
    def source_of_file(self) -> str:
        """The source of the opened file's model, if it is known: it was loaded here before with the same fingerprint,
        or is the bundled one. Empty if the user has to choose."""
        if self.now.opened is None or self.now.model is None:
            return ""
        by_name = BUNDLED if self.now.opened.model == BUNDLED_NAME else ""
        return self.source_of(self.now.model.fingerprint) or by_name

    @property
    def last_source(self) -> str:
        """The source of the model that was loaded last; empty if there was none."""
        return next(reversed(self._sources.values()), "")

    @property
    def preset(self) -> str:
        """The name of the cache preset in use, whatever its parameters; empty if it is none, or if the opened file only
        says what another program calls it."""
        cache, opened = self.now.cache, self.now.opened
        is_foreign = opened is not None and opened.foreign_cache is not None
        is_preset = cache.codec.is_uniform or not cache.retention.keeps_all
        return preset_of(cache).name if is_preset and not is_foreign else ""

    @property
    def has_file(self) -> bool:
        return self.now.opened is not None

    @property
    def why_no_engine(self) -> str:
        """Why the engine cannot compute; empty if it runs, or may answer again."""
        return "the engine is gone: restart it" if self.loss == "gone" else ""

    @property
    def why_no_rows(self) -> str:
        """Why there are no K and V to show; empty if there are."""
        if self.is_unloaded and self.is_loading:
            return "The model is being loaded: its K and V come with it."
        if self.is_unloaded:
            return "The model is unloaded: load it again to have its K and V."
        return self.why_unmeasured("K and V")

    @property
    def is_unloaded(self) -> bool:
        """Whether a model was loaded here and then unloaded."""
        return self.now.model is None and bool(self._sources)

    @property
    def is_loading(self) -> bool:
        """Whether a model is being loaded."""
        return self.now.work is not None and self.now.work.is_loading

    @property
    def awaits_model(self) -> bool:
        """Whether a model is on its way: one is being loaded, or the engine is only starting."""
        return not self.is_known or self.is_loading

    def why_unmeasured(self, what: str) -> str:
        """Why there is nothing of what steps measure: the opened session file does not contain it. Empty otherwise."""
        if self.now.opened is None or self.now.opened.has_rows:
            return ""
        return f"A session file has no {what}: go on with its model to compute them."

    @property
    def is_busy(self) -> bool:
        """Whether the engine runs, works, or has not reported its status yet."""
        return not self.is_known or self.now.running or self.now.work is not None

    def set_engine(self, kind: str) -> None:
        """Note where a new engine runs."""
        self.engine, self.line, self.versions = kind, "", ""
        self.lose_engine("")

    def set_line(self, words: str, versions: str) -> None:
        """Note the machine, the delay of its line and its versions of packages."""
        if words != self.line:
            self.line, self.versions = words, versions
            self._emit_changed()

    def lose_engine(self, loss: EngineLoss) -> None:
        """Note that the engine is gone or silent, or for the empty text that it answers again."""
        self.loss = loss
        if loss != "silent":
            self.busy = ""
        self.engine_changed.emit()
        self._emit_changed()

    def set_replaying(self, is_replaying: bool) -> None:
        """Note whether a restarted engine repeats the steps."""
        if is_replaying != self.is_replaying:
            self.is_replaying = is_replaying
            self._emit_changed()

    def set_busy(self, words: str) -> None:
        """Note what the engine is busy with, or for the empty text that it makes progress again."""
        self.busy = words
        self._emit_changed()

    def set_unwritten(self, why: str) -> None:
        """Note why the session's journal cannot be written, or for the empty text that it is written again."""
        self.unwritten = why
        self._emit_changed()

    def _emit_changed(self) -> None:
        if self.is_known:
            self.changed.emit(self.now, self.now)

    def set(self, status: EngineStatus) -> None:
        old, self.now = self.now, status
        if status.model is not None and status.opened is None:
            self._sources.pop(status.model.fingerprint, None)  # the newest stands last
            self._sources[status.model.fingerprint] = status.model.source
        if not _only_counts_differ(old, status):
            self.changed.emit(old, status)

    def notify(self, text: str) -> None:
        self.notice = text
        self.noticed.emit(text)

    def fail(self, text: str) -> None:
        """Show a failure; the empty text clears it."""
        if text or self.failure:
            self.failure = text
            self.failed.emit(text)


def _only_counts_differ(old: EngineStatus, new: EngineStatus) -> bool:
    if old is NOT_YET or len(old.sequences) != len(new.sequences):
        return False
    same = all(
        (was.seq_id, was.stop, was.phase, was.sampling, was.why_not_reused)
        == (now.seq_id, now.stop, now.phase, now.sampling, now.why_not_reused)
        for was, now in zip(old.sequences, new.sequences, strict=True)
    )
    capture = replace(new.capture, costs_ms=old.capture.costs_ms)
    return same and replace(new, sequences=old.sequences, step=old.step, capture=capture) == old


class PhaseProgress(Struct, frozen=True, eq=False):
    """The phases that a step of `num_layers` layers has passed, oldest first; it is suspended after the last of
    them."""

    step: int
    num_layers: int
    passed: tuple[PhaseReached, ...]

    @property
    def latest(self) -> PhaseReached:
        return self.passed[-1]

    @property
    def is_written(self) -> bool:
        """Whether the step is finished."""
        return isinstance(self.latest.phase, Written)

    @property
    def place(self) -> int:
        """The index of the latest phase; see `phase_index`."""
        return phase_index(self.latest)

    def at(self, place: int) -> PhaseReached | None:
        """The last report of the phase at an index; None if it was not reached."""
        return next((event for event in reversed(self.passed) if phase_index(event) == place), None)


def phase_index(event: PhaseReached) -> int:
    """A phase's index: 0 scheduled, then one per layer, then token chosen, then rows written."""
    match event.phase:
        case Scheduled():
            return 0
        case LayerDone(layer=layer):
            return 1 + layer
        case Chosen():
            return 1 + event.num_layers
        case _:
            return 2 + event.num_layers


class Phases(QObject):
    """Only the controller writes it. Signal: `changed()`, a phase was reached, or there is none to show any more."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.now: PhaseProgress | None = None

    def text_at(self, seq_id: int, position: int) -> str | None:
        """The text of a token that the suspended step computes, which is in no record yet; None if it computes none
        there."""
        first = self.now.passed[0].phase if self.now is not None else None
        for part in first.sequences if isinstance(first, Scheduled) else ():
            if part.seq_id == seq_id and 0 <= position - part.first_position < len(part.texts):
                return part.texts[position - part.first_position]
        return None

    def take(self, event: PhaseReached) -> None:
        """Add a phase that was reached; the phase `Scheduled` begins a new step."""
        known = self.now
        goes_on = known is not None and known.step == event.step and not isinstance(event.phase, Scheduled)
        passed = known.passed if goes_on and known is not None else ()
        self.now = PhaseProgress(event.step, event.num_layers, (*passed, event))
        self.changed.emit()

    def follow(self, suspended: SuspendedStep | None, step: int | None) -> bool:
        """Update from the engine's status: its step, and the step it has suspended. Returns whether a step was given
        up."""
        known = self.now
        if known is None or suspended is not None or (known.is_written and step == known.step):
            return False
        self.now = None
        self.changed.emit()
        return not known.is_written


class Servers(QObject):
    """The controller writes what is reported, panels write what is chosen. Signal: `changed()`."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.all: tuple[ServerState, ...] = ()
        self.chosen = ""  # the name of a server; empty: the page pools of this session

    @property
    def now(self) -> ServerState | None:
        """The server that is viewed."""
        return next((server for server in self.all if server.name == self.chosen), None)

    def take(self, event: ServersChanged) -> None:
        known = {server.name for server in self.all}
        self.all = event.servers
        names = [server.name for server in self.all]
        new = [name for name in names if name not in known]
        if new or self.chosen not in names:
            self.chosen = new[-1] if new else names[-1] if names else ""
        self.changed.emit()

    def choose(self, name: str) -> None:
        if name != self.chosen:
            self.chosen = name
            self.changed.emit()
