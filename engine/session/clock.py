"""Times the parts of a step: with the host's clock on a CPU, with device events on a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from engine.cache.part_timer import LayerPart, PartTimer
from engine.device import DeviceTime, device_now
from engine.wire.records import LayerTimes, Timings

TimedPart = Literal["prepare", "forward", "sample", "observe", "gap", "apart"]


class StepClock:
    """Times one step, from its construction to `end`; every lap adds the time since the last one to a part. `before` is
    the clock of the previous step if this one follows without a pause: the time between them is the gap. Device events
    are read only by `timings`, so that the host does not wait for the device during the step."""

    def __init__(self, device: torch.device, before: StepClock | None = None) -> None:
        self._device = device
        self._laps: list[tuple[TimedPart, DeviceTime]] = []
        self._start = device_now(self._device) if before is None else before._last
        self._host_start: float = time.perf_counter() if before is None else before.host_end
        self.host_end: float = self._host_start
        self.encoder_s = 0.0  # seconds of the forward that the encoder took
        self.compile_s = 0.0  # seconds of the forward that torch.compile took: not counted in the step
        self.parts: PartTimer | None = None  # times the forward layer by layer, where that is asked for
        self.products_ms = 0.0
        if before is not None:
            self.lap("gap")

    @property
    def _last(self) -> DeviceTime:
        return self._laps[-1][1] if self._laps else self._start

    def lap(self, part: TimedPart) -> None:
        """Add the time since the last lap to this part."""
        self._laps.append((part, device_now(self._device)))

    @contextmanager
    def stopped(self, part: TimedPart) -> Iterator[None]:
        """Add the time since the last lap to `part`, and leave the time within the block out of the step."""
        self.lap(part)
        try:
            yield
        finally:
            self.lap("apart")

    def end(self) -> None:
        """End the step; the time since the last lap was spent on observing."""
        self.lap("observe")
        self.host_end = time.perf_counter()

    def timings(self) -> Timings:
        """What each part took, in milliseconds; on a GPU this waits until the device has finished the step."""
        total: dict[TimedPart, float] = dict.fromkeys(("prepare", "forward", "sample", "observe", "gap", "apart"), 0.0)
        before = self._start
        for part, lap in self._laps:
            total[part] += lap.ms_since(before)
            before = lap
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
    """The layer times of a forward in the form of a record, in milliseconds."""
    found = parts.parts_ms()
    layers = tuple(sorted({layer for _, layer in found}))

    def column(part: LayerPart) -> tuple[float, ...]:
        return tuple(found.get((part, layer), 0.0) for layer in layers)

    return LayerTimes(layers, column("attention"), column("cache"), column("dequantise"), column("copies"), products_ms)
