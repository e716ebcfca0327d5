"""An error that nobody foresaw, in one sentence."""

from __future__ import annotations

from typing import NamedTuple

from engine.errors import asked_bytes, is_out_of_memory

WAYS = {
    "reading a prompt": "shorten the prompt, or take a cache that keeps fewer rows or fewer bits",
    "a decode step": "take a cache that keeps fewer rows or fewer bits, or remove a sequence",
    "changing the cache": "take a smaller one, or remove a sequence",
}
OTHER_WAYS = "take a cache that keeps fewer rows or fewer bits, or remove a sequence"


class Memory(NamedTuple):
    """How it stands with memory: `needed` is what the caches of the next step would take more, by formula, and its
    logits: the least that a step wants."""

    device: str
    free: int
    needed: int


def plain(error: BaseException, what: str = "", memory: Memory | None = None) -> str:
    """An unexpected error in one sentence; `what` was being done."""
    lines = str(error).strip().splitlines()
    first = lines[0][:200] if lines else "no details"
    if is_out_of_memory(error):
        return out_of_memory(error, first, what, memory)
    return f"Something unexpected went wrong ({type(error).__name__}: {first}); the session is as it was."


def out_of_memory(error: BaseException, first: str, what: str, memory: Memory | None) -> str:
    """What was needed, what is free, that nothing has changed, and two ways out."""
    ways = WAYS.get(what, OTHER_WAYS)
    if memory is None:
        return f"There is not enough memory for this ({first}): {ways}."
    asked = asked_bytes(error)
    needed = f"at least {size(memory.needed)} more are needed" if asked is None else f"{size(asked)} more were needed"
    return (
        f"There is not enough memory for {what or 'this'}: {needed} and {size(memory.free)} are free on "
        f"{memory.device}; all of it was given back, and the session is as it was: {ways}."
    )


def size(num_bytes: int) -> str:
    """`12.3 GiB`, or in a smaller unit."""
    for unit, width in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if num_bytes >= 1 << width:
            return f"{num_bytes / (1 << width):,.1f} {unit}"
    return f"{num_bytes:,} bytes"
