"""Steps as places on an axis: one beside the other, though their numbers have gaps where other branches were made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.draw.format import thousands


class StepAxis:
    """The first step stands at its own number, each later one a unit further; a place is named by its step."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._steps = np.array(steps, np.int64)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def first(self) -> int:
        return int(self._steps[0]) if len(self._steps) else 0

    def place_of(self, step: int) -> int | None:
        """Where a step stands, None where it is not among them."""
        index = int(np.searchsorted(self._steps, step))
        return self.first + index if index < len(self) and self._steps[index] == step else None

    def name(self, place: float) -> str:
        """The step at a place; beyond the last one there is none to be named."""
        index = round(place) - self.first
        if 0 <= index < len(self):
            return thousands(int(self._steps[index]))
        if index < 0 or not len(self):
            return thousands(self.first + index)
        return ""
