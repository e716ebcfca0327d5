"""What the parts of a step took: by the host's clock on a CPU, by events of the device on a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from engine.cache.part_timer import LayerPart, PartTimer
from engine.device_time import DeviceMoment, mark
from engine.wire.records import LayerTimes, Timings

TimedPart = Literal["prepare", "forward", "sample", "observe", "gap", "apart"]


class StepClock:
    """Starts when it is made; every lap goes to a part. `before` is the clock of the step before, where one step
    followed the other: what lies between them is the gap. Nothing is read before `timings`: on a GPU the device is then
    steps ahead."""

    def __init__(self, device: torch.device, before: StepClock | None = None) -> None:
        self._device = device
        self._laps: list[tuple[TimedPart, DeviceMoment]] = []
        self._start = mark(self._device) if before is None else before._last
        self._host_start: float = time.perf_counter() if before is None else before.host_end
        self.host_end: float = self._host_start
        self.encoder_s = 0.0  # of the forward, what an encoder took
        self.compile_s = 0.0  # of the forward, what torch.compile took: no part of the step
        self.parts: PartTimer | None = None  # of the forward, layer by layer, where that is asked for
        self.products_ms = 0.0
        if before is not None:
            self.lap("gap")

    @property
    def _last(self) -> DeviceMoment:
        return self._laps[-1][1] if self._laps else self._start

    def lap(self, part: TimedPart) -> None:
        """What has passed since the last lap belongs to this part."""
        self._laps.append((part, mark(self._device)))

    @contextmanager
    def stopped(self, part: TimedPart) -> Iterator[None]:
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
        total: dict[TimedPart, float] = dict.fromkeys(("prepare", "forward", "sample", "observe", "gap", "apart"), 0.0)
        before = self._start
        for part, moment in self._laps:
            total[part] += moment.ms_since(before)
            before = moment
        wall_ms = (self.host_end - self._host_start) * 1e3 - total["apart"]
        encoder_ms, compile_ms = self.encoder_s * 1e3, self.compile_s * 1e3
        return Timings(
            total["prepare"],
            max(0.0, total["forward"] - encoder_ms - compile_ms),
            total["sample"],
            total["observe"],
            encoder_ms,
            total["gap"],
            wall_ms - compile_ms,
            None if self.parts is None else layer_times(self.parts, self.products_ms),
            compile_ms,
        )


def layer_times(parts: PartTimer, products_ms: float) -> LayerTimes:
    """What was timed, as a record tells it."""
    found = parts.parts_ms()
    layers = tuple(sorted({layer for _, layer in found}))

    def column(part: LayerPart) -> tuple[float, ...]:
        return tuple(found.get((part, layer), 0.0) for layer in layers)

    return LayerTimes(layers, column("attention"), column("cache"), column("dequantise"), column("copies"), products_ms)
