"""Surprisals of prompts that are computed behind their steps: what is kept for them, and what was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.wire.events import PromptSurprisal
from engine.wire.records import StepRecord

if TYPE_CHECKING:
    from engine.model.surprisal import Surprisal

MAX_BYTES = 256 << 20  # of what is kept; beyond it the surprisal is computed in its step again


@dataclass(eq=False)
class PendingChunk:
    """A chunk of a prompt whose surprisal is not known to its end; `position` is that of the next token. `seq_ids` have
    these tokens: the sequence that was fed, and those forked from it."""

    seq_ids: set[int]
    position: int
    surprisal: Surprisal


class LateSurprisal:
    """By step and sequence: what waits, in order, and what was found so far. `advance` takes about 50 ms on a CPU."""

    def __init__(self) -> None:
        self.is_wanted = True  # whether anybody asks for it at all
        self._waiting: dict[tuple[int, int], PendingChunk] = {}
        self._found: dict[tuple[int, int], list[PromptSurprisal]] = {}

    @property
    def has_room(self) -> bool:
        """Whether another chunk may wait."""
        return self.num_bytes < MAX_BYTES

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def num_bytes(self) -> int:
        return sum(waiting.surprisal.num_bytes for waiting in self._waiting.values())

    def put(self, step: int, seq_id: int, position: int, surprisal: Surprisal) -> None:
        """Keep what a step left to be computed of the tokens from `position` on."""
        self._waiting[step, seq_id] = PendingChunk({seq_id}, position, surprisal)

    def advance(self) -> PromptSurprisal:
        """Compute the next slice of the oldest chunk. One that fails is given up."""
        (step, seq_id), waiting = next(iter(self._waiting.items()))
        try:
            values = tuple(waiting.surprisal.advance().tolist())
        except BaseException:
            del self._waiting[step, seq_id]
            raise
        found = PromptSurprisal(step, seq_id, waiting.position, values)
        self._found.setdefault((step, seq_id), []).append(found)
        waiting.position += len(values)
        if not waiting.surprisal.is_waiting:
            del self._waiting[step, seq_id]
        return found

    def rest(self) -> Iterator[PromptSurprisal]:
        """Compute all that waits, slice by slice."""
        while self.is_waiting:
            yield self.advance()

    def filled(self, record: StepRecord) -> StepRecord:
        """The record of a step with what was found since."""
        for part in record.sequences:
            for found in self._found.get((record.step, part.seq_id), ()):
                record = record.with_surprisal(part.seq_id, found.first_position, found.values)
        return record

    # ---- what steps and sequences become -------------------------------------------------------------------------

    def fork(self, parent: int, child: int, step: int | None) -> None:
        """Another sequence has the tokens that one had after a step (None: has now)."""
        for (fed_at, _), waiting in self._waiting.items():
            if parent in waiting.seq_ids and (step is None or fed_at <= step):
                waiting.seq_ids.add(child)

    def remove(self, seq_id: int) -> None:
        """A sequence is gone: what no other has of its tokens is not computed."""
        for waiting in self._waiting.values():
            waiting.seq_ids.discard(seq_id)
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if waiting.seq_ids}

    def sharers(self) -> list[tuple[tuple[int, int], PendingChunk, set[int]]]:
        """Who has the tokens of what waits, to come back to."""
        return [(key, waiting, set(waiting.seq_ids)) for key, waiting in self._waiting.items()]

    def share_again(self, sharers: list[tuple[tuple[int, int], PendingChunk, set[int]]]) -> None:
        """As it was when it was told who they are."""
        self._waiting = {key: waiting for key, waiting, _ in sharers}
        for _, waiting, seq_ids in sharers:
            waiting.seq_ids = seq_ids

    def drop(self, key: tuple[int, int]) -> None:
        """The step of a sequence is undone."""
        self._waiting.pop(key, None)
        self._found.pop(key, None)

    def drop_steps(self, steps: set[int]) -> None:
        for key in [key for key in (*self._waiting, *self._found) if key[0] in steps]:
            self.drop(key)

    def clear(self) -> None:
        self._waiting.clear()
        self._found.clear()
