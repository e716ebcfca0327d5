"""Surprisals of prompt tokens that are computed after their steps: the chunks that wait, and the values found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.wire.events import PromptSurprisal
from engine.wire.records import StepRecord

if TYPE_CHECKING:
    from engine.model.batch import Surprisal

MAX_BYTES = 256 << 20  # of what waits; beyond it the surprisal of a chunk is computed within its step


@dataclass(eq=False)
class PendingChunk:
    """A prompt chunk whose surprisal is not fully computed yet; `position` is the next token to compute. `seq_ids` are
    the sequences with these tokens: the one that was computed, and its forks."""

    seq_ids: set[int]
    position: int
    surprisal: Surprisal


class LateSurprisal:
    """Computes surprisals slice by slice, in the order of their chunks, and keeps them by step and sequence. `advance`
    takes about 50 ms on a CPU."""

    def __init__(self) -> None:
        self.is_wanted = True  # False: surprisals of prompts are not computed at all
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
        return sum([waiting.surprisal.num_bytes for waiting in self._waiting.values()])

    def put(self, step: int, seq_id: int, position: int, surprisal: Surprisal) -> None:
        """Add a chunk whose surprisal the step left to be computed, from `position` on."""
        self._waiting[step, seq_id] = PendingChunk({seq_id}, position, surprisal)

    def advance(self) -> PromptSurprisal:
        """Compute and return the next slice of the oldest chunk. A chunk that fails is dropped, and the error
        raised."""
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

    def finish(self) -> Iterator[PromptSurprisal]:
        """Compute everything that waits, slice by slice."""
        while self.is_waiting:
            yield self.advance()

    def filled(self, record: StepRecord) -> StepRecord:
        """The record of a step, with the surprisals found since."""
        for part in record.sequences:
            for found in self._found.get((record.step, part.seq_id), ()):
                record = record.with_surprisal(part.seq_id, found.first_position, found.values)
        return record

    # ---- forks, removals and undone steps ------------------------------------------------------------------------

    def fork(self, parent: int, child: int, step: int | None) -> None:
        """Note that `child` has the tokens that `parent` had after a step (None: has now)."""
        for (at, _), waiting in self._waiting.items():
            if parent in waiting.seq_ids and (step is None or at <= step):
                waiting.seq_ids.add(child)

    def remove(self, seq_id: int) -> None:
        """Drop a removed sequence; chunks whose tokens no other sequence has are not computed."""
        for waiting in self._waiting.values():
            waiting.seq_ids.discard(seq_id)
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if waiting.seq_ids}

    def owners(self) -> list[tuple[tuple[int, int], PendingChunk, set[int]]]:
        """The waiting chunks and the sequences that have their tokens, for `restore_owners`."""
        return [(key, waiting, set(waiting.seq_ids)) for key, waiting in self._waiting.items()]

    def restore_owners(self, owners: list[tuple[tuple[int, int], PendingChunk, set[int]]]) -> None:
        """Return to an earlier `owners()`."""
        self._waiting = {key: waiting for key, waiting, _ in owners}
        for _, waiting, seq_ids in owners:
            waiting.seq_ids = seq_ids

    def drop(self, key: tuple[int, int]) -> None:
        """Drop a chunk, (step, seq_id), because its step is undone."""
        self._waiting.pop(key, None)
        self._found.pop(key, None)

    def drop_steps(self, steps: set[int]) -> None:
        for key in [key for key in (*self._waiting, *self._found) if key[0] in steps]:
            self.drop(key)

    def clear(self) -> None:
        self._waiting.clear()
        self._found.clear()
