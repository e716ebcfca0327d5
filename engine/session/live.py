"""The live sequences of a session: each with its cache and the logits of its newest forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.history import History
from engine.history.state import Move, SequenceState
from engine.look.pictures import SeenSequences
from engine.session.mode import CacheMode
from engine.wire.pages import ContinuedFrom
from engine.wire.status import SequenceInfo


@dataclass(eq=False)
class LiveSequence:
    """A sequence and its cache; the logits `[V]` of its newest forward, and their log-probabilities if computed
    already. `is_stale`: a failed step emptied the cache, which has to be filled again before the next step.
    `continued` says which sequence's rows the prompt reused, `note` an unexpected detail of the prompt's rendering."""

    seq_id: int
    sequence: SequenceState
    cache: SequenceCache
    logits: torch.Tensor | None = None
    logprobs: torch.Tensor | None = None
    is_stale: bool = False
    continued: ContinuedFrom | None = None
    note: str = ""

    def set_logits(self, logits: torch.Tensor | None, logprobs: torch.Tensor | None = None) -> None:
        self.logits, self.logprobs = logits, logprobs

    def copied(self, cache: SequenceCache) -> LiveSequence:
        """An independent copy of the sequence, with `cache` as its cache."""
        return replace(self, cache=cache, is_stale=False)

    def info(self) -> SequenceInfo:
        sequence, pages = self.sequence, self.cache.page_counts()
        return SequenceInfo(
            seq_id=self.seq_id,
            state=sequence.phase,
            num_tokens=sequence.num_tokens,
            num_prompt_tokens=sequence.num_prompt_tokens,
            sampled=sequence.sampled,
            stop=sequence.stop,
            num_pages=pages.held,
            num_shared_pages=pages.shared,
            hit_tokens=pages.hit_tokens,
            num_preemptions=sequence.num_preemptions,
            why_not_reused=self.continued or pages.why_not_reused,
            sampling=sequence.sampling,
        )


@contextmanager
def on_failure(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` if the block fails."""
    try:
        yield
    except BaseException:
        undo()
        raise


def close_all(sequences: Mapping[int, LiveSequence]) -> None:
    """Free the caches of these sequences."""
    for live in sequences.values():
        live.cache.close()


class LiveSequences:
    """All sequences of a session by `seq_id`, and the cache mode that they are in."""

    def __init__(self, mode: CacheMode) -> None:
        self.mode = mode
        self.seen = SeenSequences()
        self.next_id = 0
        self._by_id: dict[int, LiveSequence] = {}

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._by_id)

    @property
    def caches(self) -> list[SequenceCache]:
        return [live.cache for live in self]

    def get(self, seq_id: int) -> LiveSequence:
        """The sequence of that id, or an `InputError`."""
        if seq_id not in self._by_id:
            raise InputError(f"There is no sequence {seq_id}: it was removed or never started.")
        return self._by_id[seq_id]

    def state_of(self, seq_id: int) -> SequenceState | None:
        """The state of the sequence of that id, None where there is none."""
        live = self._by_id.get(seq_id)
        return None if live is None else live.sequence

    def add(self, live: LiveSequence) -> None:
        self._by_id[live.seq_id] = live
        self.next_id = max(self.next_id, live.seq_id + 1)

    def detach(self, seq_id: int) -> None:
        """Remove a sequence from the live ones without closing its cache, which the caller owns from then on."""
        self.seen.forget(seq_id)
        self._by_id = {each: live for each, live in self._by_id.items() if each != seq_id}

    def replace(self, mode: CacheMode, sequences: dict[int, LiveSequence]) -> None:
        """Make other sequences the live ones. Assignments only: this cannot fail."""
        self.mode, self._by_id = mode, sequences
        for seq_id in sequences:
            self.next_id = max(self.next_id, seq_id + 1)
        self.seen.forget_all()

    def undo_replace(self, mode: CacheMode, sequences: dict[int, LiveSequence], next_id: int) -> None:
        """Make the earlier sequences live again after a failure. Assignments only: this cannot fail."""
        self.mode, self._by_id, self.next_id = mode, sequences, next_id

    def bound_lost_rows(self, limit: int) -> None:
        """Limit the bytes of the caches' logs of lost rows: the oldest are dropped, and going back beyond them computes
        the rows again."""
        caches = self.caches
        if sum(cache.lost_bytes for cache in caches) > limit:
            for cache in caches:
                cache.lost.shrink(limit // len(caches))

    # ---- a step that fails ---------------------------------------------------------------------------------------

    def copies(self, some: Iterable[LiveSequence] | None = None) -> dict[int, LiveSequence]:
        """Copies of these sequences (None: all) with the same caches, for `restore`."""
        return {live.seq_id: replace(live) for live in (self if some is None else some)}

    def restore(self, before: Mapping[int, LiveSequence], history: History) -> None:
        """Restore the sequences that were copied `before` a failed step: new rows are dropped. Where a cache cannot
        drop them it is emptied, and its rows are computed again before the next step."""
        for seq_id, then in before.items():
            live = self._by_id[seq_id]
            live.is_stale = live.is_stale or live.sequence.num_preemptions != then.sequence.num_preemptions
            live.sequence = then.sequence
            live.set_logits(then.logits, then.logprobs)
            history.drop_logs(live.seq_id)
            self.crop(live)

    def crop(self, live: LiveSequence) -> bool:
        """Drop the rows behind the sequence's `num_tokens`; False where the cache cannot and was emptied instead, so
        that it is stale."""
        self.seen.forget(live.seq_id)
        if not live.is_stale and live.cache.crop(live.sequence.num_tokens):
            return True
        by_hand = live.cache.by_hand
        live.cache.clear()
        live.cache.by_hand = by_hand  # rows that are computed again need these edits again
        live.is_stale = True
        return False

    def preempt(self, live: LiveSequence, newest: int) -> None:
        """Free the rows of a sequence after the `newest` step; its tokens are prefilled again later."""
        live.cache.clear()
        live.is_stale = False
        self.seen.forget(live.seq_id)
        begun = Move(newest, 0, self.mode.spec, had=live.sequence.num_tokens)
        live.sequence = live.sequence.preempted().moved(begun)
