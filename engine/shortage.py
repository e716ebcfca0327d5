"""Messages for memory that ran out: what was needed, what is free, and two remedies."""

from __future__ import annotations

from typing import NamedTuple

from engine.errors import asked_bytes

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
