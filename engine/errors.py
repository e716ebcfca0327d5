"""The engine's own exceptions, for users' mistakes and cancelled work; and functions that recognise memory and device
failures."""

from __future__ import annotations

import re
import sys
import traceback


class InputError(ValueError):
    """Bad input, in one plain sentence for the user: the cause, what it concerns, and what to do about it."""


class DeviceLost(Exception):
    """A device failed while the engine used it; the message says which one, and how."""


class Cancelled(Exception):
    """The user cancelled the current work."""


def first_line(error: BaseException) -> str:
    """The error's first line, at most 200 characters, for use in a sentence; with the second if the first ends with a
    colon."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:200]


def not_imported(error: ImportError) -> str:
    """A sentence for an installed package that cannot be imported, with a remedy; empty where the package is one of
    this program, as that would be a defect."""
    importing = ""
    trace = error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        importing = importing if package in ("importlib", "") else package
        trace = trace.tb_next
    if importing in ("", "app", "engine"):
        return ""
    return (
        f"{importing}, which is installed here, cannot be imported ({first_line(error)}), and what is asked for needs "
        f"it or looks for it: install what it lacks, or remove {importing}."
    )


# ---- memory and device failures. torch is not imported here, because importing it may be what failed --------

CPU_ALLOCATOR = "DefaultCPUAllocator: "
# messages of failed allocations without an exception class: Apple's allocator, and CUDA's libraries
ALLOCATION_WORDS = ("MPS backend out of memory", "CUDA error: out of memory", "ALLOC_FAILED")
DEVICE_WORDS = ("CUDA error", "HIP error", "CUDA driver error", "NCCL", "cuDNN error", "CUBLAS_STATUS", "Metal error")
_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed. torch's CPU allocator raises a plain `RuntimeError` with its name in the
    message."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError | getattr(torch, "OutOfMemoryError", MemoryError)):
        return True
    words = str(error)
    is_said = type(error) is RuntimeError and CPU_ALLOCATOR in words
    return is_said or (isinstance(error, RuntimeError) and any(each in words for each in ALLOCATION_WORDS))


def is_of_device(error: BaseException) -> bool:
    """Whether a device or its driver failed, after which nothing on the device can be relied on."""
    if is_out_of_memory(error) or isinstance(error, InputError):
        return False
    torch = sys.modules.get("torch")
    if isinstance(error, getattr(torch, "AcceleratorError", MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in DEVICE_WORDS)


def is_of_machine(error: BaseException) -> bool:
    """Whether memory ran out or a device failed, so that the request itself may be fine."""
    return is_out_of_memory(error) or is_of_device(error)


def asked_bytes(error: BaseException) -> int | None:
    """The bytes that a failed allocation asked for, if the error names them."""
    found = _ASKED.search(str(error))
    return round(float(found[1]) * _UNITS[found[2].lower()]) if found else None


def clear_frames(error: BaseException) -> None:
    """Clear the local variables of all functions that an error passed through, because they keep tensors alive."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
