"""How many steps are still to be done, and when the next one may begin."""

from __future__ import annotations

import time

from engine.errors import InputError
from engine.wire.commands import Run, SetPace, Step, SubmitPrompt


class StepsToDo:
    """`count` units of work (None: until there is none), at most up to a step at which the condition `until` holds. A
    run is paced; single steps are not. `asked_by` is the id of the command that asked for them."""

    def __init__(self) -> None:
        self.count: int | None = 0
        self.until = ""
        self.asked_by: int | None = None
        self._interval_s = 0.0  # between two decode steps of a run
        self._due: float | None = None  # when the next step of a run may begin; None: nobody runs

    @property
    def rest_s(self) -> float:
        """How long the next decode step has to wait."""
        return 0.0 if self._due is None else max(0.0, self._due - time.monotonic())

    @property
    def is_paced(self) -> bool:
        """Whether every step of a run waits for its time."""
        return self._interval_s > 0 and self._due is not None

    def set_pace(self, command: SetPace) -> None:
        rate = command.steps_per_second
        for value in (rate, command.pictures_per_second):
            if value is not None and not value > 0:
                raise InputError(f"A pace of {value:g} a second is none: give more than 0.")
        self._interval_s = 0.0 if rate is None else 1 / rate
        if self._due is not None:
            self._due = time.monotonic()

    def step(self, command: Step) -> None:
        self.count = (self.count or 0) + checked(command.num_steps)  # three quick keys are three steps
        self._due, self.asked_by, self.until = None, command.id, ""

    def run(self, command: Run) -> None:
        count = None if command.num_steps is None else checked(command.num_steps)
        self._run(command.id, count, command.until)

    def _run(self, asked_by: int, count: int | None = None, until: str = "") -> None:
        self.count, self.asked_by, self.until = count, asked_by, until
        self._due = time.monotonic()

    def submit(self, command: SubmitPrompt, *, was_running: bool) -> None:
        """A prompt was taken, which may ask for steps or a run; of one that is alone, those before end."""
        if command.num_steps is None:
            self._run(command.id)
            return
        if command.num_steps:
            self.asked_by = command.id
        if command.alone or not was_running:
            self._due = None  # the pace was that of a run that has ended
        if command.alone:
            self.count, self.until = command.num_steps, ""  # whatever ran before has ended with its sequences
        elif self.count is not None:
            self.count += command.num_steps

    def done(self, *, is_unit: bool) -> None:
        """A step was done; the chunks of a prompt are one unit together."""
        if is_unit and self.count:  # a step that was taken in phases is not one of them
            self.count -= 1
        if self._due is not None:
            self._due = max(self._due + self._interval_s, time.monotonic())

    def end(self) -> None:
        """No further step."""
        self.count, self.until = 0, ""

    def pause(self) -> None:
        """No further step, and no pace that waits for one."""
        self.count, self.until, self._due = 0, "", None


def checked(num_steps: int) -> int:
    if num_steps < 1:
        raise InputError(f"{num_steps} steps is nothing to do: give 1 or more.")
    return num_steps
