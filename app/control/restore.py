"""Replays the steps of an engine that is gone in the engine that replaces it."""

from __future__ import annotations

from app.control.sender import Sender
from app.draw.format import counted, milliseconds
from app.models import Models
from engine.wire.commands import Redo
from engine.wire.events import Redone, Restarted


class Restore:
    """Sends the recorded history to a restarted engine, and keeps the command until it is answered, so that it can be
    sent again if that engine dies too."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models = models
        self._sender = sender
        self._asked: Redo | None = None  # the command that is not answered yet

    @property
    def is_going_on(self) -> bool:
        """Whether the replay is not finished: until then the screen shows the state of the engine before."""
        return self._asked is not None

    def begin(self) -> None:
        """Send the history to the engine that has just started, if there is any, and say so in the status line."""
        if self._models.status.has_file:
            self._models.status.notify("The engine begins again: the file is opened once more")
            return
        self._asked = self._asked or self._plan()
        if self._asked is None:
            self._models.status.notify("The engine begins again: there was no sequence in it")
            return
        self._sender.post(self._asked)
        self._models.status.notify("The engine begins again: its steps are done once more")

    def forget(self) -> None:
        """Give up the replay: the user has begun something else."""
        self._asked = None

    def restarted(self, event: Restarted) -> None:
        """Give up the replay if the history was restarted by a command (a prompt, a model), and not by the new engine's
        own start."""
        if event.reply_to:
            self.forget()

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

    def _plan(self) -> Redo | None:
        """The whole tree, with the commands since the live step that the engine last reported; None if there is nothing
        to replay."""
        status, history = self._models.status.now, self._models.history
        if status is None:
            return None
        pending = status.pending if status.step == history.live else ()
        nodes = history.nodes()
        return Redo(nodes, history.live, pending) if nodes or pending else None
