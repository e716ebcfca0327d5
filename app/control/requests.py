"""What the window asks the engine for by itself: one part per kind of request."""

from __future__ import annotations

from msgspec import Struct

from app.control.comparing import Comparing
from app.control.exporting import Exporting
from app.control.measuring import MeasurementControl
from app.control.new_sequences import NewSequences
from app.control.pace import PACES, USUAL_PACE, Setting
from app.control.restore import Restore
from app.control.sender import Sender
from app.control.slice_requests import SliceRequests
from app.control.stopping import Stopping
from app.models import Models


class Requests(Struct, frozen=True):
    """The parts. `restore` replays the history in a restarted engine."""

    pictures: SliceRequests
    measurements: MeasurementControl
    sequences: NewSequences
    restore: Restore
    comparing: Comparing
    exports: Exporting
    stopping: Stopping
    pace: Setting
    kept_limit: Setting

    @classmethod
    def through(cls, sender: Sender, models: Models) -> Requests:
        """All parts, with that sender."""
        return cls(
            SliceRequests(models, sender),
            MeasurementControl(models, sender),
            NewSequences(models, sender),
            Restore(models, sender),
            Comparing(models, sender),
            Exporting(models, sender),
            Stopping(models, sender),
            Setting(sender, PACES[USUAL_PACE].command),
            Setting(sender),
        )

    @property
    def are_all_answered(self) -> bool:
        """Whether no sequence, branch or picture is still to come."""
        return self.sequences.is_empty and self.pictures.is_complete and self.comparing.is_complete

    def ask_for_pictures(self) -> None:
        """Request the pictures needed, unless a new prompt is about to replace all sequences."""
        if not self.sequences.replace_all:
            self.pictures.ask()
            self.comparing.ask()
