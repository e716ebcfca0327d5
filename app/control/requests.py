"""All requests to the engine that are not answered yet: one part per kind of request."""

from __future__ import annotations

from msgspec import Struct

from app.control.comparing import Comparing
from app.control.exporting import Exporting
from app.control.loading import Loading
from app.control.measuring import MeasurementControl
from app.control.new_sequences import NewSequences
from app.control.pace import PACES, USUAL_PACE, Setting
from app.control.restore import Restore
from app.control.sender import Sender
from app.control.slice_requests import SliceRequests
from app.control.stopping import Stopping
from app.control.tokenizing import Tokenizing
from app.models import Models
from engine.wire.events import Failed, Previewed, Tokenized


class Requests(Struct, frozen=True):
    """The parts. `texts` counts tokens of the prompt, `edited_texts` those of an edit; `restore` replays the history in
    a restarted engine."""

    pictures: SliceRequests
    measurements: MeasurementControl
    texts: Tokenizing
    edited_texts: Tokenizing
    sequences: NewSequences
    restore: Restore
    comparing: Comparing
    exports: Exporting
    stopping: Stopping
    loading: Loading
    pace: Setting
    kept_limit: Setting

    @classmethod
    def through(cls, sender: Sender, models: Models) -> Requests:
        """All parts, with that sender."""
        return cls(
            SliceRequests(models, sender),
            MeasurementControl(models, sender),
            Tokenizing(sender),
            Tokenizing(sender),
            NewSequences(models, sender),
            Restore(models, sender),
            Comparing(models, sender),
            Exporting(models, sender),
            Stopping(models, sender),
            Loading(models, sender),
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

    def take_tokens(self, answer: Tokenized | Previewed) -> None:
        """Give the tokens of a text to both parts; the one that asked takes them."""
        self.texts.take(answer)
        self.edited_texts.take(answer)

    def refuse(self, failure: Failed) -> bool:
        """Whether a part shows the failure itself (a panel, a dialog or the prompt), so that the status line need
        not."""
        asked = (self.measurements, self.texts, self.edited_texts, self.comparing, self.exports, self.stopping)
        if any(part.refuse(failure) for part in asked) or self.pictures.refused(failure):
            return True
        self.sequences.refuse(failure)
        return False

    def forget(self) -> None:
        """Drop all that is unanswered: the engine is gone."""
        self.pictures.reset()
        self.sequences.forget()
        self.texts.forget()
        self.edited_texts.forget()
        self.measurements.cancel()
        self.comparing.forget()
        self.exports.forget()
        self.stopping.forget()
