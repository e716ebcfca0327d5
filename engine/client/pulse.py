"""Watches the progress of an engine loop: reports long work after two seconds, and a possible hang within ten."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from engine.loop.inbox import Activity
from engine.wire.events import EngineBack, EngineBusy, EngineLost

BUSY_S = 2.0
HANGS_S = 9.0  # `beat` comes every second, so that a hang is reported within ten
# Waiting is counted in pieces of at most a second, so that a process that was itself stopped for a while does not
# blame the loop.
PIECE_S = 1.0

Said = EngineBusy | EngineLost | EngineBack


class Pulse:
    """Watches the activity of a loop. `beat` must be called at least once a second, always from the same thread."""

    def __init__(self, activity: Activity, clock: Callable[[], float] = time.monotonic) -> None:
        self._activity, self._clock = activity, clock
        self._looked, self._marks = clock(), -1
        self._waited_s = 0.0  # since the last progress
        self._told_s = 0  # whole seconds that were last reported
        self._is_lost = False

    def beat(self) -> list[Said]:
        """The events to report now: another full second of the same work, a possible hang, or progress after that."""
        now = self._clock()
        waited_s, self._looked = min(now - self._looked, PIECE_S), now
        what, marks = (
            self._activity.what,
            self._activity.num_marks + len(sys.modules),
        )  # imports count as progress as well
        if not what or marks != self._marks:
            self._marks = marks
            return self._progressed()
        self._waited_s += waited_s
        return self._busy(what)

    def _progressed(self) -> list[Said]:
        said: list[Said] = [EngineBusy("", 0)] if self._told_s else []
        if self._is_lost:
            said.append(EngineBack())
        self._waited_s, self._told_s, self._is_lost = 0.0, 0, False
        return said

    def _busy(self, what: str) -> list[Said]:
        said: list[Said] = []
        if self._waited_s >= BUSY_S and int(self._waited_s) > self._told_s:
            self._told_s = int(self._waited_s)
            said.append(EngineBusy(what, self._told_s))
        if self._waited_s >= HANGS_S and not self._is_lost:
            self._is_lost = True
            cause = f"The engine may hang: it is busy with {what} and has not got on for {HANGS_S:.0f} seconds"
            said.append(EngineLost(cause, has_ended=False))
        return said
