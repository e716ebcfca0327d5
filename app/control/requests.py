"""What the window asks the engine for by itself: one part per kind of request."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from app.control.picture_requests import PictureRequests
from app.control.sender import Sender
from app.draw.format import byte_size, milliseconds
from app.draw.grid import rows_of
from app.kit.asking import Question
from app.models import Models
from app.models.breakpoints import Place, spans_in
from app.models.comparison import SIDES, ComparedPictures
from app.models.measurement import Measurement, Request
from app.models.places import head_of
from engine.counted import counted
from engine.spec.condition import Breakpoint, read_breakpoints
from engine.wire.breakpoints import AttentionPlace, MeasureAttention, SetBreakpoints
from engine.wire.commands import (
    PICTURES_PER_SECOND,
    BeginBranch,
    EndComparison,
    Fork,
    JoinBranches,
    Redo,
    SetKeptLimit,
    SetPace,
    StartComparison,
    Step,
    SubmitPrompt,
    TakePicture,
)
from engine.wire.comparison import ComparedStep, ComparisonEnded, ComparisonScanned, ComparisonStarted
from engine.wire.events import Event, Failed, ForkMade, Redone, Restarted, Submitted, WentTo
from engine.wire.exporting import Export, ExportCancelled, Exported
from engine.wire.pictures import AttentionRequest, HeadRequest, Picture, PictureRequest, Side, WallRequest


class Requests:
    """The parts. `replaying` replays the history in a restarted engine."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self.pictures = PictureRequests(models, sender)
        self.measurements = MeasurementControl(models, sender)
        self.sequences = NewSequences(models, sender)
        self.replaying = Replaying(models, sender)
        self.comparing = Comparing(models, sender)
        self.exports = Exporting(models, sender)
        self.settings = EngineSettings(models, sender)
        self.breakpoints = BreakpointSettings(models, sender, self.settings)

    @property
    def are_all_answered(self) -> bool:
        """Whether no sequence, branch or picture is still to come."""
        return self.sequences.is_empty and self.pictures.is_complete and self.comparing.is_complete

    def outdate(self) -> None:
        """The live state is another one: request its pictures anew, and mark what was measured as outdated."""
        self.pictures.reset()
        self.measurements.outdate()


