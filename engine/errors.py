"""The engine's own exceptions, for users' mistakes and cancelled work; and functions that recognise memory and device
failures."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Collection
from typing import NamedTuple

Check = Callable[[], None]  # called between two pieces of work; raises `Cancelled` to end it
Progress = tuple[int, int]  # pieces of work that are done, and all of them
Report = Callable[[str, int, int | None], None]  # told what is done in words, how much of it, and of how much


def never_cancel() -> None:
    """A `Check` that never raises."""


class InputError(ValueError):
    """Bad input, in one plain sentence for the user: the cause, what it concerns, and what to do about it."""


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Raise `InputError`, which lists what is known, unless `name` is."""
    if name not in known:
        raise InputError(f"Unknown {what} '{name}': choose one of {', '.join(known)}.")


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


# ---- memory that ran out ------------------------------------------------------------------------------------------

REMEDIES = {
    "reading a prompt": "shorten the prompt, or take a cache that keeps fewer rows or fewer bits",
    "a decode step": "take a cache that keeps fewer rows or fewer bits, or remove a sequence",
    "changing the cache": "take a smaller one, or remove a sequence",
}
OTHER_REMEDIES = "take a cache that keeps fewer rows or fewer bits, or remove a sequence"


class Memory(NamedTuple):
    """Free bytes of a device, and `needed`: by formula, the least that the next step takes for its caches and logits.
    None where no formula applies."""

    device: str
    free: int
    needed: int | None = None


def out_of_memory(error: BaseException, first: str, what: str, memory: Memory | None) -> str:
    """The message: what was needed, what is free, that nothing has changed, and two remedies."""
    found = remedies(what)
    if memory is None:
        return f"There is not enough memory for this ({first}): {found}."
    return (
        f"There is not enough memory for {what or 'this'}: {needed_and_free(error, memory)}; all of it was given back, "
        f"and the session is as it was: {found}."
    )


def plain(error: BaseException, what: str = "", memory: Memory | None = None) -> str:
    """An error in one sentence for the user; empty for one that only a defect explains. `what` was being done, `memory`
    is what is free now."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ImportError):
        return not_imported(error)
    return out_of_memory(error, first_line(error), what, memory) if is_out_of_memory(error) else ""


def needed_and_free(error: BaseException, memory: Memory) -> str:
    """`3.0 MiB more were needed and 1.2 MiB are free on cuda:0`."""
    asked = asked_bytes(error)
    free = f"{size(memory.free)} are free on {memory.device}"
    if asked is not None:
        return f"{size(asked)} more were needed and {free}"
    return free if memory.needed is None else f"at least {size(memory.needed)} more are needed and {free}"


def remedies(what: str) -> str:
    """Two remedies, depending on what was being done."""
    return REMEDIES.get(what, OTHER_REMEDIES)


def size(num_bytes: int) -> str:
    """A size for people: `12.3 GiB`, or in a smaller unit."""
    for unit, width in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if num_bytes >= 1 << width:
            return f"{num_bytes / (1 << width):,.1f} {unit}"
    return f"{num_bytes:,} bytes"
