"""The journal of one path of the history tree, from the root to a node: what a sequence was after each step of it. No
torch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from engine.history.state import ALL_TOKENS, SequenceState, States
from engine.history.tree import Tree


class LineageSegment(NamedTuple):
    """A part of the history of a forked sequence, and in which sequence it took place: `owner`, up to the step `last`.
    Only its first `length` tokens are also those of the forked sequence."""

    owner: int
    last: int
    length: int


class Journal:
    """The steps of one path of `tree`, ascending (numbers of other branches are missing). Up to a fork the history of a
    sequence is that of the one that it was forked from. `now` has the states at the end of the path where they are not
    those of its newest step."""

    def __init__(
        self, tree: Tree, steps: Iterable[int] = (), now: Callable[[int], SequenceState | None] = lambda _: None
    ) -> None:
        self._tree, self._now = tree, now
        self.steps = [*steps]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def first_step(self) -> int:
        """The earliest known step."""
        return self.steps[0] if self.steps else 0

    @property
    def newest(self) -> int:
        """The newest step, -1 before the first."""
        return self.steps[-1] if self.steps else -1

    def add(self, *steps: int) -> None:
        """Append steps, and forget those that the tree has dropped."""
        if self.steps and self.steps[0] not in self._tree:
            self.steps = [step for step in self.steps if step in self._tree]
        self.steps += steps

    def at(self, step: int) -> States | None:
        """The states after a step; None if it is not on the path."""
        index = bisect_left(self.steps, step)
        return self._tree.states(step) if index < len(self.steps) and self.steps[index] == step else None

    def cut_after(self, step: int) -> None:
        """Remove all steps after `step` (-1: all)."""
        del self.steps[bisect_right(self.steps, step) :]

    # ---- sequences and their forks -------------------------------------------------------------------------------

    def _lineage(self, seq_id: int, step: int) -> Iterator[LineageSegment]:
        """The history of a sequence up to `step` in segments, each with the sequence that it took place in: the newest
        first. Never empty."""
        length = ALL_TOKENS
        state = self._now(seq_id) or self._tree.states(self.newest).get(seq_id)
        for origin in () if state is None else state.origins:
            if step > origin.until:
                yield LineageSegment(seq_id, step, length)
            seq_id, step, length = origin.parent, min(step, origin.step), min(length, origin.length)
        yield LineageSegment(seq_id, step, length)

    def owner(self, seq_id: int, step: int) -> tuple[int, int]:
        """The sequence that was what `seq_id` was at a step: itself, or the one that it was forked from later; and the
        step at which to look that one up."""
        segment = next(self._lineage(seq_id, step))
        return segment.owner, segment.last

    def state(self, seq_id: int, step: int) -> SequenceState | None:
        """The state of a sequence after a step, or of the one that it was forked from later; None where it did not
        exist or had tokens that the fork did not take."""
        segment = next(self._lineage(seq_id, step))
        state = self.state_of(segment.owner, segment.last)
        return state if state is not None and state.num_tokens <= segment.length else None

    def state_of(self, owner: int, step: int) -> SequenceState | None:
        """The state of exactly this sequence after a step, without following forks."""
        states = self.at(step)
        return states.get(owner) if states else None

    def computed_by(self, seq_id: int, step: int) -> tuple[int, int] | None:
        """The newest step up to `step` that computed a sequence, and the `seq_id` that it computed: the sequence
        itself, or the one that it was forked from. None where none is known."""
        state = self.state(seq_id, step)
        return None if state is None else state.computed_by

    def forward_lengths(self, seq_id: int, until: int | None = None) -> list[int]:
        """The length of a sequence after each step up to `until` that computed it since it last began: forwards that
        end at these lengths repeat its own exactly."""
        lengths: list[int] = []
        for segment in reversed([*self._lineage(seq_id, self.newest + 1 if until is None else until)]):
            for at in self.steps[: bisect_right(self.steps, segment.last)]:
                state = self._tree.states(at).get(segment.owner)
                if state is None or state.num_tokens > segment.length:
                    continue
                if lengths and state.num_tokens < lengths[-1]:
                    lengths = []  # it was preempted, and prefilled again
                if state.num_tokens > (lengths[-1] if lengths else 0):
                    lengths.append(state.num_tokens)
        return lengths
