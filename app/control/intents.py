"""What a person may wish for, and the commands that grant it."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from app.control.pace import ChosenPace, Pace
from app.control.requests import Requests
from app.control.sender import Sender
from app.control.waiting import Waiting
from app.kit.labels import prose
from app.models import Models
from app.models.bookmarks import place_of
from app.models.branches import beyond
from app.models.measurement import Request
from app.models.sequence_status import FULL, selected_info, why_ended
from engine.errors import InputError
from engine.saved.folder import check_nobody_writes
from engine.saved.session import spec_of
from engine.spec.bookmark import Bookmark, BookmarkTarget
from engine.spec.cache import CacheSpec
from engine.spec.edit import Edit
from engine.spec.model import BUNDLED, BUNDLED_NAME, ModelSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.spec.stops import Stop
from engine.wire import commands, opponents


class Intents(QObject):
    """A slot for each wish: views connect to them, and actions call them. `model_wanted()`: a person has to choose."""

    model_wanted = Signal()

    def __init__(
        self,
        models: Models,
        sender: Sender,
        requests: Requests,
        waiting: Waiting,
        pace: ChosenPace,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._models = models
        self._sender = sender
        self._requests = requests
        self._waiting = waiting
        self._pace = pace

    # ---- sequences -----------------------------------------------------------------------------------------------

    def on_prompt_submitted(self, content: str | tuple[int, ...], sampling: SamplingParams) -> None:
        """A new run from a text or from token ids."""
        self._submit(content, sampling, alone=True)

    def on_prompt_added(self, content: str | tuple[int, ...], sampling: SamplingParams) -> None:
        """Another sequence beside those that are there."""
        self._submit(content, sampling, alone=False)

    def on_prompt_begun(self, content: str | tuple[int, ...], sampling: SamplingParams) -> None:
        """A new run, whose first step is taken in phases."""
        self._submit(content, sampling, alone=True, in_phases=True)

    def _submit(
        self, content: str | tuple[int, ...], sampling: SamplingParams, *, alone: bool, in_phases: bool = False
    ) -> None:
        try:
            if isinstance(content, str):
                prompt = Prompt(text=content, sampling=sampling)
            else:
                prompt = Prompt(token_ids=content, sampling=sampling)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            num_steps = 0 if in_phases else 1
            self._ask_for_sequence(commands.SubmitPrompt(prompt, alone, num_steps, in_phases))

    def on_forked(self, seq_id: int) -> None:
        """A branch of a sequence, from the step that is looked at."""
        self._ask_for_sequence(commands.Fork(seq_id, self._models.selection.now.step))

    def _ask_for_sequence(self, command: commands.SubmitPrompt | commands.Fork) -> None:
        self._requests.sequences.expect(self._send(command), command)

    def on_sequence_stopped(self, seq_id: int) -> None:
        self._send(commands.StopSequence(seq_id))

    def on_sequence_removed(self, seq_id: int) -> None:
        """Its pictures are given up first: the engine cannot answer for it any more."""
        status = self._models.status.now
        others = [info.seq_id for info in status.sequences if info.seq_id != seq_id] if status is not None else []
        if others and self._models.selection.now.seq_id == seq_id:
            self._models.selection.update(seq_id=others[-1], position=None)
        self._send(commands.RemoveSequence(seq_id))

    def on_sampling_changed(self, sampling: SamplingParams) -> None:
        """How the selected sequence goes on, or where there is none, how the next prompt does."""
        info = selected_info(self._models)
        self._send(commands.SetSampling(sampling, info.seq_id if info is not None else None))

    def on_text_edited(self, text: str) -> None:
        """Count the tokens of a text while it is typed, where somebody is there to count."""
        if not self._models.status.is_engine_lost:
            self._requests.texts.ask(text)
            self._waiting.wake()

    # ---- comparing -----------------------------------------------------------------------------------------------

    def on_compared(self, against: opponents.Opponent) -> None:
        """The selected sequence beside another run."""
        self._requests.comparing.start(self._models.selection.now.seq_id, against)

    def on_comparison_ended(self) -> None:
        self._requests.comparing.end()

    # ---- steps ---------------------------------------------------------------------------------------------------

    def on_step(self) -> None:
        """One step on; while looking back, one recorded step towards the live one. A step that waits between two of
        its phases is finished, wherever one looks."""
        status = self._models.status.now
        if status is not None and status.suspended is not None:
            self._models.selection.update(step=None)
        if self._models.selection.now.step is None:
            self._send_steps(commands.Step())
        else:
            self._look_from_here(+1)

    def on_next_phase(self) -> None:
        """Begin a step in phases, or take the one that waits to its next; at the live step, where it is."""
        self._models.selection.update(step=None)
        self._send_steps(commands.NextPhase())

    def on_step_back(self) -> None:
        """Look at the step before."""
        self._look_from_here(-1)

    def on_run_or_pause(self) -> None:
        if self._models.status.is_running:
            self._send(commands.Pause())
        else:
            self.on_run_to(None)

    def on_run_to(self, num_steps: int | None) -> None:
        """So many steps on from the live one; None: until paused, finished or full."""
        self._models.selection.update(step=None)
        self._send_steps(commands.Run(num_steps))

    def on_run_to_chosen(self, chosen: int | str) -> None:
        """So many steps, or on to where a condition holds."""
        if isinstance(chosen, int):
            self.on_run_to(chosen)
        else:
            self.on_run_until(chosen)

    def on_run_until(self, condition: str) -> None:
        """On from the live step to the one at which a condition holds."""
        self._models.selection.update(step=None)
        self._send_steps(commands.Run(until=condition))

    def on_step_of_token(self) -> None:
        """Look at the step that fed the selected token."""
        now, latest = self._models.selection.now, self._models.timeline.latest
        token = self._models.timeline.token(now.seq_id, now.position) if now.position is not None else None
        if token is not None and latest is not None:
            self._models.selection.update(step=None if token.step == latest.step else token.step)

    def on_match_wanted(self, direction: int) -> None:
        """Look at the next step, or the previous, where the condition that is looked for held."""
        step = self._models.stops.next_match(self._models.selection.now.step, direction)
        latest = self._models.timeline.latest
        if step is not None:
            self._models.selection.update(step=None if latest is not None and step == latest.step else step)

    def on_all_stops_switched(self) -> None:
        """All stops on where one is off, else all off."""
        stops = self._models.stops.stops
        is_enabled = not all(stop.is_enabled for stop in stops)
        self.on_stops_changed(tuple(replace(stop, is_enabled=is_enabled) for stop in stops))

    def on_stops_changed(self, stops: tuple[Stop, ...]) -> None:
        """Other conditions halt a run from now on."""
        self._requests.stopping.set(stops)
        self._waiting.wake()

    def on_cancel(self) -> None:
        self._requests.measurements.cancel()
        self._requests.comparing.stop_waiting()
        self._send(commands.Cancel())

    # ---- the history tree ----------------------------------------------------------------------------------------

    def on_go_on_from_here(self) -> None:
        """Make the step that is looked at the live one."""
        step = self._models.selection.now.step
        if step is not None:
            self.on_gone_to(step)

    def on_gone_to(self, step: int) -> None:
        """Make a moment of any branch the live one."""
        self._send(commands.GoTo(step))

    def on_returned(self) -> None:
        """Make the newest moment of what was left behind the live one again."""
        if behind := beyond(self._models.history, self._models.history.live):
            self.on_gone_to(behind[-1])

    def on_token_forced(self, token_id: int) -> None:
        """Feed another token than the one that was chosen, and step: from the step that is looked at."""
        seq_id = self._models.selection.now.seq_id
        self._take_road(commands.Branch(seq_id, None, (token_id,)), commands.Force(seq_id, (token_id,)))

    def on_text_forced(self, text: str) -> None:
        """Feed the tokens of a text next, and step: from the step that is looked at."""
        seq_id = self._models.selection.now.seq_id
        self._take_road(commands.Branch(seq_id, None, text=text), commands.ForceText(seq_id, text))

    def on_sampling_tried(self, sampling: SamplingParams) -> None:
        """Choose the next token in another way, and step: from the step that is looked at."""
        seq_id = self._models.selection.now.seq_id
        self._take_road(commands.Branch(seq_id, None, sampling=sampling), commands.SetSampling(sampling, seq_id))

    def _take_road(self, branch: commands.Branch, from_live: commands.Command) -> None:
        step, info = self._models.selection.now.step, selected_info(self._models)
        if step is not None:
            self._take_failure_back()
            self._waiting.expect_pictures()
            self._requests.branching.begin(replace(branch, step=step))
            self._waiting.wake()
        elif info is not None and info.stop in FULL:
            self._models.status.notify(f"Sequence {info.seq_id}: {why_ended(info)}")
        else:
            self._send(from_live)
            self._send_steps(commands.Step())

    def on_branch_deleted(self, step: int) -> None:
        """Forget a node of the history tree and all that came of it."""
        self._send(commands.DeleteBranch(step))

    def on_branch_named(self, first: int, name: str) -> None:
        """Call the branch that begins with a node by a name; an empty one takes its name back."""
        self._models.history.rename(first, name)

    def set_pace(self, pace: Pace) -> None:
        """How fast a run goes, and how often its pictures come."""
        self._pace.choose(pace, has_engine=self._models.status.now is not None)

    # ---- edits ---------------------------------------------------------------------------------------------------

    def on_edited(self, edit: Edit) -> None:
        """Change something by hand, of the live step."""
        if self._models.selection.now.step is not None:
            self._models.status.notify("Edits are made on the live step: go to this one first, then edit")
            return
        try:
            self._check(edit)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self._send(commands.MakeEdit(edit))

    def on_edits_repeated(self, edits: tuple[Edit, ...]) -> None:
        """Edits that were made before, or are in a file: all that are possible on the live step, in their order, or
        none."""
        try:
            for edit in edits:
                self._check(edit)
        except InputError as error:
            self._models.status.fail(str(error))
            return
        for edit in edits:
            self.on_edited(edit)

    def _check(self, edit: Edit) -> None:
        """Raises `InputError` where an edit cannot be made on the live step."""
        if (model := self._models.status.model) is not None:
            edit.check(model.geometry, self._models.timeline.num_tokens(edit.seq_id))

    def on_moment_wanted(self, step: int) -> None:
        """Make a moment of the history tree the live one."""
        self._send(commands.GoTo(step))

    def on_bookmark_put(self, bookmark: Bookmark) -> None:
        """Set a bookmark, or write another note on it."""
        try:
            self._models.bookmarks.put(bookmark)
        except InputError as error:
            self._models.status.fail(str(error))

    def on_bookmark_wanted(self, target: BookmarkTarget) -> None:
        """Look at the place of a bookmark; where its moment is on another branch, that becomes the live one."""
        models = self._models
        latest, history = models.timeline.latest, models.history
        if target.step not in history:
            models.status.notify(f"Step {target.step} is not there any more: its branch was deleted")
            return
        is_here = models.timeline.record(target.step) is not None
        if not is_here:
            self.on_moment_wanted(target.step)
        is_live = not is_here or (latest is not None and latest.step == target.step)
        models.selection.update(step=None if is_live else target.step, **place_of(target))

    def on_edited_text(self, text: str) -> None:
        """Count the tokens of a text that is typed for an edit."""
        if not self._models.status.is_engine_lost:
            self._requests.edited_texts.ask(text)
            self._waiting.wake()

    def on_edit_undone(self) -> None:
        """Return to before the newest edit."""
        self._send(commands.UndoEdit())

    def on_edit_redone(self) -> None:
        """Return to what the last undo left."""
        self._send(commands.RedoEdit())

    # ---- model, cache and measurements ---------------------------------------------------------------------------

    def on_model_chosen(self, model: ModelSpec) -> None:
        self._send(commands.LoadModel(model, self._models.status.cache))

    def on_snapshot_chosen(self, path: Path) -> None:
        """Look at a file in place of what there is, unless a window writes it."""
        try:
            check_nobody_writes(path)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self.on_left_taken_up(path)

    def on_left_taken_up(self, path: Path) -> None:
        """Look at a journal that this window has claimed."""
        self._send(commands.OpenSnapshot(path))

    def on_file_continued(self, model: ModelSpec, *, may_open_files: bool = False) -> None:
        """Go on from the opened file with that model. Edits in a session open files only where this window's program
        wrote it."""
        self._send(commands.Continue(model, may_open_files))

    def on_continued(self) -> None:
        """Go on from the opened file with its model: one that was loaded here before, known by its fingerprint, or the
        bundled one. Which other one it is a person says: no name in a file leads to a folder."""
        if source := self.source_of_file:
            self.on_file_continued(self._as_in_file(source))
        else:
            model = self._models.status.model
            where = f" It was at {prose(model.source)}." if model is not None and model.source else ""
            self._models.status.notify(f"Choose the model of this file: decoding goes on where it fits.{where}")
            self.model_wanted.emit()

    def _as_in_file(self, source: str) -> ModelSpec:
        """The model of the opened file from there; a session is repeated in the same numbers, on as many threads."""
        status = self._models.status.now
        if status is None or status.opened is None or status.model is None or status.opened.has_rows:
            return ModelSpec(source)
        return replace(spec_of(status.model), source=source)

    @property
    def source_of_file(self) -> str:
        """Where the model of the opened file is known to be; empty where a person has to say."""
        status = self._models.status
        if status.now is None or status.now.opened is None or status.now.model is None:
            return ""
        by_name = BUNDLED if status.now.opened.model == BUNDLED_NAME else ""
        return status.source_of(status.now.model.fingerprint) or by_name

    def on_file_closed(self) -> None:
        """Begin anew with the model that was there before the opened file, else the bundled one."""
        self._send(commands.CloseSnapshot(ModelSpec(self._models.status.last_source or BUNDLED)))

    def on_models_wanted(self) -> None:
        self._sender.post(commands.FindModels())
        self._waiting.wake()

    def on_cache_chosen(self, cache: CacheSpec) -> None:
        self._send(commands.SetCache(cache))

    def on_truth_wanted(self, question: Request) -> None:
        """Ask what the cache changes; the newest question of a kind is the one whose answer counts."""
        self._requests.measurements.ask(question)
        self._waiting.wake()

    def on_rebuild_wanted(self) -> None:
        self._requests.measurements.rebuild()

    def on_export_chosen(self, command: commands.Export) -> None:
        self._take_failure_back()
        self._requests.exports.write(command)
        self._waiting.wake()

    def on_estimate_wanted(self, command: commands.Export) -> None:
        """Ask how large an export would become."""
        self._requests.exports.estimate(command)
        self._waiting.wake()

    # ---- how -----------------------------------------------------------------------------------------------------

    def _send_steps(self, command: commands.Step | commands.Run | commands.NextPhase) -> None:
        self._waiting.expect_pictures()
        self._send(command)

    def _send(self, command: commands.Command) -> int:
        """Send what a person asked for."""
        self._take_failure_back()
        number = self._sender.post(command)
        self._waiting.wake()
        return number

    def _take_failure_back(self) -> None:
        """What went wrong before is not shown any longer, but that the engine is gone."""
        if not self._models.status.is_engine_lost:
            self._models.status.fail("")

    def _look_from_here(self, direction: int) -> None:
        self._models.selection.update(step=self._models.timeline.neighbour(self._models.selection.now.step, direction))
