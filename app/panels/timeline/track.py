"""Where things stand on the timeline: the moments of the path, and behind its end what was left, or room for more."""

from __future__ import annotations

from msgspec import Struct

SIDE = 52.0
LEFT_SHARE, LEAST_LEFT = 0.4, 60.0  # of the line, and in pixels: the room of what was left
AHEAD_SHARE, LEAST_AHEAD, MOST_AHEAD = 0.12, 56.0, 150.0  # as much for the steps that may come
LEAST_STEPS = 16  # that have room ahead
HANDLE = 7.0


class TimelineTrack(Struct, frozen=True):
    """A line `width` pixels wide with the `count` moments of the path, and behind it `num_left` moments that were left,
    else room for steps that may come where it `goes_on`."""

    width: float
    count: int
    num_left: int = 0
    goes_on: bool = False

    @property
    def start(self) -> float:
        return SIDE

    @property
    def end(self) -> float:
        """Of the whole line."""
        return max(SIDE + 1.0, self.width - SIDE)

    @property
    def tip(self) -> float:
        """Where the newest moment of the path stands: what was left takes its share behind it, and not more than two
        fifths."""
        room = self.end - self.start
        if self.num_left:
            share = min(self.num_left / (self.num_left + max(1, self.count - 1)), LEFT_SHARE)
            return round(self.end - max(LEAST_LEFT, room * share))
        if self.goes_on:
            return round(self.end - min(max(LEAST_AHEAD, room * AHEAD_SHARE), MOST_AHEAD))
        return self.end

    def x_of(self, index: float) -> float:
        """Where a moment of the path stands."""
        return self.tip if self.count < 2 else self.start + (self.tip - self.start) * index / (self.count - 1)

    def index_at(self, x: float) -> int:
        """The moment of the path nearest to a place."""
        share = min(max((x - self.start) / max(1.0, self.tip - self.start), 0.0), 1.0)
        return round(share * max(0, self.count - 1))

    def _behind(self, x: float) -> float | None:
        """How far a place is behind the newest moment, None where it is not."""
        return x - self.tip if x > self.tip + HANDLE and (self.num_left or self.goes_on) else None

    def left_at(self, x: float) -> int | None:
        """Which of the moments that were left is nearest to a place, None where none stands there."""
        far = self._behind(x)
        if far is None or not self.num_left:
            return None
        return min(max(round(far / (self.end - self.tip) * self.num_left), 1), self.num_left) - 1

    def x_of_left(self, index: int) -> float:
        return self.tip + (self.end - self.tip) * (index + 1) / max(1, self.num_left)

    @property
    def num_ahead(self) -> int:
        """How many steps have room behind the newest moment: as wide as those before it where these are many."""
        if self.num_left or not self.goes_on:
            return 0
        pitch = (self.tip - self.start) / max(1, self.count - 1)
        return max(LEAST_STEPS, round((self.end - self.tip) / pitch))

    def ahead_at(self, x: float) -> int:
        """How many steps ahead of the newest moment a place is; 0 where it is not."""
        far = self._behind(x)
        if far is None or not self.num_ahead:
            return 0
        return min(max(round(far / (self.end - self.tip) * self.num_ahead), 1), self.num_ahead)

    def x_of_ahead(self, num_steps: int) -> float:
        return self.tip + (self.end - self.tip) * min(num_steps / max(1, self.num_ahead), 1.0)
