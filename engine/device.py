"""What a device is asked beside computing: its time, its memory, and copies to it and back that wait for nothing else.

Time is measured by events on a GPU, which are read later, and by the host's clock on a CPU. Of memory: how much is free
(from NVML or the driver) and in use, releasing what is unused, checks before large allocations, and what to do where it
ran out.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import time
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import psutil
import torch
from msgspec import Struct

from engine.errors import InputError
from engine.garbage import garbage
from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import Fill, predict
from engine.predict.capacity import context_length, reserved_length
from engine.spec.cache import CacheSpec

OWN_PAGES = 1 << 20  # bytes: from here on a buffer has memory pages of its own

# ---- time ------------------------------------------------------------------------------------------------------------


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


# ---- memory ----------------------------------------------------------------------------------------------------------

STATUS, CLEAR, MOST_STATUS = "/proc/self/status", "/proc/self/clear_refs", 1 << 14  # files of this process, and bytes
_opened = cache(os.open)  # kept open: opening both at every step takes four times longer than what is done with them


def free_and_total(device: torch.device) -> tuple[int, int]:
    """Bytes that no program uses, and all bytes of the device."""
    if device.type == "cuda":
        # NVML first: torch's query would create a CUDA context on an unused GPU, which takes hundreds of megabytes
        free, total = nvml_bytes(device) or torch.cuda.mem_get_info(device)
        return int(free), int(total)
    if device.type == "mps":
        total = int(torch.mps.recommended_max_memory())
        return max(0, total - int(torch.mps.driver_allocated_memory())), total
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def free_bytes(device: torch.device) -> int:
    """Bytes that can be allocated: those that no program uses, and those that torch has reserved but not in use. Of
    main memory no more than this process may still map."""
    free = free_and_total(device)[0]
    if device.type == "cuda":
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free if device.type != "cpu" or (room := mappable_bytes()) is None else min(free, room)


def mappable_bytes() -> int | None:
    """Bytes that this process may still map under its limit (`ulimit -v`); None where there is no limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else max(0, limit - int(psutil.Process().memory_info().vms))


def used_bytes(device: torch.device) -> int:
    """Bytes that this program uses there: reserved by torch's allocator on GPUs, or resident in main memory."""
    if device.type == "cuda":
        return sum(int(torch.cuda.memory_reserved(index)) for index in range(torch.cuda.device_count()))
    if device.type == "mps":
        return int(torch.mps.driver_allocated_memory())
    return int(psutil.Process().memory_info().rss)


class MemoryUse(NamedTuple):
    """Memory in use. `process`: resident bytes of this program. `allocator`: bytes of torch's tensors on GPUs (None: no
    GPU). `peak`: the maximum of `allocator`, or without a GPU of `process`, since the last reset (None: unknown).
    `device`: bytes that all programs use on these GPUs (None: no NVML)."""

    process: int
    allocator: int | None = None
    peak: int | None = None
    device: int | None = None


class MemoryMeter:
    """Measures the memory in use for a model on these devices. The peak is that of the GPUs; without one, that of the
    process, which only Linux reports."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._gpus = [device for device in devices if device.type == "cuda"]
        self._asks_nvml = all(nvml_bytes(gpu) is not None for gpu in self._gpus)  # once, not at every step

    @cached_property
    def _process(self) -> psutil.Process:
        return psutil.Process()  # on demand, because it reads several files and not every session needs it

    def read(self, *, reset_peak: bool = False) -> MemoryUse:
        """The memory in use now; `reset_peak` resets the peak."""
        if not self._gpus:
            held = _resident(reset_peak) or MemoryUse(int(self._process.memory_info().rss))
            return held._replace(allocator=int(torch.mps.current_allocated_memory())) if _is_mps() else held
        allocator = sum(int(torch.cuda.memory_allocated(gpu)) for gpu in self._gpus)
        peak = sum(int(torch.cuda.max_memory_allocated(gpu)) for gpu in self._gpus)
        if reset_peak:
            for gpu in self._gpus:
                torch.cuda.reset_peak_memory_stats(gpu)
        readings = [nvml_bytes(gpu) for gpu in self._gpus] if self._asks_nvml else [None]
        used = sum(total - free for free, total in filter(None, readings)) if all(readings) else None
        return MemoryUse(int(self._process.memory_info().rss), allocator, peak, used)


def _is_mps() -> bool:
    return torch.backends.mps.is_available()


def _resident(reset_peak: bool) -> MemoryUse | None:
    """The program's resident bytes and their peak, from Linux's /proc, which can also reset the peak; None
    elsewhere."""
    try:
        status = os.pread(_opened(STATUS, os.O_RDONLY), MOST_STATUS, 0)
        now, peak = (int(status.split(name, 1)[1].split(None, 1)[0]) << 10 for name in (b"VmRSS:", b"VmHWM:"))
        if reset_peak:
            os.pwrite(_opened(CLEAR, os.O_WRONLY), b"5", 0)
    except (OSError, IndexError, ValueError):
        return None
    return MemoryUse(now, peak=peak)


def release_memory(device: torch.device) -> None:
    """Free unreferenced objects, and return unused memory to the system."""
    garbage.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    trim_heap()


def trim_heap() -> None:
    """Return the unused memory of the C heap to the system (Linux with glibc; elsewhere nothing happens)."""
    if sys.platform == "linux" and (libc := _libc()) is not None:
        libc.malloc_trim(0)


def new_buffer(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """An uninitialised tensor of the dtype and device of `like`. A large one on a CPU has memory pages of its own: rows
    that are never written take no memory, and a buffer that is replaced by a larger one leaves no hole in the heap."""
    num_bytes = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or num_bytes < OWN_PAGES:
        return like.new_empty(shape)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        pages = mmap.mmap(-1, num_bytes, **private)
    except (OSError, OverflowError):
        return like.new_empty(shape)  # which raises in the words by which a lack of memory is known
    return torch.frombuffer(pages, dtype=like.dtype).view(*shape)


@cache
def _libc() -> ctypes.CDLL | None:
    """The C library, if it has malloc_trim."""
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return None
    return libc if hasattr(libc, "malloc_trim") else None


def nvml_bytes(device: torch.device) -> tuple[int, int] | None:
    """Free and total bytes as NVML counts them; None where NVML is not available."""
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


def check_reserved(spec: CacheSpec, geometry: CacheGeometry, dtype: str, device: torch.device) -> None:
    """Raise `InputError` for a static or allocated cache that is larger than the free memory."""
    if spec.form not in ("static", "allocated"):
        return
    needed = sum(need.reserved for need in predict(spec, geometry, Fill(1, 1), dtype))
    num_tokens = reserved_length(spec, context_length(geometry))
    check_room(f"A cache of {num_tokens:,} reserved tokens", needed, free_bytes(device))


def check_room(what: str, num_bytes: int, free: int) -> None:
    """Raise `InputError` if `num_bytes` are more than are `free`."""
    if num_bytes > free:
        raise InputError(
            f"{what} takes {num_bytes / 2**30:,.1f} GiB and {free / 2**30:,.1f} GiB are free: ask for less."
        )


# ---- copies that do not wait for other work that is queued on the device ---------------------------------------------


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
