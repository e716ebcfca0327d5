"""Commands on their way to the engine, their answers for whoever asked, and what the user waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from msgspec.structs import replace
from PySide6.QtCore import QObject
from shiboken6 import isValid

from app.kit.asking import Question
from app.models import Models
from engine.counted import counted
from engine.wire.events import Cancelled, Done, Event, Failed
from engine.wire.message import Command
from engine.wire.pictures import Picture


class Sender:
    """Gives every command an id, which its answers repeat, and keeps each question until the last word about it."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._last_id = 0
        self._asked: dict[int, Question] = {}
        self._newest: dict[Hashable, int] = {}  # by slot
        self._pictured: dict[Hashable, int] = {}  # by slot, the latest that was answered with a picture

    def next_id(self) -> int:
        """A new id for a command or a picture."""
        self._last_id += 1
        return self._last_id

    def post(self, command: Command) -> int:
        """Send a command under its own id, or a new one if it has none; returns the id."""
        number = command.id or self.next_id()
        self._send(replace(command, id=number))
        return number

    def ask(self, question: Question) -> int:
        """Send a command whose answers are waited for; returns its id."""
        number = question.command.id or self.next_id()
        self._asked[number] = question
        if question.slot is not None:
            self._newest[question.slot] = number
        return self.post(replace(question.command, id=number))

    def withdraw(self, slot: Hashable) -> None:
        """Let what was asked last in this slot go unanswered."""
        self._newest.pop(slot, None)

    def unanswered(self, kind: type[Command]) -> Iterator[Any]:
        """The commands of a type that wait for their last word, oldest first."""
        return (question.command for question in self._asked.values() if isinstance(question.command, kind))

    def take(self, event: Event) -> bool:
        """Give an event to whoever asked for it; False for a failure that somebody has to show, and where nobody
        asked."""
        number = event.reply_to or 0
        question = self._asked.get(number)
        if question is None:
            return False
        if isinstance(event, Picture):  # over a slow line it follows whole: until then another one is answered
            if (before := self._pictured.get(question.slot, number)) != number:
                self._asked.pop(before, None)
            self._pictured[question.slot] = number
        elif question.command.facts.answers == "one" or isinstance(event, Done | Cancelled | Failed):
            del self._asked[number]
        if not self._is_waiting(question, number) or isinstance(event, Done):
            return True
        if not isinstance(event, Failed | Cancelled):
            question.on_answer(event)
        elif question.on_refusal is not None:
            question.on_refusal(event if isinstance(event, Failed) else Failed("", reply_to=number))
        return question.on_refusal is not None or not isinstance(event, Failed)

    def lose_engine(self) -> None:
        """End all questions: the engine that was asked is gone."""
        asked, self._asked = self._asked, {}
        self._pictured.clear()
        for number, question in asked.items():
            if question.on_refusal is not None and self._is_waiting(question, number):
                question.on_refusal(Failed("", reply_to=number))

    def _is_waiting(self, question: Question, number: int) -> bool:
        """Whether it is the newest of its slot, and the dialog that asked still exists."""
        asker = getattr(question.on_answer, "__self__", None)
        is_there = not isinstance(asker, QObject) or isValid(asker)
        return is_there and (question.slot is None or self._newest.get(question.slot) == number)


class DeferredSend(QObject):
    """Calls `send` once the model that is being loaded is there, with the number of steps that were asked for beside
    the prompt; of an opened file that is gone on with, it calls `step` with the number of steps. After a load that
    fails, is cancelled, or repeats the steps from before, it reports that nothing was sent."""

    def __init__(
        self, models: Models, send: Callable[[int], None], step: Callable[[int], None], parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._models = models
        self._send, self._step = send, step
        self._num_steps = 0
        self._is_wanted = self._has_begun = self._is_of_file = False
        models.timeline.reset.connect(self._on_reset)
        models.status.changed.connect(self._on_status)

    def wish(self, *, is_step: bool = False) -> None:
        """Have the prompt sent when the load has ended: once, even if this is called several times. `is_step`: a step
        is wanted; the first one is the prompt's, unless a file has its own, and each further one follows it."""
        self._is_of_file = is_step and self._models.status.has_file
        self._num_steps = (self._num_steps + is_step) if self._is_wanted else int(self._is_of_file)
        self._is_wanted, self._has_begun = True, False
        steps = counted(self._num_steps, "step")
        if self._is_of_file:
            self._models.status.notify(f"As soon as the model is loaded, {steps} will be taken")
            return
        then = f", then {steps} more" if self._num_steps else ""
        self._models.status.notify(f"The prompt is sent as soon as the model is loaded{then}")

    def _on_reset(self) -> None:
        """A new model begins with no steps; one whose load was cancelled keeps them."""
        self._has_begun = not len(self._models.timeline)

    def _on_status(self) -> None:
        status = self._models.status
        if not self._is_wanted or status.awaits_model:
            return
        self._is_wanted = False
        if self._is_of_file:
            if not status.has_file and status.now.model is not None:
                self._step(self._num_steps)
        elif status.now.model is not None and self._has_begun:
            self._send(self._num_steps)
        else:
            self._models.status.notify("The prompt was not sent: no new model came of it. Send it again")


EAGER_FOR_S = 1.0
# After the user stepped or ran, texts and status wait for the first picture: at most so long for the step's record, and
# so long after that for the picture.
RECORD_WAIT_S, PICTURE_WAIT_S = 0.15, 0.03


class PersonWaiting:
    """Notes when the user did something, and when the step or picture they wait for has arrived."""

    def __init__(self) -> None:
        self._eager_until = 0.0
        self._pictures_until = 0.0
        self.is_for_step = False

    @property
    def is_eager(self) -> bool:
        """Whether the user did something within the last second."""
        return time.monotonic() < self._eager_until

    @property
    def is_for_pictures(self) -> bool:
        """Whether texts wait for the pictures of a step."""
        return time.monotonic() < self._pictures_until

    def wake(self) -> None:
        """Note that the user did something."""
        self._eager_until = time.monotonic() + EAGER_FOR_S
        self.is_for_step = True

    def expect_pictures(self) -> None:
        """Note that the user stepped or ran: pictures go first."""
        self._pictures_until = time.monotonic() + RECORD_WAIT_S

    def take_record(self) -> None:
        """Note that a step's record has arrived; its pictures follow soon or not at all."""
        self.is_for_step = False
        self._pictures_until = min(self._pictures_until, time.monotonic() + PICTURE_WAIT_S)

    def take_pictures(self) -> None:
        """Note that the pictures have arrived or will not come."""
        self._pictures_until = 0.0
