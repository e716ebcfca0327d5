"""Moments on the clock of a device: events of a GPU, which are read later, and the host's clock of a CPU."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class DeviceMoment(Protocol):
    """A moment on the clock of the device."""

    def ms_since(self, earlier: DeviceMoment) -> float:
        """Once both have come."""


class HostMark:
    def __init__(self) -> None:
        self.seconds = time.perf_counter()

    def ms_since(self, earlier: DeviceMoment) -> float:
        assert isinstance(earlier, HostMark)
        return (self.seconds - earlier.seconds) * 1e3


class DeviceMark:
    """An event behind everything that was asked of the device so far."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "mps":
            self.event: Any = torch.mps.Event(enable_timing=True)
            self.event.record()  # Apple's GPUs have one stream
        else:
            self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self.event.record(torch.cuda.current_stream(device))

    def ms_since(self, earlier: DeviceMoment) -> float:
        """Waits until this event has come, where it is asked for before."""
        assert isinstance(earlier, DeviceMark)
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event))


def mark(device: torch.device) -> DeviceMoment:
    """Now, as the device sees it."""
    has_events = device.type == "cuda" or (device.type == "mps" and hasattr(torch.mps, "Event"))
    return DeviceMark(device) if has_events else HostMark()
