"""What the parts of a step took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from engine.wire.records import Timings

Part = Literal["prepare", "forward", "sample", "observe"]


class Clock:
    """Starts when it is made; every lap goes to a part."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._seconds: dict[Part, float] = {"prepare": 0.0, "forward": 0.0, "sample": 0.0, "observe": 0.0}

    def lap(self, part: Part) -> None:
        """What has passed since the last lap belongs to this part."""
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What passes meanwhile belongs to no part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._last += time.perf_counter() - began

    def timings(self, probing_s: float, encoder_s: float = 0.0) -> Timings:
        """With the rest as observing; so counts what a forward spent on its newest attention rows. What an encoder took
        is none of the forward's."""
        self.lap("observe")
        seconds = self._seconds
        return Timings(
            prepare_ms=seconds["prepare"] * 1e3,
            forward_ms=(seconds["forward"] - probing_s - encoder_s) * 1e3,
            sample_ms=seconds["sample"] * 1e3,
            observe_ms=(seconds["observe"] + probing_s) * 1e3,
            encoder_ms=encoder_s * 1e3,
        )
