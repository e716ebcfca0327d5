"""Numbers of the host on their way to a device."""

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
