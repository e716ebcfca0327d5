"""The log of lost rows: what each step removed from the cache of one sequence, so that going back can restore it.

The rows at an earlier step are the present rows without those of later tokens, and with what was lost since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

MAX_BYTES = 128 << 20  # limit for one sequence; a session sets a lower one for all of its sequences together


@dataclass(frozen=True, eq=False)
class Lost:
    """What one layer lost in one step: K and V of rows as they were stored, `[1, H_kv, E, ...]`, with their `positions`
    `[H_kv, E]` where they were evicted one by one; exact rows that are read from codes from now on; and the `memory`
    of the eviction rule before the step, where it had one."""

    keys: Sequence[torch.Tensor] = ()
    values: Sequence[torch.Tensor] = ()
    positions: torch.Tensor | None = None
    memory: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        beside = (each for each in (self.positions, self.memory) if each is not None)
        return sum(int(each.nbytes) for each in (*self.keys, *self.values, *beside))


@dataclass(frozen=True, eq=False)
class LostStep:
    """What the step to `at` tokens removed, by layer. `memory_at` is the number of tokens before it, if the layers have
    the rule's memory of then. `pages`: ids of the evicted pages by their index in the page table; the rows of a layer
    are in their order."""

    at: int
    layers: Mapping[int, Lost]
    memory_at: int | None = None
    pages: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def layer_bytes(self) -> dict[int, int]:
        return {index: lost.num_bytes for index, lost in self.layers.items()}

    @cached_property
    def num_bytes(self) -> int:
        return sum(self.layer_bytes.values())


class LostRows:
    """The log of one sequence. What exceeds the limit is dropped from the oldest step on, and going back beyond that is
    refused. All numbers of tokens are those of the decoder.

    `floor`: the fewest tokens whose rows can be restored; `memory_floor`: the fewest whose rule's memory can.
    """

    def __init__(self) -> None:
        self._steps: list[LostStep] = []
        self._layer_bytes: dict[int, int] = {}
        self.num_bytes = self.floor = self.memory_floor = 0

    def add(self, step: LostStep) -> None:
        """Add the newest step, which stays whatever it takes, because it may fail and be undone. A failure here leaves
        it out."""
        num_bytes, layer_bytes = step.num_bytes, step.layer_bytes
        self.shrink(MAX_BYTES - num_bytes)
        held = self._layer_bytes
        counted = {index: held.get(index, 0) + more for index, more in layer_bytes.items()}
        self._steps.append(step)
        self._layer_bytes, self.num_bytes = {**held, **counted}, self.num_bytes + num_bytes

    @staticmethod
    def has_room(num_bytes: int) -> bool:
        """Whether so many bytes are within the limit."""
        return num_bytes <= MAX_BYTES

    def shrink(self, max_bytes: int) -> None:
        """Drop the oldest steps until at most `max_bytes` are left."""
        while self.num_bytes > max_bytes and self._steps:
            self.floor = self._steps[0].at
            self._drop(0)

    def _drop(self, place: int) -> None:
        step, held = self._steps[place], self._layer_bytes
        num_bytes, counted = step.num_bytes, {index: held[index] - less for index, less in step.layer_bytes.items()}
        del self._steps[place]
        self._layer_bytes, self.num_bytes = {**held, **counted}, self.num_bytes - num_bytes

    def bytes_of(self, layer: int) -> int:
        return self._layer_bytes.get(layer, 0)

    def at(self, num_tokens: int) -> LostStep | None:
        """What the newest step lost, if it led to so many tokens."""
        return self._steps[-1] if self._steps and self._steps[-1].at == num_tokens else None

    def since(self, num_tokens: int) -> list[LostStep]:
        """What was lost after there were `num_tokens` tokens, oldest first."""
        return self._steps[bisect_right(self._steps, num_tokens, key=lambda step: step.at) :]

    def knows_memory(self, num_tokens: int) -> bool:
        """Whether the rule's memory at `num_tokens` tokens, before the present, can be restored."""
        later = self.since(num_tokens)[:1]
        is_known = all(step.memory_at in (None, num_tokens) for step in later)
        return num_tokens == 0 or (num_tokens >= self.memory_floor and is_known)

    def memories_at(self, num_tokens: int) -> dict[int, torch.Tensor | None] | None:
        """The rule's memory by layer at `num_tokens` tokens; None where the log does not have it."""
        later = self.since(num_tokens)[:1]
        found = [
            {index: lost.memory for index, lost in step.layers.items()}
            for step in later
            if step.memory_at == num_tokens
        ]
        return found[0] if found else None

    def back_to(self, num_tokens: int) -> None:
        """Drop what was lost after `num_tokens` tokens."""
        while self._steps and self._steps[-1].at > num_tokens:
            self._drop(-1)
        self.memory_floor = min(self.memory_floor, num_tokens)

    def forget(self, num_tokens: int) -> None:
        """Drop everything: nothing before the present, which has `num_tokens` tokens, can be restored any more."""
        self._steps.clear()
        self._layer_bytes = {}
        self.num_bytes, self.floor, self.memory_floor = 0, num_tokens, num_tokens

    def step_bytes(self) -> Iterator[tuple[int, int]]:
        """The identity and bytes of every step: copies of a log share them, so that they are to be counted once."""
        return ((id(step), step.num_bytes) for step in self._steps)

    def copy(self) -> LostRows:
        """A log with the same steps that can be changed independently of this one."""
        made = LostRows()
        made._steps, made._layer_bytes = [*self._steps], self._layer_bytes
        made.num_bytes, made.floor, made.memory_floor = self.num_bytes, self.floor, self.memory_floor
        return made
