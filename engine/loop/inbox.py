"""Commands on their way to the loop: in order, the newest of a kind where it replaces those before, cancels first."""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue

from engine.errors import Cancelled
from engine.loop.activity import Activity
from engine.wire.commands import (
    Cancel,
    Command,
    EndDuel,
    GoTo,
    LoadModel,
    RemoveSequence,
    Run,
    Shutdown,
    StartDuel,
    Step,
    StopSequence,
    TakeSlice,
    Watch,
)
from engine.wire.devices import ForecastLoad, UnloadModel
from engine.wire.exporting import EstimateExport
from engine.wire.measuring import WhatIf

# what a prefill gives way to in the middle of a chunk: for these its work is wanted no more, or somebody waits for rest
INTERRUPTING = (Cancel, LoadModel, RemoveSequence, GoTo, Shutdown, StopSequence, UnloadModel)
TO_CANCEL = (Run, Step, StartDuel)  # what a Cancel takes away before it began
LONGEST_WAIT_S = 1e6  # a clock cannot wait for ever


class Inbox:
    """`put` may be called from any thread; everything else on the loop's, which gets on whenever it looks here."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._arrived: SimpleQueue[Command] = SimpleQueue()
        self._waiting: deque[Command] = deque()

    def put(self, command: Command) -> None:
        self._arrived.put(command)

    def take(self) -> Command | None:
        """The next command, None where there is none."""
        self._collect()
        return self._waiting.popleft() if self._waiting else None

    def put_first(self, command: Command) -> None:
        """It is the next one after all."""
        self._waiting.appendleft(command)

    def wait(self, timeout_s: float | None = None) -> Command | None:
        """The next command that arrives; None where none comes in time."""
        self._activity.rest()
        try:
            return self._arrived.get(timeout=None if timeout_s is None else min(timeout_s, LONGEST_WAIT_S))
        except Empty:
            return None

    def take_cancel(self) -> bool:
        """Whether a Cancel or Shutdown is waiting. A Cancel is used up, and with it what was to run before it came."""
        self._collect()
        if any(isinstance(c, Shutdown) for c in self._waiting):
            return True
        cancels = [index for index, c in enumerate(self._waiting) if isinstance(c, Cancel)]
        if not cancels:
            return False
        waiting = enumerate(self._waiting)
        self._waiting = deque(
            c for i, c in waiting if not isinstance(c, Cancel) and (i > cancels[-1] or not isinstance(c, TO_CANCEL))
        )
        return True

    def check_uncancelled(self) -> None:
        """Called between two pieces of work; raises where it was cancelled."""
        if self.take_cancel():
            raise Cancelled

    def check_uninterrupted(self, *further: type[Command]) -> None:
        """Called between the layers of a prefill; raises when a command waits that ends it."""
        self._collect()
        if any(isinstance(command, (*INTERRUPTING, *further)) for command in self._waiting):
            raise Cancelled

    def check_other_uninterrupted(self) -> None:
        """The same in the prefill of the other run of a comparison, which may be ended by itself."""
        self.check_uninterrupted(StartDuel, EndDuel)

    @property
    def has_waiting(self) -> bool:
        """Whether any command waits."""
        self._collect()
        return bool(self._waiting)

    def check_nothing_waits(self) -> None:
        """Called in what is done for want of commands; raises when one waits."""
        if self.has_waiting:
            raise Cancelled

    def _collect(self) -> None:
        """Move what has arrived into order; of several that a newer one replaces, only the newest stays."""
        self._activity.mark()
        while True:
            try:
                command = self._arrived.get_nowait()
            except Empty:
                return
            if (kind := kind_of_latest(command)) is not None:
                self._waiting = deque(c for c in self._waiting if kind_of_latest(c) != kind)
            self._waiting.append(command)


def kind_of_latest(command: Command) -> tuple[object, ...] | None:
    """What a newer command of its kind replaces while both wait: views move, sliders are dragged. None: nothing."""
    if isinstance(command, TakeSlice):
        return TakeSlice, type(command.request), command.side
    return (type(command),) if isinstance(command, Watch | WhatIf | EstimateExport | ForecastLoad) else None