class Comparing:
    """The only writer of `Models.comparison`. The pictures of both runs and of their difference are requested together
    for one step; the next three are requested when these have arrived."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models, self._sender = models, sender
        self._comparison = models.comparison
        self._started_by: int | None = None  # id of the newest start that is not answered
        self._given_up: int | None = None  # and of one that was cancelled
        self._unanswered: set[Side] = set()  # the sides whose pictures were requested and have not arrived
        self._arrived: dict[Side, Picture] = {}
        self._request: PictureRequest | None = None  # of the pictures that are shown or not answered yet

    def start(self, command: StartComparison) -> None:
        """Compare a sequence with another run."""
        self._comparison.ask(command.against)
        self._started_by = self._sender.ask(Question(command, on_refusal=self._refuse_start))

    # ---- what the engine says ------------------------------------------------------------------------------------

    def take_started(self, event: ComparisonStarted) -> None:
        """Show the comparison that has started, or the current one sent again. If its start had been cancelled too late
        for the engine, end it."""
        self._forget_pictures()
        is_awaited = event.reply_to is not None and event.reply_to == self._started_by
        if is_awaited:
            self._started_by = None
        self._comparison.start(event, is_new=is_awaited)
        if event.reply_to is not None and event.reply_to == self._given_up and self._started_by is None:
            self._sender.post(EndComparison())

    def take_step(self, event: ComparedStep) -> None:
        self._comparison.append(event)
        if self._comparison.no_pictures:  # a picture that was refused at an earlier step may be possible now
            self._request = None

    def take_scanned(self, event: ComparisonScanned) -> None:
        self._comparison.scan(event.num_tokens, event.first)

    def take_ended(self, event: ComparisonEnded) -> None:
        self._forget_pictures()
        asked = self._comparison.asked
        self._comparison.end(f"The comparison ended: {event.reason}." if event.reason else "")
        if asked is not None:
            self._comparison.ask(asked)

    def _take_picture(self, side: Side, picture: Picture) -> None:
        """Take a picture. They are shown when all three have arrived in the same cells; over a slow line in few first,
        and whole when all are."""
        self._unanswered.discard(side)
        self._arrived[side] = picture
        if len(self._arrived) == len(SIDES) and len(set(map(_cells_of, self._arrived.values()))) == 1:
            self._comparison.put(ComparedPictures(*(self._arrived[side] for side in SIDES)))

    def _refuse_picture(self, side: Side, failure: Failed) -> None:
        self._unanswered.discard(side)
        if failure.message:
            self._comparison.refuse_pictures(failure.message)

    def _refuse_start(self, failure: Failed) -> None:
        if failure.reply_to == self._started_by:
            self._started_by = None
            self._comparison.refuse(failure.message)

    def stop_waiting(self) -> None:
        """Note that the comparison being started was cancelled."""
        if self._started_by is not None:
            self._given_up, self._started_by = self._started_by, None
            self._comparison.refuse("")

    def forget(self) -> None:
        """Note that the engine is gone, and the other run with it."""
        self._forget_pictures()
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
            self._sender.ask(Question(TakePicture(request, side=side), take, refuse, slot=side))

    def _forget_pictures(self) -> None:
        for side in SIDES:
            self._sender.withdraw(side)
        self._unanswered.clear()
        self._arrived.clear()
        self._request = None

    def _wanted(self) -> PictureRequest | None:
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
                seq_id, step.step, selected.layer, picture.columns, start, stop, lens, head, picture.rows,
                wanted.attention_latest,
            )  # fmt: skip
        start, stop = rows_of(wanted.head_range, count)
        layer, lens = selected.layer, selected.lens
        head = head_of(self._models, lens, layer, selected.kv_head)
        return HeadRequest(seq_id, count, lens, layer, head, start, stop, picture.columns)


def _cells_of(picture: Picture) -> tuple[int, int]:
    """How many columns and rows a picture may have."""
    return getattr(picture.request, "max_columns", 0), getattr(picture.request, "max_rows", 0)


class Replaying:
    """Sends the recorded history to a restarted engine, and keeps the command until it is answered, so that it can be
    sent again if that engine dies too."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models = models
        self._sender = sender
        self._asked: Redo | None = None  # the command that is not answered yet
        self._id = 0  # under which it was sent last
        self._is_held = False  # whether it is sent once a load of the model has ended

    @property
    def is_going_on(self) -> bool:
        """Whether the replay is not finished: until then the screen shows the state of the engine before."""
        return self._asked is not None

    def begin(self, *, after_load: bool = False) -> None:
        """Send the history to the engine that has just started, if there is any, and say so in the status line.
        `after_load`: to the present engine, which loads its model again, and not before it has: what it was asked
        before that, such as to open a file, may begin another history."""
        if self._models.status.has_file:
            self._models.status.notify("The engine begins again: the file is opened once more")
            return
        self._ask(self._asked or self._plan())
        if self._asked is None:
            self._models.status.notify("The engine begins again: there was no sequence in it")
            return
        self._is_held = after_load
        if not after_load:
            self._id = self._sender.post(self._asked)
        self._models.status.notify("The engine begins again: its steps are done once more")

    def forget(self) -> None:
        """Give up the replay: the user has begun something else."""
        self._ask(None)

    def restarted(self, event: Restarted) -> None:
        """Give up the replay if the history was restarted by a command (a prompt, a model), and not by the new engine's
        own start."""
        if event.reply_to:
            self.forget()
        elif self._is_held and self._asked is not None:
            self._is_held = False
            self._id = self._sender.post(self._asked)

    def refused(self, failure: Failed) -> bool:
        """Give up the replay if it is what an engine that has its model refuses; returns whether it was that."""
        is_refused = self._asked is not None and failure.reply_to == self._id
        if is_refused and self._models.status.now.model is not None:
            self.forget()
            return True
        return False

    def take(self, event: Redone) -> None:
        """Say in the status line how far the replay got, and how exact it is."""
        self.forget()
        count, took = event.num_steps, milliseconds(event.took_ms)
        what = "no step was" if not count else "its only step was" if count == 1 else f"all its {count:,} steps were"
        as_first = "exactly as first"
        if event.num_computed_anew:
            anew = f"{counted(event.num_computed_anew, 'token')} in pages of an earlier run, computed anew"
            as_first += f" but for the rounding of {anew}"
        if event.why_not_exact:
            as_first = f"not exactly as first: {event.why_not_exact}"
        words = f"The engine begins again where it was: {what} done once more, {as_first}, in {took}"
        if event.why_not_all:
            where = "the start" if event.step is None else f"step {event.step}"
            words = f"The engine begins again at {where}; the tokens after it come next: {event.why_not_all}"
        self._models.status.notify(words)

    def _ask(self, asked: Redo | None) -> None:
        self._asked = asked
        self._models.status.set_replaying(asked is not None)

    def _plan(self) -> Redo | None:
        """The whole tree, with the commands since the live step that the engine last reported; None if there is nothing
        to replay."""
        status, history = self._models.status.now, self._models.history
        pending = status.pending if status.step == history.live else ()
        nodes = history.nodes()
        return Redo(nodes, history.live, pending) if nodes or pending else None


