"""What the user wants and only the window can decide: which step, sequence or model a command is about, and whether a
step is done or looked at. Everything else that the user wants is a command, which views emit as `wants`. And where
the keys move the selection.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from PySide6.QtCore import QObject, QTimer, Signal

from app.control.requests import Requests
from app.control.sender import PersonWaiting, Sender
from app.kit.asking import Question
from app.kit.widgets import prose
from app.models import Models
from app.models.bookmarks import selected_fields
from app.models.measurement import Request
from app.models.places import geometry_of
from app.models.sequence_status import FULL, selected_info, why_ended
from app.models.timeline import tip_left
from engine.errors import InputError
from engine.saved.journal import check_nobody_writes
from engine.saved.session import spec_of
from engine.spec.bookmark import Bookmark, BookmarkTarget
from engine.spec.condition import Breakpoint
from engine.spec.edit import Edit
from engine.spec.model import BUNDLED, CaptureLevel, ModelSpec
from engine.spec.sampling import Chat, Prompt, SamplingParams
from engine.wire import commands, exporting
from engine.wire.devices import UnloadModel
from engine.wire.message import Command


class Intents(QObject):
    """Actions and signals of views call these. Signal: `model_wanted()`, the user has to choose a model.

    `loading` is how models are loaded: device, dtype, threads and weights (its `source` is not used).
    """

    model_wanted = Signal()

    def __init__(
        self,
        models: Models,
        sender: Sender,
        requests: Requests,
        waiting: PersonWaiting,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._models = models
        self._sender = sender
        self._requests = requests
        self._waiting = waiting
        self.loading = ModelSpec()
        self.carried: Path | None = None  # the file of this machine that was opened last, where no other one was since
        self.sessions_folder: Path | None = None  # where only windows of this program write their session journals

    # ---- whatever is wanted --------------------------------------------------------------------------------------

    def take(self, wanted: Command | Question) -> None:
        """Send what a view wants: a command of the user, or a question of its own."""
        if isinstance(wanted, Command):
            self.send(wanted)
        elif not self._models.status.loss:
            self._sender.ask(wanted)
            self._waiting.wake()

    def send(self, command: Command) -> None:
        """Send a command of the user. An earlier failure leaves the status line, unless the engine is gone, or a panel
        measures, which it may do on its own."""
        if isinstance(command, commands.BeginBranch) and command.step is None:
            self._go_on_otherwise(command)
            return
        if not self._models.status.loss and not isinstance(command, Request):
            self._models.status.fail("")
        requests = self._requests
        match command:
            case commands.Fork(step=None):  # at the step that is shown
                requests.sequences.ask(replace(command, step=self._models.selection.now.step))
            case commands.BeginBranch():
                self._waiting.expect_pictures()
                requests.sequences.ask(command)
            case commands.SubmitPrompt() | commands.Fork():
                requests.sequences.ask(command)
            case commands.JoinBranches():
                self._models.selection.update(step=None)
                requests.sequences.join(command)
            case commands.StartComparison():
                requests.comparing.start(command)
            case exporting.Export():
                requests.exports.write(command)
            case commands.SetPace() | commands.SetKeptLimit():
                requests.settings.choose(command)
            case _ if isinstance(command, Request):
                requests.measurements.ask(command)
            case _:
                self._prepare(command)
                self._sender.post(command)
        self._waiting.wake()

    def _prepare(self, command: Command) -> None:
        match command:
            case commands.Step() | commands.Run() | commands.NextPhase():
                self._waiting.expect_pictures()
            case commands.Cancel():
                self._requests.comparing.stop_waiting()
            case commands.RemoveSequence(seq_id=seq_id) if seq_id == self._models.selection.now.seq_id:
                # first another one is selected: the engine can answer no more requests about this one
                others = [info.seq_id for info in self._models.status.now.sequences if info.seq_id != seq_id]
                if others:
                    self._models.selection.update(seq_id=others[-1], position=None)
            case UnloadModel():
                self._models.selection.update(step=None)

    # ---- steps and runs ------------------------------------------------------------------------------------------

    def on_step(self) -> None:
        """Do one step; while an earlier step is shown, show the next recorded one instead. A step that is suspended
        between two of its phases is finished, whichever step is shown."""
        if self._models.status.now.suspended is not None:
            self._models.selection.update(step=None)
        if self._models.selection.now.step is None:
            self.send(commands.Step())
        else:
            self._look_from_here(+1)

    def on_next_phase(self) -> None:
        """Begin a step in phases, or advance the suspended one to its next phase; the live step is shown."""
        self._models.selection.update(step=None)
        self.send(commands.NextPhase())

    def on_step_back(self) -> None:
        """Show the step before the one that is shown."""
        self._look_from_here(-1)

    def on_run_or_pause(self) -> None:
        if self._models.status.now.running:
            self.send(commands.Pause())
        else:
            self.on_run_to(None)

    def on_run_to(self, limit: int | str | None) -> None:
        """Run from the live step: so many steps, or until a condition holds; None: until paused, finished or the
        context is full."""
        self._models.selection.update(step=None)
        self.send(commands.Run(until=limit) if isinstance(limit, str) else commands.Run(limit))

    def on_run_here(self) -> None:
        """Run to the chosen place on the timeline: the number of steps that were chosen ahead, or the number by which
        the step shown is ahead of the live one on a branch that was left. A step that is not ahead is made live."""
        now, timeline = self._models.selection.now, self._models.timeline
        if num_steps := now.ahead or timeline.num_steps_ahead:
            self._models.selection.update(step=None, ahead=0)
            self.on_run_to(num_steps)
        elif now.step is not None:
            self.send(commands.GoTo(now.step))

    def on_run_to_token(self) -> None:
        """Run until the sequence reaches the selected token's position if the live step is before it; otherwise make
        the step that computed the token the live one."""
        now, timeline = self._models.selection.now, self._models.timeline
        token = timeline.token(now.seq_id, now.position) if now.position is not None else None
        if token is None:
            return
        if timeline.num_steps_ahead and timeline.live_path.num_tokens(now.seq_id) <= token.position:
            self.on_run_to(f"tokens >= {token.position + 1} and sequence = {now.seq_id}")
        elif token.step != timeline.history.live:
            self.send(commands.GoTo(token.step))

    def on_step_of_token(self) -> None:
        """Show the step that computed the selected token."""
        now = self._models.selection.now
        token = self._models.timeline.token(now.seq_id, now.position) if now.position is not None else None
        if token is not None:
            self._models.selection.update(step=token.step)

    def on_match_wanted(self, direction: int) -> None:
        """Show the next (+1) or previous (-1) step at which the condition searched for held."""
        step = self._models.breakpoints.next_match(self._models.selection.now.step, direction)
        if step is not None:
            self._models.selection.update(step=step)

    def on_all_breakpoints_switched(self) -> None:
        """Enable all breakpoints if at least one is disabled, else disable all."""
        breakpoints = self._models.breakpoints.listed
        is_enabled = not all(stop.is_enabled for stop in breakpoints)
        self.on_breakpoints_changed(tuple(replace(stop, is_enabled=is_enabled) for stop in breakpoints))

    def on_breakpoints_changed(self, breakpoints: tuple[Breakpoint, ...]) -> None:
        """Replace the conditions that halt a run."""
        self._requests.breakpoints.set(breakpoints)
        self._waiting.wake()

    def _look_from_here(self, direction: int) -> None:
        timeline, step = self._models.timeline, self._models.selection.now.step
        if direction > 0 and timeline.is_elsewhere and step == timeline.tip:
            self._models.status.notify(f"Step {step} is the newest of its branch: go there to step on from it")
        else:
            self._models.selection.update(step=timeline.neighbour(step, direction))

    # ---- prompts and sequences -----------------------------------------------------------------------------------

    def on_prompt_submitted(
        self,
        content: str | tuple[int, ...] | Chat,
        sampling: SamplingParams,
        alone: bool = True,
        in_phases: bool = False,
        after: int | None = None,
    ) -> None:
        """Start a new run with a text, token ids or a conversation, in place of all sequences, or of `after` only; not
        `alone`: beside them. A prompt is only read, its first step in phases if wanted, and no other sequence is
        stepped; but a conversation that replaces something is also answered, up to its end."""
        num_steps: int | None = 0 if in_phases else 1
        try:
            if isinstance(content, str):
                prompt = Prompt(text=content, sampling=sampling)
            elif isinstance(content, Chat):
                prompt = Prompt(chat=content, sampling=sampling)
                is_answered = not in_phases and (alone or after is not None)
                num_steps = None if is_answered else num_steps
            else:
                prompt = Prompt(token_ids=content, sampling=sampling)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self.send(commands.SubmitPrompt(prompt, alone, num_steps, in_phases, after))

    def on_sampling_changed(self, sampling: SamplingParams) -> None:
        """Set the sampling of the selected sequence or, if none is selected, of the next prompt."""
        info = selected_info(self._models)
        self.send(commands.SetSampling(sampling, info.seq_id if info is not None else None))
        if (step := self._models.selection.now.step) is not None and info is not None:
            self._models.status.notify(
                f"Changed for the live step, not for step {step}: go there first to change what came of it"
            )

    # ---- the history tree ----------------------------------------------------------------------------------------

    def on_go_on_from_here(self) -> None:
        """Make the step that is shown the live one."""
        if (step := self._models.selection.now.step) is not None:
            self.send(commands.GoTo(step))

    def on_returned(self) -> None:
        """Make the newest step of the branch that was left last the live one again."""
        if (tip := tip_left(self._models.history)) is not None:
            self.send(commands.GoTo(tip))

    def _go_on_otherwise(self, branch: commands.BeginBranch) -> None:
        """Do a step with tokens or sampling of the user's choice, from the step that is shown."""
        step, info = self._models.selection.now.step, selected_info(self._models)
        if step is not None:
            self.send(replace(branch, step=step))
            return
        if info is not None and info.stop in FULL:
            self._models.status.notify(f"Sequence {info.seq_id}: {why_ended(info)}")
            return
        match branch:
            case commands.BeginBranch(sampling=SamplingParams() as sampling):
                self.send(commands.SetSampling(sampling, branch.seq_id))
            case commands.BeginBranch(token_ids=()):
                self.send(commands.ForceText(branch.seq_id, branch.text))
            case _:
                self.send(commands.Force(branch.seq_id, branch.token_ids))
        self.send(commands.Step())

    def on_bookmark_put(self, bookmark: Bookmark) -> None:
        """Set a bookmark, or change its note."""
        try:
            self._models.bookmarks.put(bookmark)
        except InputError as error:
            self._models.status.fail(str(error))

    def on_bookmark_wanted(self, target: BookmarkTarget) -> None:
        """Show the place of a bookmark, whichever branch its step is on."""
        models = self._models
        if target.step not in models.history:
            models.status.notify(f"Step {target.step} is not there any more: its branch was deleted")
            return
        models.selection.update(step=target.step, **selected_fields(target))

    # ---- edits and measurements ----------------------------------------------------------------------------------

    def on_edited(self, *edits: Edit) -> None:
        """Make edits on the live step, in their order. If one of them is not possible there, none is sent."""
        if self._models.selection.now.step is not None:
            self._models.status.notify("Edits are made on the live step: go to this one first, then edit")
            return
        model = self._models.status.now.model
        try:
            for edit in edits:
                if model is not None:
                    edit.check(model.geometry, self._models.timeline.num_tokens(edit.seq_id))
        except InputError as error:
            self._models.status.fail(str(error))
            return
        for edit in edits:
            self.send(commands.MakeEdit(edit))

    def on_edits_repeated(self, edits: tuple[Edit, ...]) -> None:
        """Repeat edits that were made before or read from a file."""
        self.on_edited(*edits)

    # ---- models and files ----------------------------------------------------------------------------------------

    def on_model_chosen(self, model: ModelSpec) -> None:
        """Load a model with the chosen device, dtype, threads and weights."""
        self.send(commands.LoadModel(model.loaded_as(self.loading), self._models.status.now.cache))

    def on_loading_chosen(self, model: ModelSpec) -> None:
        """Load this model with this device, dtype, threads and weights, and later models with the same."""
        self.loading = model
        self.on_model_chosen(model)

    def on_capture_chosen(self, level: CaptureLevel) -> None:
        self.send(commands.SetCapture(level, self._models.status.now.capture.by_layer))

    def on_time_by_layer_switched(self) -> None:
        now = self._models.status.now.capture
        self.send(commands.SetCapture(now.level, not now.by_layer))

    def on_snapshot_chosen(self, path: Path, model: Path | None = None, *, is_here: bool = False) -> None:
        """Open a file in place of the present session, unless a window is still writing it. `model` is that of a state
        file of llama.cpp; None: the one beside it. `is_here`: it is this machine's, wherever the engine runs."""
        try:
            check_nobody_writes(path)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self.carried = path if is_here else None
            self.send(commands.OpenSnapshot(path, model, is_here))
            if self._models.status.awaits_model:
                self._models.status.notify(f"{prose(path.name)} is opened once the model is loaded")

    def on_continued(self) -> None:
        """Continue from the opened file with its model: one that was loaded here before and has the same fingerprint,
        or the bundled one. If it is another, the user is asked to choose it: a path that is named in a file is not
        opened."""
        if source := self._models.status.source_of_file:
            self.send(commands.Continue(self._as_in_file(source), may_open_files=self.is_own_file))
        else:
            model = self._models.status.now.model
            where = f" It was at {prose(model.source)}." if model is not None and model.source else ""
            self._models.status.notify(f"Choose the model of this file: decoding goes on where it fits.{where}")
            self.model_wanted.emit()

    @property
    def is_own_file(self) -> bool:
        """Whether the opened file is a session journal written by a window of this program."""
        opened, folder = self._models.status.now.opened, self.sessions_folder
        return opened is not None and folder is not None and opened.path.resolve().parent == folder.resolve()

    def _as_in_file(self, source: str) -> ModelSpec:
        """How to load the file's model from `source`. A session is replayed with the file's dtype and threads; rows of
        a snapshot continue on the device that models are loaded to, in the dtype that suits it."""
        opened, model = self._models.status.now.opened, self._models.status.now.model
        if opened is None or model is None or opened.has_rows:
            return ModelSpec(source).loaded_as(replace(self.loading, dtype="auto"))
        return replace(spec_of(model), source=source)

    def on_file_closed(self) -> None:
        """Start again with the model that was loaded before the file was opened, else with the bundled one."""
        model = ModelSpec(self._models.status.last_source or BUNDLED).loaded_as(self.loading)
        self.send(commands.CloseSnapshot(model))


