"""Numbers on their way to a device, and one number on its way back, without waiting for what else it computes."""

from __future__ import annotations

import torch


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on a device. On a GPU nobody waits: an ordinary copy would wait for everything that was
    asked of the device before it, and the next step could not be launched while this one computes. torch keeps pinned
    memory until a copy out of it has been made."""
    if device.type != "cuda":
        return tensor.to(device)
    try:
        pinned = tensor.pin_memory()
    except RuntimeError:  # some systems have none
        return tensor.to(device)
    return pinned.to(device, non_blocking=True)


class Returning:
    """One integer of a device on its way to the host from the moment this is made. Reading a tensor of a GPU waits for
    everything that was asked of it by then, the step that was launched ahead as well; this waits for the number."""

    def __init__(self, number: torch.Tensor) -> None:
        self._number, self._has_come = number, None
        if number.device.type != "cuda":
            return
        try:
            pinned = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
        except RuntimeError:  # some systems have none
            return
        self._number = pinned.copy_(number, non_blocking=True)
        self._has_come = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._has_come.record(torch.cuda.current_stream(number.device))

    def __int__(self) -> int:
        if self._has_come is not None:
            self._has_come.synchronize()
        return int(self._number)
