"""Counts the steps that are still to be done, and paces a run."""

from __future__ import annotations

import time

from engine.errors import InputError
from engine.wire.commands import Run, SetPace, Step, SubmitPrompt


class StepsToDo:
    """How many units of work to do: `count` (None: as long as there is work), or fewer if the condition `until` holds
    before. Runs are paced, single steps are not. `asked_by` is the id of the command that asked for them."""

    def __init__(self) -> None:
        self.count: int | None = 0
        self.until = ""
        self.asked_by: int | None = None
        self._interval_s = 0.0  # between two decode steps of a run
        self._due: float | None = None  # when the next step of a run may begin; None: no run

    @property
    def wait_s(self) -> float:
        """Seconds until the next decode step may begin."""
        return 0.0 if self._due is None else max(0.0, self._due - time.monotonic())

    @property
    def is_paced(self) -> bool:
        """Whether every step of a run waits for its time."""
        return self._interval_s > 0 and self._due is not None

    def set_pace(self, command: SetPace) -> None:
        """Change the pace of runs, from the next step on. Raises `InputError` for a rate that is not positive."""
        rate = command.steps_per_second
        for value in (rate, command.pictures_per_second):
            if value is not None and not value > 0:
                raise InputError(f"A pace of {value:g} a second is none: give more than 0.")
        self._interval_s = 0.0 if rate is None else 1 / rate
        if self._due is not None:
            self._due = time.monotonic()

    def step(self, command: Step) -> None:
        """Do single steps, without pacing, in addition to those that still wait."""
        self.count = (self.count or 0) + checked(command.num_steps)  # steps that still wait are added to
        self._due, self.asked_by, self.until = None, command.id, ""

    def run(self, command: Run) -> None:
        count = None if command.num_steps is None else checked(command.num_steps)
        self._run(command.id, count, command.until)

    def _run(self, asked_by: int, count: int | None = None, until: str = "") -> None:
        self.count, self.asked_by, self.until = count, asked_by, until
        self._due = time.monotonic()

    def submit(self, command: SubmitPrompt, *, was_running: bool) -> None:
        """Count the steps, or begin the run, that a submitted prompt asks for. A prompt that replaces all sequences
        (`alone`) ends what was running."""
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
        """Note a finished step; `is_unit` False: a prefill chunk with further chunks to come, which is not counted."""
        if is_unit and self.count:  # while a step is taken in phases, the count is 0
            self.count -= 1
        if self._due is not None:
            self._due = max(self._due + self._interval_s, time.monotonic())

    def end(self) -> None:
        """Do no further step."""
        self.count, self.until = 0, ""

    def pause(self) -> None:
        """Do no further step, and end the pacing of the run."""
        self.count, self.until, self._due = 0, "", None


def checked(num_steps: int) -> int:
    """The same number, or `InputError` if it is less than 1."""
    if num_steps < 1:
        raise InputError(f"{num_steps} steps is nothing to do: give 1 or more.")
    return num_steps
