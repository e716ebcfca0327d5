"""Finds out, without importing torch, whether there is a GPU that torch would use."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import sys
from pathlib import Path

# file names of the HIP runtime, which comes with torch for ROCm or is installed
HIP_RUNTIMES = ("libamdhip64.so", "amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll")


def has_gpu() -> bool:
    """Whether torch was built for CUDA or ROCm and the driver reports a device, or this is an Apple processor, which
    always has a GPU. The driver is asked, so that a card without a driver, or a driver without a card, does not
    count."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    libraries = Path(torch.origin).parent / "lib"
    if any(libraries.glob("*torch_hip.*")):
        own = [str(library) for name in HIP_RUNTIMES for library in sorted(libraries.glob(f"{name}*"))]
        return counts_devices((*own, *HIP_RUNTIMES), "hipInit", "hipGetDeviceCount")
    if any(libraries.glob("*torch_cuda.*")):
        return counts_devices(("libcuda.so.1", "nvcuda.dll"), "cuInit", "cuDeviceGetCount")
    return False


def counts_devices(libraries: tuple[str, ...], init: str, count_devices: str) -> bool:
    """Whether the first of these driver libraries that can be loaded reports at least one device."""
    for name in libraries:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        return (
            getattr(driver, init)(0) == 0
            and getattr(driver, count_devices)(ctypes.byref(count)) == 0
            and count.value > 0
        )
    return False
