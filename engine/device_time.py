"""Measures time on a device: by events on a GPU, which are read later, and by the host's clock on a CPU."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch
from msgspec import Struct


class DeviceTime(Protocol):
    """A point in time on a device."""

    def ms_since(self, earlier: DeviceTime) -> float:
        """Milliseconds between two points; both must have been reached."""


class HostTime(Struct, frozen=True):
    """A point in time on the host's clock."""

    seconds: float

    def ms_since(self, earlier: DeviceTime) -> float:
        assert isinstance(earlier, HostTime)
        return (self.seconds - earlier.seconds) * 1e3


class EventTime:
    """An event queued on a GPU, reached when all work queued before it is done."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "mps":
            self.event: Any = torch.mps.Event(enable_timing=True)
            self.event.record()  # Apple's GPUs have one stream
        else:
            self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self.event.record(torch.cuda.current_stream(device))

    def ms_since(self, earlier: DeviceTime) -> float:
        """Milliseconds between two events; waits until this one is reached."""
        assert isinstance(earlier, EventTime)
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event))


def device_now(device: torch.device) -> DeviceTime:
    """The present point in time on the device: on a GPU, the end of all work queued so far."""
    has_events = device.type == "cuda" or (device.type == "mps" and hasattr(torch.mps, "Event"))
    return EventTime(device) if has_events else HostTime(time.perf_counter())
