"""The sequences of an engine that is gone, on their way into the next one: kept until each of them was taken."""

from __future__ import annotations

from dataclasses import dataclass

from app.control.sender import Sender
from app.models import Models
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import StopSequence, SubmitPrompt
from engine.wire.events import EngineStatus, Restarted, SequenceInfo, Submitted


@dataclass(frozen=True)
class LostSequence:
    """What a sequence needs to begin again: all its token ids, those included that were not read yet, and how it
    stood. `position` is the token that was selected in it; None where none was, or it was not the selected one."""

    token_ids: tuple[int, ...]
    sampling: SamplingParams
    is_stopped: bool
    is_selected: bool
    position: int | None


class Restore:
    """Submits what was lost to an engine that begins again. A second loss on the way loses nothing: what was not taken
    yet is submitted once more."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models = models
        self._sender = sender
        self._asked: dict[int, LostSequence] = {}  # by the id of the command, until it was answered by `Submitted`
        self._unread: dict[int, LostSequence] = {}  # taken, by its new id, until its prompt is read to its end
        self._words = ""
        self._is_told = False  # the engine has said where it stands: the status is its own

    @property
    def is_going_on(self) -> bool:
        """Whether sequences are on their way into the engine."""
        return bool(self._asked or self._unread)

    def begin(self) -> None:
        """Submit every sequence to the engine that has just begun, and say so."""
        lost, unknown = self._lost()
        self.forget()
        self._is_told = False
        for sequence in lost:
            prompt = Prompt(token_ids=sequence.token_ids, sampling=sequence.sampling)
            command = SubmitPrompt(prompt, alone=not self._asked, num_steps=1)
            self._asked[self._sender.post(command)] = sequence
        self._words = _words(len(lost), unknown)
        self._models.status.notify(self._words)

    def forget(self) -> None:
        """Something else was begun: what was lost is wanted no more."""
        self._asked, self._unread = {}, {}

    def told(self) -> None:
        """The engine has said where it stands."""
        self._is_told = True

    def restarted(self, event: Restarted) -> None:
        """A person's prompt or model begins a history in which what was lost has no place; the engine's own beginning,
        which nobody asked for, and the first of these sequences do not."""
        if event.reply_to and event.reply_to not in self._asked:
            self.forget()

    def take(self, event: Submitted) -> bool:
        """Note that a sequence was taken; whether it is to be shown."""
        sequence = self._asked.pop(event.reply_to or 0, None)
        if sequence is None:
            return True
        self._unread[event.seq_id] = sequence
        if not self._asked:  # once more: meanwhile the model was said to be loaded
            self._models.status.notify(self._words)
        return sequence.is_selected

    def follow(self, status: EngineStatus | None) -> None:
        """What was read to its end stands as it stood: stopped where it was, its token selected."""
        for info in status.sequences if status is not None and self._unread else ():
            sequence = self._unread.get(info.seq_id)
            if sequence is None or info.state in ("waiting", "prefill"):
                continue
            del self._unread[info.seq_id]
            if sequence.is_stopped:
                self._sender.post(StopSequence(info.seq_id))
            if sequence.position is not None and self._models.selection.now.seq_id == info.seq_id:
                self._models.selection.update(position=sequence.position)

    def _lost(self) -> tuple[list[LostSequence], tuple[int, ...]]:
        """The sequences of the engine before, and the ids of those whose tokens nobody knows."""
        status = self._models.status.now
        known = status.sequences if status is not None and self._is_told else ()
        lost, unknown = [], []
        for info in known:
            if ids := self._models.timeline.all_ids(info.seq_id):
                lost.append(self._sequence(info, ids))
            else:
                unknown.append(info.seq_id)
        return [*lost, *self._asked.values()], tuple(unknown)

    def _sequence(self, info: SequenceInfo, ids: tuple[int, ...]) -> LostSequence:
        if info.seq_id in self._unread:
            return self._unread[info.seq_id]
        selected = self._models.selection.now
        is_selected = selected.seq_id == info.seq_id
        position = selected.position if is_selected else None
        return LostSequence(ids, info.sampling, info.stop == "stopped", is_selected, position)


def _words(count: int, unknown: tuple[int, ...]) -> str:
    if not count and not unknown:
        return "The engine begins again: there was no sequence to read anew"
    what = "its sequence is read anew" if count == 1 else "all sequences are read anew"
    if unknown:
        what = f"{count} sequences are read anew, the tokens of {', '.join(map(str, unknown))} are not known"
    return f"The engine begins again: {what}; the steps before are gone"
