"""Whether there is a GPU that torch would use, found out without importing torch."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path


def has_gpu() -> bool:
    """Whether torch was built for CUDA and its driver has a device. The driver is asked, so that a card without one,
    or a driver without a card, is none."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    libraries = Path(torch.origin).parent / "lib"
    if not any(libraries.glob("*torch_cuda.*")):
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
