"""Converts between nodes and x coordinates of the timeline: the path, then the branch that was left or future steps."""

from __future__ import annotations

from msgspec import Struct

SIDE = 52.0
LEFT_SHARE, LEAST_LEFT = 0.4, 60.0  # space of the branch that was left: at most this part of the line, least pixels
AHEAD_SHARE, LEAST_AHEAD, MOST_AHEAD = 0.12, 56.0, 150.0  # space of future steps: part of the line, limits in pixels
LEAST_STEPS = 16  # at least so many future steps can be chosen
HANDLE = 7.0


class TimelineTrack(Struct, frozen=True):
    """A line `width` pixels wide for the `count` nodes of the path; after it there is space for `num_left` nodes that
    were left, or if it `goes_on` for future steps."""

    width: float
    count: int
    num_left: int = 0
    goes_on: bool = False

    @property
    def start(self) -> float:
        return SIDE

    @property
    def end(self) -> float:
        """The x of the end of the whole line."""
        return max(SIDE + 1.0, self.width - SIDE)

    @property
    def tip(self) -> float:
        """The x of the path's newest node; nodes that were left have their share of the line after it, at most two
        fifths."""
        room = self.end - self.start
        if self.num_left:
            share = min(self.num_left / (self.num_left + max(1, self.count - 1)), LEFT_SHARE)
            return round(self.end - max(LEAST_LEFT, room * share))
        if self.goes_on:
            return round(self.end - min(max(LEAST_AHEAD, room * AHEAD_SHARE), MOST_AHEAD))
        return self.end

    def x_of(self, index: float) -> float:
        """The x of a node of the path."""
        return self.tip if self.count < 2 else self.start + (self.tip - self.start) * index / (self.count - 1)

    def index_at(self, x: float) -> int:
        """The index of the path's node nearest to `x`."""
        share = min(max((x - self.start) / max(1.0, self.tip - self.start), 0.0), 1.0)
        return round(share * max(0, self.count - 1))

    def _behind(self, x: float) -> float | None:
        """How many pixels `x` is beyond the newest node; None if it is not."""
        return x - self.tip if x > self.tip + HANDLE and (self.num_left or self.goes_on) else None

    def left_at(self, x: float) -> int | None:
        """The index of the nearest node that was left; None if there is none at `x`."""
        far = self._behind(x)
        if far is None or not self.num_left:
            return None
        return min(max(round(far / (self.end - self.tip) * self.num_left), 1), self.num_left) - 1

    def x_of_left(self, index: int) -> float:
        return self.tip + (self.end - self.tip) * (index + 1) / max(1, self.num_left)

    @property
    def num_ahead(self) -> int:
        """How many future steps have space, as wide as past ones, and at least LEAST_STEPS."""
        if self.num_left or not self.goes_on:
            return 0
        pitch = (self.tip - self.start) / max(1, self.count - 1)
        return max(LEAST_STEPS, round((self.end - self.tip) / pitch))

    def ahead_at(self, x: float) -> int:
        """How many steps `x` is ahead of the newest node; 0 if it is not."""
        far = self._behind(x)
        if far is None or not self.num_ahead:
            return 0
        return min(max(round(far / (self.end - self.tip) * self.num_ahead), 1), self.num_ahead)

    def x_of_ahead(self, num_steps: int) -> float:
        return self.tip + (self.end - self.tip) * min(num_steps / max(1, self.num_ahead), 1.0)
