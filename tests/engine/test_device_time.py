"""Moments on the clock of a device: of Apple's GPUs they are events where torch has them. There is none here: events
stand for it that come at moments of their own."""

from __future__ import annotations

import pytest
import torch

from engine.device import HostTime, device_now


class Event:
    """An event of a GPU on which nothing comes before somebody waits for it."""

    recorded: int = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at, self.is_here = 0, False

    def record(self) -> None:
        Event.recorded += 1
        self.at = Event.recorded

    def synchronize(self) -> None:
        self.is_here = True

    def elapsed_time(self, later: Event) -> float:
        assert later.is_here, "it is read before it has come"
        return 7.0 * (later.at - self.at)


def test_apples_gpus_tell_the_time_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "Event", Event)
    first, second = device_now(torch.device("mps")), device_now(torch.device("mps"))
    assert second.ms_since(first) == 7.0


def test_without_events_it_is_the_clock_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.mps, "Event")
    assert isinstance(device_now(torch.device("mps")), HostTime)
