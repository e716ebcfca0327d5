"""What views ask the engine: a question, panels that show its answer, and the base of panels that measure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from msgspec import Struct

from app.kit.provenance import Provenance
from app.kit.reader import SELECTION, STATUS, STEPS, SignalSource, State
from app.kit.view import View
from app.kit.widgets import ProgressButton, plain_tip
from app.models import Models
from app.models.measurement import Measurement, Request
from engine.spec.cache import PRESETS, CacheSpec, preset_of
from engine.wire.commands import Cancel
from engine.wire.events import Failed
from engine.wire.message import Command


def ignore(_answer: object) -> None:
    """Do nothing with an answer."""


class Question(Struct, frozen=True):
    """A command, and who takes its answers. Views emit it as `wants`.

    `on_answer` takes each answer but a mere `Done`. `on_refusal` takes the failure, without a message where the command
    was cancelled or the engine is gone; without it the failure is shown in the status line. Of the questions of one
    `slot` only the newest is answered.
    """

    command: Command
    on_answer: Callable[[Any], object] = ignore
    on_refusal: Callable[[Failed], object] | None = None
    slot: Hashable = None


SERVERS = SignalSource("servers")


def server_source(models: Models) -> Provenance:
    """Where what is said of the chosen server comes from, or of this session's page pool, where none is chosen."""
    server = models.servers.now
    if server is None:
        return Provenance("page pool", "live cache", "The pages of this session that prompts can find")
    kind = {"connected": "live cache", "recorded": "recorded"}.get(server.state, "stale")
    return Provenance(server.state, kind, server.words)


class AnswerView(View[State]):
    """A subclass says what it asks in `question`, None for nothing; `answer` is the newest one, or the refusal's
    sentence, and None before. One question at a time is on its way, unless another is asked meanwhile."""

    follows = (SERVERS, STATUS, STEPS)

    answer: Any = None
    _asked: tuple[Command | None, Hashable] = (None, None)
    _is_waiting = False

    def question(self) -> Command | None:
        """What to ask now."""
        raise NotImplementedError

    def want(self, *, is_visible: bool) -> None:
        command = self.question() if is_visible else None
        if command is None or (self._is_waiting and command == self._asked[0]):
            return
        key = command, self._wanted_from(command)
        if key != self._asked:
            self._asked, self._is_waiting = key, True
            self.wants.emit(Question(command, self._on_answer, self._on_refusal, slot=self.title))

    def _wanted_from(self, command: Any) -> Hashable:
        """What the answer depends on besides the question."""
        server = self._models.servers.now
        if command.server:
            return server and (server.counts.batches or server.words)
        status = self._models.status.now
        if self._models.status.now.running:
            return self._asked[1]  # reading a large pool costs a run more than it is worth
        return status.step, status.cache, status.model is None

    def _on_answer(self, answer: Any) -> None:
        self._is_waiting, self.answer = False, answer
        self.refresh()

    def _on_refusal(self, failed: Failed) -> None:
        self._is_waiting = False
        self.answer = failed.message or self.answer
        if not failed.message:
            self._asked = None, None  # the engine is another one by now
        self.refresh()


class MeasuringView(View[State]):
    """A view of the measurement named in `measures`. The subclass says why nothing can be asked (`problem`) and shows
    the answer; this base follows the measurement.

    Signal: `applied(CacheSpec)` (make a mode that was tried the live one).
    """

    measures: ClassVar[str]
    follows = (SELECTION, STATUS, STEPS)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.measurement: Measurement[Any] = getattr(models.measurements, self.measures)

    def follow(self, models: Models) -> None:
        self.measurement.changed.connect(self.refresh)
        super().follow(models)

    def problem(self) -> str:
        """Why nothing can be asked now; empty if it can."""
        raise NotImplementedError

    @property
    def answer(self) -> Any:
        """The newest answer about the selected sequence, or None."""
        return self.measurement.answer_of(self._models.selection.now.seq_id)

    def invited(self, words: str) -> str:
        """The invitation to ask, preceded by the reason why an earlier answer is gone, if there was one."""
        if not self.measurement.is_out_of_date:
            return words
        return f"What was measured is out of date: the cache has changed since. {words}"

    def is_old(self, answer: Any) -> bool:
        """Whether the answer is of an earlier step than the newest; an edit after that is a step of its own."""
        newest = self._models.timeline.live_path.latest
        return newest is not None and answer.step not in (newest.step, self._models.history.live)

    def rebuilt_words(self, answer: Any) -> str:
        """A note if the answer was measured on rows recomputed from the tokens instead of those in the live cache."""
        return "On exact rows, rebuilt from the tokens." if answer is not None and answer.is_rebuilt else ""


class AskingView(MeasuringView[State]):
    """A measuring view with a button that asks, or stops a running measurement. The subclass sets `button_words` and
    `button_name`, places `button`, and returns the question from `request`."""

    button_words: ClassVar[str] = "Measure"
    button_name: ClassVar[str] = ""

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.button = ProgressButton(self.button_words)
        self.button.setAccessibleName(self.button_name or self.button_words)
        self.button.clicked.connect(self._on_clicked)

    def request(self) -> Request | None:
        """The question to ask; None if it cannot be asked with the present settings."""
        raise NotImplementedError

    def measure(self) -> None:
        """Ask, if possible; a measurement that is running is not disturbed."""
        if self.measurement.is_waiting or self.problem():
            return
        request = self.request()
        if request is not None:
            self.wants.emit(request)

    def _on_clicked(self) -> None:
        if self.measurement.is_waiting:
            self.wants.emit(Cancel())
        else:
            self.measure()

    def refresh(self) -> None:
        problem, found = self.problem(), self.measurement
        self.button.setEnabled(found.is_waiting or not problem)
        self.button.setToolTip(plain_tip(problem))
        work = found.work(self._models.status.now.work)
        self.button.show_work(self.button_words, work, is_waiting=found.is_waiting)
        super().refresh()


def mode_named(models: Models, name: str) -> CacheSpec:
    """The cache preset of that name; the mode in use keeps its present parameters."""
    status = models.status.now
    is_in_use = preset_of(status.cache).name == name and status.cache.codec.is_uniform
    return status.cache if is_in_use else PRESETS[name].spec


def why_nothing(models: Models, before: str, past: str, few: str) -> str:
    """Why nothing can be measured on the live rows: `before` the first step, `past` (with `{0}` for the step) while an
    earlier step is shown, `few` with a single token; empty if it can."""
    now, timeline = models.selection.now, models.timeline
    if timeline.latest is None:
        return before
    if now.step is not None:
        return past.format(now.step)
    return few if timeline.num_tokens(now.seq_id) < 2 else ""
