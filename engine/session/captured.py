"""How much is measured of the steps of a session from now on."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from engine.look.strip import Strip, Wanted
from engine.spec.capture import CAPTURES, DEFAULT_CAPTURE, CaptureLevel, captures

COSTS_KEPT = 64  # decode steps, whose median is told


@dataclass(eq=False)
class Captured:
    """The level, and what it takes in; changed between two steps. `by_layer`: forwards are timed layer by layer."""

    level: CaptureLevel = DEFAULT_CAPTURE
    by_layer: bool = False
    _costs_ms: dict[CaptureLevel, deque[float]] = field(default_factory=dict)

    def set(self, level: CaptureLevel, *, by_layer: bool) -> None:
        self.level, self.by_layer = level, by_layer

    def note_cost(self, level: CaptureLevel, cost_ms: float) -> None:
        """What looking took of a decode step at that level."""
        self._costs_ms.setdefault(level, deque(maxlen=COSTS_KEPT)).append(cost_ms)

    @property
    def costs_ms(self) -> tuple[tuple[CaptureLevel, float], ...]:
        """The median at each level that was used, in their order."""
        return tuple((name, statistics.median(self._costs_ms[name])) for name in CAPTURES if name in self._costs_ms)

    def strip(self) -> Strip | None:
        """What a forward shall measure itself, where it can."""
        return Strip(Wanted(self.attention_rows, self.new_rows)) if self.statistics else None

    @property
    def statistics(self) -> bool:
        return captures(self.level, "statistics")

    @property
    def attention_rows(self) -> bool:
        return captures(self.level, "rows")

    @property
    def new_rows(self) -> bool:
        return captures(self.level, "everything")
