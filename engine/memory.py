"""Memory of a device: what is free, by NVML's word or the driver's, what this program holds, and giving it back."""

from __future__ import annotations

import ctypes
import gc
import sys
from importlib.util import find_spec

import psutil
import torch


def free_and_total(device: torch.device) -> tuple[int, int]:
    """Bytes that nobody uses, of any program, and all bytes there are."""
    if device.type == "cuda":
        # torch's own question makes a context on a GPU that nobody uses, which takes hundreds of megabytes there
        free, total = nvml_bytes(device) or torch.cuda.mem_get_info(device)
        return int(free), int(total)
    if device.type == "mps":
        total = int(torch.mps.recommended_max_memory())
        return max(0, total - int(torch.mps.driver_allocated_memory())), total
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def free_bytes(device: torch.device) -> int:
    """Bytes that can be had: those that nobody uses, and those that torch keeps for the next tensors."""
    free = free_and_total(device)[0]
    if device.type == "cuda":
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free


def used_bytes(device: torch.device) -> int:
    """What this program holds there: what torch's allocator took from a GPU, or all that is resident."""
    if device.type == "cuda":
        return sum(int(torch.cuda.memory_reserved(index)) for index in range(torch.cuda.device_count()))
    if device.type == "mps":
        return int(torch.mps.driver_allocated_memory())
    return int(psutil.Process().memory_info().rss)


def give_back(device: torch.device) -> None:
    """Let go of what nothing refers to any more, and hand the room to the system or to other programs."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    if sys.platform == "linux" and (libc := _libc()) is not None:
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL | None:
    """The C library, where it can give freed memory back."""
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return None
    return libc if hasattr(libc, "malloc_trim") else None


def nvml_bytes(device: torch.device) -> tuple[int, int] | None:
    """Free and total bytes as NVML counts them; None where it cannot be asked."""
    if torch.version.hip is not None or not find_spec("pynvml"):
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except (pynvml.NVMLError, AttributeError, RuntimeError):
        return None
    return int(memory.free), int(memory.total)
