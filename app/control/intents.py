"""What a person may wish for, and the commands that grant it."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from PySide6.QtCore import Signal

from app.control.edit_intents import EditIntents
from app.control.step_intents import StepIntents
from app.control.tree_intents import TreeIntents
from app.kit.labels import prose
from app.models.measurement import Request
from app.models.sequence_status import selected_info
from engine.errors import InputError
from engine.saved.folder import check_nobody_writes
from engine.saved.session import spec_of
from engine.spec.cache import CacheSpec
from engine.spec.capture import CaptureLevel
from engine.spec.chat import Chat
from engine.spec.model import BUNDLED, BUNDLED_NAME, ModelSpec
from engine.spec.runners import RunnerName
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire import commands, exporting, opponents
from engine.wire.status import CaptureState

Content = str | tuple[int, ...] | Chat  # of a prompt


class Intents(StepIntents, TreeIntents, EditIntents):
    """A slot for each wish: views connect to them, and actions call them. `model_wanted()`: a person has to choose."""

    model_wanted = Signal()
    sessions_folder: Path | None = None  # where windows of this program, and nobody else, write their sessions

    # ---- sequences -----------------------------------------------------------------------------------------------

    def on_prompt_submitted(self, content: Content, sampling: SamplingParams) -> None:
        """A new run from a text, from token ids or from a conversation."""
        self._submit(content, sampling, alone=True)

    def on_chat_continued(self, chat: Chat, seq_id: int, sampling: SamplingParams) -> None:
        """A conversation in the place of the sequence that it goes on from."""
        self._submit(chat, sampling, alone=False, after=seq_id)

    def on_prompt_added(self, content: Content, sampling: SamplingParams) -> None:
        """Another sequence beside those that are there."""
        self._submit(content, sampling, alone=False)

    def on_prompt_begun(self, content: Content, sampling: SamplingParams) -> None:
        """A new run, whose first step is taken in phases."""
        self._submit(content, sampling, alone=True, in_phases=True)

    def _submit(
        self,
        content: Content,
        sampling: SamplingParams,
        *,
        alone: bool,
        in_phases: bool = False,
        after: int | None = None,
    ) -> None:
        try:
            if isinstance(content, str):
                prompt = Prompt(text=content, sampling=sampling)
            elif isinstance(content, Chat):
                prompt = Prompt(chat=content, sampling=sampling)
            else:
                prompt = Prompt(token_ids=content, sampling=sampling)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            num_steps = 0 if in_phases else 1
            self._ask_for_sequence(commands.SubmitPrompt(prompt, alone, num_steps, in_phases, after))

    def on_forked(self, seq_id: int) -> None:
        """A branch of a sequence, from the step that is looked at."""
        self._ask_for_sequence(commands.Fork(seq_id, self._models.selection.now.step))

    def _ask_for_sequence(self, command: commands.SubmitPrompt | commands.Fork) -> None:
        self._requests.sequences.expect(self._send(command), command)

    def on_joined(self, steps: tuple[int, ...]) -> None:
        """The sequences of other moments beside those of the live one, as one batch."""
        self._models.selection.update(step=None)
        self._requests.sequences.expect_beside(self._send(commands.JoinBranches(steps)))

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
        if (step := self._models.selection.now.step) is not None and info is not None:
            self._models.status.notify(
                f"Changed for the live moment, not for step {step}: go there first to change what came of it"
            )

    def on_text_edited(self, text: str) -> None:
        """Count the tokens of a text while it is typed, where somebody is there to count."""
        if not self._models.status.is_engine_lost:
            self._requests.texts.ask(text)
            self._waiting.wake()

    def on_chat_edited(self, chat: Chat, after: int | None) -> None:
        """Render a conversation while it is written, and say how much of a sequence it would keep."""
        if not self._models.status.is_engine_lost:
            self._requests.texts.ask_of_chat(chat, after)
            self._waiting.wake()

    # ---- comparing -----------------------------------------------------------------------------------------------

    def on_compared(self, against: opponents.Opponent) -> None:
        """The selected sequence beside another run."""
        self._requests.comparing.start(self._models.selection.now.seq_id, against)

    def on_comparison_ended(self) -> None:
        self._requests.comparing.end()

    # ---- model, cache and measurements ---------------------------------------------------------------------------

    def on_model_chosen(self, model: ModelSpec) -> None:
        """Load a model, where and how models are loaded."""
        model = model.loaded_as(self._requests.loading.chosen)
        self._send(commands.LoadModel(model, self._models.status.cache))

    def on_loading_chosen(self, model: ModelSpec) -> None:
        """Load this model so, and others from now on."""
        self._requests.loading.chosen = model
        self.on_model_chosen(model)

    def on_devices_wanted(self) -> None:
        self._requests.loading.look()
        self._waiting.wake()

    def on_forecast_wanted(self, model: ModelSpec, context: int) -> None:
        """Ask what a model would take with so many tokens (0: its own context)."""
        self._requests.loading.ask(model, self._models.status.cache, context or None)
        self._waiting.wake()

    def on_unloaded(self) -> None:
        """Let the model go."""
        self._models.selection.update(step=None)
        self._requests.loading.unload()
        self._waiting.wake()

    def on_snapshot_chosen(self, path: Path) -> None:
        """Look at a file in place of what there is, unless a window writes it."""
        try:
            check_nobody_writes(path)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self.on_left_taken_up(path)

    def on_left_taken_up(self, path: Path) -> int:
        """Look at a journal that this window has claimed; the number of the command."""
        return self._send(commands.OpenSnapshot(path))

    def on_file_continued(self, model: ModelSpec, *, may_open_files: bool = False) -> None:
        """Go on from the opened file with that model. Edits in a session open files only where this window's program
        wrote it."""
        self._send(commands.Continue(model, may_open_files))

    def on_continued(self) -> None:
        """Go on from the opened file with its model: one that was loaded here before, known by its fingerprint, or the
        bundled one. Which other one it is a person says: no name in a file leads to a folder."""
        if source := self.source_of_file:
            self.on_file_continued(self._as_in_file(source), may_open_files=self._is_own_file)
        else:
            model = self._models.status.model
            where = f" It was at {prose(model.source)}." if model is not None and model.source else ""
            self._models.status.notify(f"Choose the model of this file: decoding goes on where it fits.{where}")
            self.model_wanted.emit()

    @property
    def _is_own_file(self) -> bool:
        """Whether the opened file is a journal that a window of this program wrote."""
        status, folder = self._models.status.now, self.sessions_folder
        if folder is None or status is None or status.opened is None:
            return False
        return status.opened.path.resolve().parent == folder.resolve()

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
        model = ModelSpec(self._models.status.last_source or BUNDLED).loaded_as(self._requests.loading.chosen)
        self._send(commands.CloseSnapshot(model))

    def on_models_wanted(self) -> None:
        self._sender.post(commands.FindModels())
        self._waiting.wake()

    def on_cache_chosen(self, cache: CacheSpec) -> None:
        self._send(commands.SetCache(cache))

    def on_runner_chosen(self, runner: RunnerName) -> None:
        self._send(commands.ChooseRunner(runner))

    def on_capture_chosen(self, level: CaptureLevel) -> None:
        self._send(commands.SetCapture(level, self._capture_now().by_layer))

    def on_time_by_layer_switched(self) -> None:
        now = self._capture_now()
        self._send(commands.SetCapture(now.level, not now.by_layer))

    def _capture_now(self) -> CaptureState:
        status = self._models.status.now
        return CaptureState() if status is None else status.capture

    def on_truth_wanted(self, question: Request) -> None:
        """Ask what the cache changes; the newest question of a kind is the one whose answer counts."""
        self._requests.measurements.ask(question)
        self._waiting.wake()

    def on_rebuild_wanted(self) -> None:
        self._requests.measurements.rebuild()

    def on_export_chosen(self, command: exporting.Export) -> None:
        self._take_failure_back()
        self._requests.exports.write(command)
        self._waiting.wake()

    def on_estimate_wanted(self, command: exporting.Export) -> None:
        """Ask how large an export would become."""
        self._requests.exports.estimate(command)
        self._waiting.wake()
