"""All intents of the user and the commands that carry them out: one class per subject, and `Intents`, their union."""

from __future__ import annotations

from app.control.file_intents import FileIntents
from app.control.intent_sender import IntentSender
from app.control.model_intents import ModelIntents
from app.control.prompt_intents import PromptIntents
from app.control.step_intents import StepIntents
from app.control.tree_intents import EditIntents, TreeIntents
from app.models.measurement import Request
from engine.wire import opponents


class AnalysisIntents(IntentSender):
    """Comparisons with another run, and measurements of what the cache mode changes."""

    def on_compared(self, against: opponents.Opponent) -> None:
        """Compare the selected sequence with another run."""
        self._requests.comparing.start(self._models.selection.now.seq_id, against)

    def on_comparison_ended(self) -> None:
        self._requests.comparing.end()

    def on_measurement_wanted(self, question: Request) -> None:
        """Send a measurement to the engine; of several of one kind only the newest one's answer is shown."""
        self._requests.measurements.ask(question)
        self._waiting.wake()

    def on_rebuild_wanted(self) -> None:
        self._requests.measurements.rebuild()


class Intents(PromptIntents, StepIntents, TreeIntents, EditIntents, ModelIntents, FileIntents, AnalysisIntents):
    """One slot per intent: views connect their signals to these, and actions call them."""
