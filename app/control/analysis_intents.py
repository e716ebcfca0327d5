"""What a person may wish to have compared or analysed."""

from __future__ import annotations

from app.control.asking import Asking
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
