"""An error that nobody foresaw, in one sentence."""

from __future__ import annotations

import sys

CPU_ALLOCATOR = "DefaultCPUAllocator: "


def plain(error: BaseException) -> str:
    """An unexpected error in one sentence."""
    lines = str(error).strip().splitlines()
    first = lines[0][:200] if lines else "no details"
    if is_out_of_memory(error):
        return f"There is not enough memory for this ({first}): shorten the context or free some."
    return f"Something unexpected went wrong ({type(error).__name__}: {first}); the session is as it was."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, by what was raised: torch's CPU allocator has no class of its own for it, only a
    `RuntimeError` that begins with its name."""
    torch = sys.modules.get("torch")  # not imported here: that may be what failed
    if isinstance(error, MemoryError | getattr(torch, "OutOfMemoryError", MemoryError)):
        return True
    return type(error) is RuntimeError and CPU_ALLOCATOR in str(error)
