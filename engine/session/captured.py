"""The capture settings of a session: how much is measured of every step, and what that costs."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from engine.look.measures import Wanted
from engine.spec.model import CAPTURES, DEFAULT_CAPTURE, CaptureLevel, captures

COSTS_KEPT = 64  # decode steps whose median cost is reported


@dataclass(eq=False)
class Captured:
    """The capture level and what it includes; changed only between two steps. `by_layer`: forwards are timed layer by
    layer."""

    level: CaptureLevel = DEFAULT_CAPTURE
    by_layer: bool = False
    _costs_ms: dict[CaptureLevel, deque[float]] = field(default_factory=dict)

    def set(self, level: CaptureLevel, *, by_layer: bool) -> None:
        self.level, self.by_layer = level, by_layer

    def note_cost(self, level: CaptureLevel, cost_ms: float) -> None:
        """Note how many milliseconds of a decode step measuring took at that level."""
        self._costs_ms.setdefault(level, deque(maxlen=COSTS_KEPT)).append(cost_ms)

    @property
    def costs_ms(self) -> tuple[tuple[CaptureLevel, float], ...]:
        """The median cost of each level that was used, in milliseconds, in the order of the levels."""
        return tuple((name, statistics.median(self._costs_ms[name])) for name in CAPTURES if name in self._costs_ms)

    @property
    def wanted(self) -> Wanted | None:
        """What a recorded step is to measure itself; None if nothing is measured."""
        return Wanted(self.attention_rows, self.new_rows) if self.statistics else None

    @property
    def statistics(self) -> bool:
        """Whether row statistics, candidates and surprisals are measured."""
        return captures(self.level, "statistics")

    @property
    def attention_rows(self) -> bool:
        """Whether the newest query's attention weights are captured."""
        return captures(self.level, "rows")

    @property
    def new_rows(self) -> bool:
        """Whether K and V of the new tokens are captured as they are computed."""
        return captures(self.level, "everything")
