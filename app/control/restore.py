"""The steps of an engine that is gone, on their way into the next one: kept until that has done them once more."""

from __future__ import annotations

from app.control.sender import Sender
from app.draw.format import milliseconds
from app.models import Models
from engine.wire.commands import Redo
from engine.wire.events import Redone, Restarted


class Restore:
    """Has an engine that begins again do what the history says. A second loss on the way loses nothing: what was not
    answered yet is asked once more."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models = models
        self._sender = sender
        self._asked: Redo | None = None  # until it was answered

    @property
    def is_going_on(self) -> bool:
        """Whether the steps are on their way into the engine: what is on the screen is of the one before."""
        return self._asked is not None

    def begin(self) -> None:
        """Ask the engine that has just begun, if there is anything to be done, and say so."""
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
        """Something else was begun: what was lost is wanted no more."""
        self._asked = None

    def restarted(self, event: Restarted) -> None:
        """A person's prompt or model begins a history in which what was lost has no place; the engine's own beginning,
        which nobody asked for, does not."""
        if event.reply_to:
            self.forget()

    def take(self, event: Redone) -> None:
        """They were done, as far as they could be; say so."""
        self.forget()
        count, took = event.num_steps, milliseconds(event.took_ms)
        what = "no step was" if not count else "its only step was" if count == 1 else f"all its {count:,} steps were"
        as_first = "exactly as first"
        if event.num_computed_anew:
            anew = f"{event.num_computed_anew:,} tokens in pages of an earlier run, computed anew"
            as_first += f" but for the rounding of {anew}"
        if event.why_not_exact:
            as_first = f"not exactly as first: {event.why_not_exact}"
        words = f"The engine begins again where it was: {what} done once more, {as_first}, in {took}"
        if event.why_not_all:
            where = "the start" if event.step is None else f"step {event.step}"
            words = f"The engine begins again at {where}; the tokens after it come next: {event.why_not_all}"
        self._models.status.notify(words)

    def _plan(self) -> Redo | None:
        """The whole tree; of what was done since the live moment as much as was told."""
        status, history = self._models.status.now, self._models.history
        if status is None:
            return None
        pending = status.pending if status.step == history.live else ()
        nodes = history.nodes()
        return Redo(nodes, history.live, pending) if nodes or pending else None
