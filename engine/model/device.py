"""Where a model computes, and in which numbers."""

from __future__ import annotations

from typing import Any

import torch

from engine.errors import InputError, first_line
from engine.spec.model import ModelSpec


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # a device that holds no numbers is none
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"The device '{name}' cannot be used here ({first_line(error)}): use cpu.") from None
    return device


def pick_dtype(spec: ModelSpec, config: Any, device: torch.device) -> torch.dtype:
    """As asked; `auto` is float32 on a CPU, where half precision is rarely faster, and the config's own elsewhere."""
    if spec.dtype != "auto":
        return getattr(torch, spec.dtype)  # type: ignore[no-any-return]
    own = getattr(config.get_text_config(), "dtype", None)
    return torch.float32 if device.type == "cpu" or not isinstance(own, torch.dtype) else own