class Pace(Struct, frozen=True):
    """One pace: its name, its short label, its text in a menu, its tip, and the command that sets it."""

    name: str
    label: str
    text: str
    tip: str
    command: SetPace


USUAL_PACE = str(PICTURES_PER_SECOND)
PACES = {
    pace.name: pace
    for pace in (
        Pace(
            "1",
            "1 token/s",
            "1 token a second",
            "A run goes slowly: one token a second, to be followed by eye",
            SetPace(1, None),
        ),
        Pace(
            "5", "5 tokens/s", "5 tokens a second", "A run goes slowly: five tokens a second at most", SetPace(5, None)
        ),
        Pace(
            USUAL_PACE,
            f"{PICTURES_PER_SECOND} pictures/s",
            f"{PICTURES_PER_SECOND} pictures a second",
            f"A run goes as fast as it can, and is shown {PICTURES_PER_SECOND} times a second: no token is left out, "
            "several come at once where decoding is faster",
            SetPace(None, PICTURES_PER_SECOND),
        ),
        Pace(
            "all",
            "every token",
            "A picture after every token",
            "A picture is taken after every token, and a run is as slow as that makes it",
            SetPace(None, None),
        ),
    )
}


Setting = SetPace | SetBreakpoints | SetKeptLimit
DEFAULTS: tuple[Setting, ...] = (PACES[USUAL_PACE].command, SetBreakpoints(()))  # that every engine begins with


