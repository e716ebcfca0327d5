"""What the loop has to do: the queue of commands, in order (a newer picture request replaces an older one, cancels are
seen at once), the steps of a run, and what it is doing now, to be read from another thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable
from queue import Empty, SimpleQueue

from msgspec.structs import replace

from engine.errors import Cancelled, InputError
from engine.wire import events
from engine.wire.commands import Cancel, Run, SetPace, Shutdown, Step, SubmitPrompt
from engine.wire.events import Done, Event, word_of_cancelled
from engine.wire.message import Command


class Activity:
    """`what` the loop does in words, empty while it waits; `num_marks` grows with every sign of progress: a command, a
    step, a chunk, a layer of a forward, a measured piece. Only the loop writes, one assignment at a time: no lock."""

    def __init__(self) -> None:
        self.what = "starting"
        self.num_marks = 0

    def mark(self) -> None:
        self.num_marks += 1

    def begin(self, what: str) -> None:
        """Set what the loop does from now on; nothing while it waits."""
        self.what = what
        self.num_marks += 1


LONGEST_WAIT_S = 1e6  # the longest timeout that a queue accepts is finite


class Inbox:
    """The queue of commands. `put` may be called from any thread, everything else only from the loop's. Looking here
    counts as a sign of life in `activity`. Commands that are removed unhandled get their last word through `emit`."""

    def __init__(self, activity: Activity, emit: Callable[[Event], None]) -> None:
        self._activity, self._emit = activity, emit
        self._arrived: SimpleQueue[Command] = SimpleQueue()
        self._waiting: deque[Command] = deque()

    def put(self, command: Command) -> None:
        self._arrived.put(command)

    def take(self) -> Command | None:
        """The next command, None where there is none."""
        self._collect()
        return self._waiting.popleft() if self._waiting else None

    def put_first(self, command: Command) -> None:
        """Put a command that was taken back to the front of the queue."""
        self._waiting.appendleft(command)

    def wait(self, timeout_s: float | None = None) -> Command | None:
        """The next command that arrives; None where none comes in time."""
        self._activity.begin("")
        try:
            return self._arrived.get(timeout=None if timeout_s is None else min(timeout_s, LONGEST_WAIT_S))
        except Empty:
            return None

    def take_cancel(self) -> bool:
        """Whether a Cancel or Shutdown waits. A Cancel is removed from the queue, with the
        commands before it that go with it."""
        self._collect()
        if any(isinstance(c, Shutdown) for c in self._waiting):
            return True
        cancels = [index for index, c in enumerate(self._waiting) if isinstance(c, Cancel)]
        if not cancels:
            return False
        waiting, self._waiting = self._waiting, deque()
        for index, command in enumerate(waiting):
            if isinstance(command, Cancel):
                self._emit(Done(reply_to=command.id))
            elif command.facts.goes_with_cancel and index < cancels[-1]:
                self._emit(replace(word_of_cancelled(command), reply_to=command.id))
            else:
                self._waiting.append(command)
        return True

    def check_uncancelled(self) -> None:
        """Called between two pieces of work; raises `Cancelled` if a Cancel or Shutdown waits."""
        if self.take_cancel():
            raise Cancelled

    def check_uninterrupted(self, *further: type[Command]) -> None:
        """Called between the layers of a prefill; raises `Cancelled` if a command waits that interrupts it, or
        one of the `further` types."""
        self._collect()
        if any(command.facts.interrupts or isinstance(command, further) for command in self._waiting):
            raise Cancelled

    @property
    def has_waiting(self) -> bool:
        """Whether any command waits."""
        self._collect()
        return bool(self._waiting)

    def check_nothing_waits(self) -> None:
        """Called in background work, which any command interrupts; raises `Cancelled` if one waits."""
        if self.has_waiting:
            raise Cancelled

    def _collect(self) -> None:
        """Move arrived commands to the queue; of commands that replace each other only the newest stays."""
        self._activity.num_marks += 1
        while True:
            try:
                command = self._arrived.get_nowait()
            except Empty:
                return
            if command.facts.newest is not None:
                self._remove_older(command, command.facts.newest)
            self._waiting.append(command)

    def _remove_older(self, command: Command, key: Callable[[Command], Hashable]) -> None:
        for older in [each for each in self._waiting if each.facts.newest is key and key(each) == key(command)]:
            self._waiting.remove(older)
            self._emit(events.Cancelled(reply_to=older.id))


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
        interval_s = 0.0 if rate is None else 1 / rate
        if self._due is not None and interval_s != self._interval_s:  # the same pace once more hurries no step
            self._due = time.monotonic()
        self._interval_s = interval_s

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
