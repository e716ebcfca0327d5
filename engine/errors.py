"""What the engine raises on purpose, for the person at the keyboard or because that person asked it to stop; and errors
of the machine, told by what was raised."""

from __future__ import annotations

import re
import sys
import traceback


class InputError(ValueError):
    """Bad input, in one plain sentence: the cause, the thing it concerns, and what to do about it."""


class RowsMissing(InputError):
    """A question about rows that are not held any more; it can be answered with rows rebuilt from the tokens."""


class DeviceLost(Exception):
    """A device failed under the engine; says which, and how."""


class Cancelled(Exception):
    """The person asked for the work in hand to stop."""


def first_line(error: BaseException) -> str:
    """What went wrong, short enough for a sentence; a first line that ends with a colon needs the next."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:200]


def not_imported(error: ImportError) -> str:
    """Which package that is installed here cannot be imported, and what to do; empty where it is one of ours, whose
    fault that would be."""
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


# ---- errors of the machine, by what was raised: torch is not imported here, for that may be what failed -----

CPU_ALLOCATOR = "DefaultCPUAllocator: "
# what has no class of its own: Apple's allocator, and CUDA's libraries, which want memory for themselves
ALLOCATION_WORDS = ("MPS backend out of memory", "CUDA error: out of memory", "ALLOC_FAILED")
DEVICE_WORDS = ("CUDA error", "HIP error", "CUDA driver error", "NCCL", "cuDNN error", "CUBLAS_STATUS", "Metal error")
_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed. torch's CPU allocator only raises a `RuntimeError` that begins with its name."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError | getattr(torch, "OutOfMemoryError", MemoryError)):
        return True
    words = str(error)
    is_said = type(error) is RuntimeError and CPU_ALLOCATOR in words
    return is_said or (isinstance(error, RuntimeError) and any(each in words for each in ALLOCATION_WORDS))


def is_of_device(error: BaseException) -> bool:
    """Whether a device or its driver failed: nothing on it can be relied on any more."""
    if is_out_of_memory(error) or isinstance(error, InputError):
        return False
    torch = sys.modules.get("torch")
    if isinstance(error, getattr(torch, "AcceleratorError", MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in DEVICE_WORDS)


def is_of_machine(error: BaseException) -> bool:
    """Whether memory ran out or a device failed: nothing is wrong with what was asked."""
    return is_out_of_memory(error) or is_of_device(error)


def asked_bytes(error: BaseException) -> int | None:
    """How much an allocation that failed wanted, where the error says it."""
    found = _ASKED.search(str(error))
    return round(float(found[1]) * _UNITS[found[2].lower()]) if found else None


def let_go_of_frames(error: BaseException) -> None:
    """Forget what the functions that an error went through held in their variables: tensors, above all."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
