"""What makes a step reversible: where every sequence stood after it, and the attention it paid."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from engine.config import CacheSpec
from engine.records import StopReason


@dataclass(frozen=True)
class Mark:
    """Where one sequence stood after a step: tokens known, rows in its cache, the token chosen next, those forced."""

    length: int
    num_tokens: int
    sampled: int | None
    sampled_is_forced: bool
    forced: tuple[int, ...]
    stop: StopReason | None


@dataclass(frozen=True)
class Checkpoint:
    """Where every sequence stood after a step, by `seq_id`, and the cache mode that the step ran in."""

    step: int
    marks: dict[int, Mark]
    cache: CacheSpec


class Journal:
    """Checkpoints in order of steps. Going back drops those after the target."""

    def __init__(self) -> None:
        self._checkpoints: list[Checkpoint] = []

    def __len__(self) -> int:
        return len(self._checkpoints)

    def add(self, checkpoint: Checkpoint) -> None:
        self._checkpoints.append(checkpoint)

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint of a step; steps count from 0 without gaps."""
        first = self._checkpoints[0].step if self._checkpoints else 0
        index = step - first
        return self._checkpoints[index] if 0 <= index < len(self._checkpoints) else None

    def back_to(self, step: int) -> None:
        while self._checkpoints and self._checkpoints[-1].step > step:
            self._checkpoints.pop()

    def fed_lengths(self, seq_id: int) -> list[int]:
        """The lengths a sequence had after each step that fed it: replaying them repeats its forwards exactly."""
        lengths: list[int] = []
        for checkpoint in self._checkpoints:
            mark = checkpoint.marks.get(seq_id)
            if mark is None:
                continue
            if lengths and mark.num_tokens < lengths[-1]:
                lengths = []  # it was preempted and began again
            if mark.num_tokens > (lengths[-1] if lengths else 0):
                lengths.append(mark.num_tokens)
        return lengths


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class BoundedLog(Generic[T]):
    """Tensors by (step, seq_id), at most `max_bytes` of the newest: looking may never cost memory without end."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[tuple[int, int], dict[int, T]] = OrderedDict()

    def put(self, key: tuple[int, int], entry: dict[int, T]) -> None:
        self.drop(key)
        self._entries[key] = entry
        self.num_bytes += sum(e.nbytes for e in entry.values())
        while self.num_bytes > self.max_bytes and len(self._entries) > 1:
            self.drop(next(iter(self._entries)))

    def get(self, key: tuple[int, int]) -> dict[int, T] | None:
        return self._entries.get(key)

    def drop(self, key: tuple[int, int]) -> None:
        for entry in self._entries.pop(key, {}).values():
            self.num_bytes -= entry.nbytes

    def drop_after(self, step: int) -> None:
        for key in [k for k in self._entries if k[0] > step]:
            self.drop(key)

    def clear(self) -> None:
        self._entries.clear()
        self.num_bytes = 0