class EngineSettings:
    """What is set in the present engine and in every later one, by kind; before there is one, in the first."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models, self._sender = models, sender
        self._chosen: dict[type[Setting], Setting] = {}

    def choose(self, command: Setting) -> None:
        self._chosen[type(command)] = command
        if self._models.status.is_known:
            self._sender.post(command)

    def repeat(self) -> None:
        """Send to an engine that has just started what is not as it begins."""
        for command in self._chosen.values():
            if command not in DEFAULTS:
                self._sender.post(command)


LONGEST = 80  # characters of a condition in a sentence


class BreakpointSettings:
    """The only writer of `Models.breakpoints`."""

    def __init__(self, models: Models, sender: Sender, settings: EngineSettings) -> None:
        self._models, self._sender, self._settings = models, sender, settings
        models.breakpoints.attention_wanted.connect(self.ask)

    def set(self, breakpoints: tuple[Breakpoint, ...]) -> None:
        """Replace the breakpoints."""
        self._models.breakpoints.set(breakpoints)
        self._settings.choose(SetBreakpoints(breakpoints))

    def bring_back(self, texts: tuple[str, ...]) -> None:
        """Set the breakpoints of an opened session, if it has any, and report one that cannot be read."""
        breakpoints, others = read_breakpoints(texts)
        if breakpoints:
            self.set(breakpoints)
        if others:
            words = f"A breakpoint of this session cannot be read and is left out: {others[0][:LONGEST]}"
            self._models.status.notify(words + (f" (and {len(others) - 1} more)" if len(others) > 1 else ""))

    def ask(self, places: tuple[Place, ...]) -> None:
        """Ask how much attention went to the spans of those places."""
        counts = {
            (step, seq_id): part.num_tokens
            for step, seq_id, _ in places
            if (part := self._models.timeline.part(seq_id, step)) is not None
        }
        wanted = tuple(AttentionPlace(step, seq_id, count) for (step, seq_id), count in counts.items())
        question = MeasureAttention(wanted, spans_in(places))
        self._sender.ask(
            Question(question, self._models.breakpoints.take_masses, self._stay_unknown, slot=MeasureAttention)
        )

    def _stay_unknown(self, _failure: Failed) -> None:
        self._models.breakpoints.take_masses(None)


class NewSequences:
    """Asks for sequences and branches, and keeps the commands by id until what they ask for exists."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models, self._sender = models, sender
        self._awaited: dict[int, Fork | SubmitPrompt | BeginBranch] = {}
        self._joined_by = -1  # id of the newest command that joins sequences of other branches to the live batch

    @property
    def is_empty(self) -> bool:
        return not self._awaited

    @property
    def is_replacing_all(self) -> bool:
        """Whether a prompt was sent that will replace all present sequences."""
        return any(isinstance(command, SubmitPrompt) and command.alone for command in self._awaited.values())

    def ask(self, command: Fork | SubmitPrompt | BeginBranch) -> None:
        """Ask for a sequence, or for a branch and its first step. The engine first goes to the step where the branch
        begins; its own step is sent only when it has got there, so that a refusal does not cause a step from somewhere
        else."""
        self._awaited[self._sender.ask(Question(command, self._take, self._refuse))] = command

    def join(self, command: JoinBranches) -> None:
        """Ask for sequences of other branches beside the live ones; they arrive without being selected."""
        self._joined_by = self._sender.post(command)

    def show(self, seq_id: int, answer: Submitted | ForkMade) -> None:
        """Select the sequence that was made, unless it was joined to the live batch."""
        if answer.reply_to != self._joined_by:
            self._models.selection.update(seq_id=seq_id, position=None, step=None)

    def _take(self, event: Event) -> None:
        if isinstance(event, Submitted | ForkMade | WentTo):
            command = self._awaited.pop(event.reply_to or 0, None)
            if isinstance(event, WentTo) and isinstance(command, BeginBranch):
                self._sender.post(Step())

    def _refuse(self, failure: Failed) -> None:
        self._awaited.pop(failure.reply_to or 0, None)
        if failure.message:
            self._models.status.fail(failure.message)


class Exporting(QObject):
    """Signal: `written(Exported)`."""

    written = Signal(object)

    def __init__(self, models: Models, sender: Sender) -> None:
        super().__init__()
        self._models = models
        self._sender = sender

    def write(self, command: Export) -> None:
        self._sender.ask(Question(command, self._take))

    def is_writing(self, path: Path) -> bool:
        """Whether an export to that file has been asked for and is not finished."""
        others = (command.path for command in self._sender.unanswered(Export))
        return any(other == path or other.resolve() == path.resolve() for other in others)

    def _take(self, answer: Exported | ExportCancelled) -> None:
        if isinstance(answer, ExportCancelled):
            self._models.status.notify(f"Export cancelled: nothing was written to {answer.path}")
            return
        beside = f" · {answer.script.name} beside it" if answer.script is not None else ""
        size, took = byte_size(answer.num_bytes), milliseconds(answer.took_ms)
        self._models.status.notify(f"Written to {answer.path}: {size} in {took}{beside}")
        self.written.emit(answer)


class MeasurementControl:
    """The only writer of `Models.measurements`. An answer to an older question is dropped."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models = models
        self._measurements = models.measurements
        self._sender = sender
        self._by_command: dict[type[Request], Measurement[Any]] = {m.command: m for m in self._measurements.all}

    def ask(self, question: Request) -> None:
        """Send a measurement. Panels do so on their own too, so an earlier failure stays in the status line."""
        latest, measurement = self._models.timeline.live_path.latest, self._by_command[type(question)]
        question = replace(question, id=self._sender.next_id())
        measurement.ask(question, latest.step if latest is not None else None)
        self._sender.ask(Question(question, measurement.take, measurement.refuse, slot=type(question)))

    def outdate(self) -> None:
        """Mark what was measured on the live rows as outdated: these rows have changed."""
        for each in self._measurements.of_live_rows:
            each.outdate()

    def forget(self) -> None:
        """Another model was loaded: drop all results."""
        for each in self._by_command.values():
            each.forget()
