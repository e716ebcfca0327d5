"""What a card has been asked to do, how far it is, and its streams and events."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from weakref import WeakSet

import torch


@dataclass(frozen=True)
class Wait:
    """The host waits until the card has done the first `until` of the operations `asked` of it."""

    why: str
    until: int
    asked: int


@dataclass(eq=False)
class Card:
    """One or several. Operations are numbered as they are `asked` for; `launches` are those that are no views; `waits`
    says which the host has waited for; copies have brought it so many `bytes_to_host`."""

    asked: int = 0
    launches: int = 0
    bytes_to_host: int = 0
    moved: list[tuple[str, str, int]] = field(default_factory=list)  # from one card to another, and how many bytes
    refuses_waits: bool = False  # but for events, as torch does where it is asked to
    waits: list[Wait] = field(default_factory=list)
    pinned: WeakSet[torch.UntypedStorage] = field(default_factory=WeakSet)
    coming: list[tuple[int, torch.Tensor, torch.Tensor]] = field(default_factory=list)  # when, to where, what

    def wait(self, why: str, until: int | None = None) -> None:
        if self.refuses_waits and why != "an event":
            raise RuntimeError(f"called a synchronizing operation: {why}")
        until = self.asked if until is None else until
        self.waits.append(Wait(why, until, self.asked))
        for at, target, numbers in self.coming:
            if at <= until:
                target.copy_(numbers)
        self.coming = [each for each in self.coming if each[0] > until]

    def moment(self, until: int) -> float:
        """When the first `until` operations are done, in seconds."""
        return time.perf_counter()

    @property
    def counted(self) -> Counter[str]:
        return Counter(each.why for each in self.waits)


class Stream:
    """`behind`: the operation after which the work of this stream is done."""

    def __init__(self, card: Card, *, is_main: bool) -> None:
        self._card, self._is_main, self._behind = card, is_main, 0

    @property
    def behind(self) -> int:
        return self._card.asked if self._is_main else self._behind

    def wait_event(self, event: Event) -> None:
        self._behind = max(self._behind, event.at)

    def wait_stream(self, other: Stream) -> None:
        self._behind = max(self._behind, other.behind)

    def synchronize(self) -> None:
        self._card.wait("a stream", self.behind)

    def query(self) -> bool:
        return self.behind <= max((wait.until for wait in self._card.waits), default=0)


class Event:
    def __init__(self, card: Card, main: Stream) -> None:
        self._card, self._main = card, main
        self.at, self.seconds = 0, 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.at = (stream or self._main).behind
        self.seconds = self._card.moment(self.at)

    def query(self) -> bool:
        """Whoever asks until it is there waits."""
        self._card.wait("an event", self.at)
        return True

    def synchronize(self) -> None:
        self._card.wait("an event", self.at)

    def elapsed_time(self, later: Event) -> float:
        return (later.seconds - self.seconds) * 1e3
