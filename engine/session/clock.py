"""What the parts of a step took: by the host's clock on a CPU, by events of the device on a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import torch

from engine.wire.records import Timings

Part = Literal["prepare", "forward", "sample", "observe", "gap", "apart"]


class Mark(Protocol):
    """A moment on the clock of the device."""

    def ms_since(self, earlier: Mark) -> float:
        """Once both have come."""


class HostMark:
    def __init__(self) -> None:
        self.seconds = time.perf_counter()

    def ms_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, HostMark)
        return (self.seconds - earlier.seconds) * 1e3


class DeviceMark:
    """An event behind everything that was asked of the device so far."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(torch.cuda.current_stream(device))

    def ms_since(self, earlier: Mark) -> float:
        """Waits until this event has come, where it is asked for before."""
        assert isinstance(earlier, DeviceMark)
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event))


class Clock:
    """Starts when it is made; every lap goes to a part. `before` is the clock of the step before, where one step
    followed the other: what lies between them is the gap. Nothing is read before `timings`: on a GPU the device is then
    steps ahead."""

    def __init__(self, device: torch.device, before: Clock | None = None) -> None:
        self._device = device
        self._laps: list[tuple[Part, Mark]] = []
        self._start = self._mark() if before is None else before._last
        self._host_start: float = time.perf_counter() if before is None else before.host_end
        self.host_end: float = self._host_start
        self.encoder_s = 0.0  # of the forward, what an encoder took
        if before is not None:
            self.lap("gap")

    def _mark(self) -> Mark:
        return DeviceMark(self._device) if self._device.type == "cuda" else HostMark()

    @property
    def _last(self) -> Mark:
        return self._laps[-1][1] if self._laps else self._start

    def lap(self, part: Part) -> None:
        """What has passed since the last lap belongs to this part."""
        self._laps.append((part, self._mark()))

    @contextmanager
    def stopped(self, part: Part) -> Iterator[None]:
        """What passes meanwhile belongs to no part; what passed since the last lap to `part`."""
        self.lap(part)
        try:
            yield
        finally:
            self.lap("apart")

    def end(self) -> None:
        """The step is done; what is left of it was observing."""
        self.lap("observe")
        self.host_end = time.perf_counter()

    def timings(self) -> Timings:
        """What each part took; on a GPU the device has done the step by now, or is waited for."""
        total: dict[Part, float] = dict.fromkeys(("prepare", "forward", "sample", "observe", "gap", "apart"), 0.0)
        before = self._start
        for part, mark in self._laps:
            total[part] += mark.ms_since(before)
            before = mark
        wall_ms = (self.host_end - self._host_start) * 1e3 - total["apart"]
        encoder_ms = self.encoder_s * 1e3
        return Timings(
            total["prepare"],
            total["forward"] - encoder_ms,
            total["sample"],
            total["observe"],
            encoder_ms,
            total["gap"],
            wall_ms,
        )
