"""What a person may wish for, and the commands that grant it: a class for each subject, and their sum."""

from __future__ import annotations

from app.control.asking import Asking
from app.control.file_intents import FileIntents
from app.control.model_intents import ModelIntents
from app.control.prompt_intents import PromptIntents
from app.control.step_intents import StepIntents
from app.control.tree_intents import EditIntents, TreeIntents
from app.models.measurement import Request
from engine.wire import opponents


class AnalysisIntents(Asking):
    """Comparisons with another run, and what the cache mode changes."""

    def on_compared(self, against: opponents.Opponent) -> None:
        """The selected sequence beside another run."""
        self._requests.comparing.start(self._models.selection.now.seq_id, against)

    def on_comparison_ended(self) -> None:
        self._requests.comparing.end()

    def on_truth_wanted(self, question: Request) -> None:
        """Ask what the cache changes; the newest question of a kind is the one whose answer counts."""
        self._requests.measurements.ask(question)
        self._waiting.wake()

    def on_rebuild_wanted(self) -> None:
        self._requests.measurements.rebuild()


class Intents(PromptIntents, StepIntents, TreeIntents, EditIntents, ModelIntents, FileIntents, AnalysisIntents):
    """A slot for each wish: views connect to them, and actions call them."""