LEAP = 8
PLAY_MS = 120


class Navigator(QObject):
    """Slots for the keys that move the selection, and a timer that plays the recorded steps one after the other."""

    def __init__(self, models: Models, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._playing = QTimer(self, interval=PLAY_MS)
        self._playing.timeout.connect(self._on_play)
        models.timeline.reset.connect(self._playing.stop)

    @property
    def is_playing(self) -> bool:
        return self._playing.isActive()

    def on_first_step(self) -> None:
        self._playing.stop()
        first = self._models.timeline.first
        if first is not None and len(self._models.timeline) > 1:
            self._models.selection.update(step=first.step)

    def on_live(self) -> None:
        self._playing.stop()
        self._models.selection.update(step=None)

    def on_play_or_stop(self) -> None:
        """Start or stop playing the recorded steps, from the step shown; from the first when the live one is."""
        if self._playing.isActive():
            self._playing.stop()
            return
        if self._models.selection.now.step is None:
            self.on_first_step()
        if self._models.selection.now.step is not None:
            self._playing.start()

    def show_lens(self, name: str) -> None:
        """Look at the rows through another lens."""
        self._models.selection.update(lens=name, change=False)

    def toggle_change(self) -> None:
        """Switch between the whole tensor and what the step changed in it."""
        self._models.selection.update(change=not self._models.selection.now.change)

    def walk_layers(self, by: int) -> None:
        """Select the layer `by` further down (negative: up), among those with K and V of their own."""
        geometry = geometry_of(self._models)
        if geometry is None or not geometry.attention_layers:
            return
        layers = geometry.attention_layers
        indices = [layer.index for layer in layers]
        now = self._models.selection.now
        here = indices.index(now.layer) if now.layer in indices else 0
        layer = layers[min(max(here + by, 0), len(layers) - 1)]
        self._models.selection.update(layer=layer.index, kv_head=min(now.kv_head, layer.num_kv_heads - 1))

    def walk_heads(self, by: int) -> None:
        """Select the kv head `by` further right (negative: left)."""
        geometry, now = geometry_of(self._models), self._models.selection.now
        if geometry is None or now.layer >= geometry.num_layers:
            return
        num_heads = geometry.layers[now.layer].num_kv_heads
        if num_heads:
            self._models.selection.update(kv_head=min(max(now.kv_head + by, 0), num_heads - 1))

    def walk_tokens(self, by: int) -> None:
        """Select the token `by` further right (negative: left)."""
        now = self._models.selection.now
        num_tokens = self._models.timeline.num_tokens(now.seq_id, now.step)
        if not num_tokens:
            return
        last = num_tokens - 1
        here = last if now.position is None else min(now.position + by, last)
        self._models.selection.update(position=max(here, 0))

    def _on_play(self) -> None:
        step = self._models.timeline.neighbour(self._models.selection.now.step, +1)
        self._models.selection.update(step=step)
        if step == self._models.timeline.tip:
            self._playing.stop()
