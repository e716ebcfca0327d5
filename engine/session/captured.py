"""How much is measured of the steps of a session from now on."""

from __future__ import annotations

from dataclasses import dataclass

from engine.spec.capture import DEFAULT_CAPTURE, CaptureLevel, captures


@dataclass(eq=False)
class Captured:
    """The level, and what it takes in; changed between two steps."""

    level: CaptureLevel = DEFAULT_CAPTURE

    @property
    def statistics(self) -> bool:
        return captures(self.level, "statistics")

    @property
    def attention_rows(self) -> bool:
        return captures(self.level, "rows")

    @property
    def new_rows(self) -> bool:
        return captures(self.level, "everything")
