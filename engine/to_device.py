"""Copies tensors to a device, and single numbers back, without waiting for other work that is queued on the device."""

from __future__ import annotations

import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on a device. For a GPU it is copied from pinned memory without waiting: an ordinary copy would wait
    for all work queued before it, and the next step could not be launched while this one computes. torch keeps the
    pinned memory until the copy is done."""
    if device.type != "cuda":
        return tensor.to(device)
    try:
        pinned = tensor.pin_memory()
    except RuntimeError:  # some systems have no pinned memory
        return tensor.to(device)
    return pinned.to(device, non_blocking=True)


class HostNumber:
    """One integer on its way from a device to the host, started when this object is made. Reading a GPU tensor directly
    waits for all queued work, the next step included if it was launched ahead; this waits for the number only."""

    def __init__(self, number: torch.Tensor) -> None:
        self._number, self._has_arrived = number, None
        if number.device.type != "cuda":
            return
        try:
            pinned = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
        except RuntimeError:  # some systems have none
            return
        self._number = pinned.copy_(number, non_blocking=True)
        self._has_arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._has_arrived.record(torch.cuda.current_stream(number.device))

    def __int__(self) -> int:
        if self._has_arrived is not None:
            self._has_arrived.synchronize()
        return int(self._number)
