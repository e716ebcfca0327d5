"""The forward of the next decode step, launched before the host has read which tokens it feeds.

Otherwise the host of a GPU would wait for the chosen tokens before it launches the next step. Now token texts, records
and history are made while the device computes. The price: whether a token ended its text is known one forward late. No
caller can see that: the new rows lie in the cache behind the rows that it counts, until the step that feeds the tokens
is done. If any sequence of the batch has ended, the whole forward is discarded and the others run one without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.cache.sequence_cache import SequenceCache
from engine.history.history import History
from engine.session.clock import StepClock
from engine.session.forward import Fed, Forward, Forwards, keep_weights
from engine.session.live import LiveSequence, LiveSequences
from engine.session.scheduler import SequenceWork, StepBatch


@dataclass(eq=False)
class LaunchedAhead:
    """The launched forwards of one more token for each sequence in `work`, the work of `step`, the step before. `clock`
    is that of the step that they belong to."""

    work: list[SequenceWork]
    caches: list[SequenceCache]
    lengths: list[int]  # tokens of each sequence before these forwards
    step: int
    level: str  # capture level
    fed: list[Fed]
    clock: StepClock

    @classmethod
    def of(
        cls, forwards: Forwards, work: list[SequenceWork], chosen: torch.Tensor, step: int, level: str, clock: StepClock
    ) -> LaunchedAhead:
        """Launch the forwards that follow on the `work` of `step`: feed the `chosen` tokens `[B]` on the device, which
        the host has not read. Their rows are written to the caches but not counted yet. A failure leaves the caches as
        they were."""
        caches, lengths = [each.live.cache for each in work], [each.num_tokens for each in work]
        made = cls(work, caches, lengths, step, level, [], clock)
        pairs = list(zip(caches, lengths, strict=True))
        try:
            for cache in caches:
                cache.begin(1)
            for part in forwards.together(work):
                if made.fed:
                    keep_weights(made.fed[-1])
                mine = slice(first := work.index(part[0]), first + len(part))
                made.fed.append(forwards.feed(part, chosen[mine, None], lengths[mine], clock))
            for cache, length in reversed(pairs):  # pages allocated last are freed first
                cache.uncount_row(length)
        except BaseException:
            for cache, length in reversed(pairs):
                cache.clear_row_ahead(length)
            raise
        clock.lap("forward")
        return made

    def belongs_to(self, sequences: LiveSequences, history: History, level: str) -> bool:
        """Whether the next step is the one that this was launched for: no command has changed the session, the
        sequences with work or the capture level since."""
        is_next = history.last_step == self.step and not history.changes and level == self.level
        working = [live for live in sequences if live.sequence.has_work]
        return (
            is_next
            and working == [each.live for each in self.work]
            and all(map(self._is_unchanged, range(len(working))))
        )

    def _is_unchanged(self, number: int) -> bool:
        live, cache, length = self.work[number].live, self.caches[number], self.lengths[number]
        is_same = live.cache is cache and cache.num_tokens == length and cache.can_write_ahead(length, len(self.work))
        return is_same and not live.sequence.sampled_is_forced

    def take(self, forwards: Forwards, step: StepBatch) -> list[Forward]:
        """The forwards of the step that feeds the tokens, which runs now: their rows are counted from now on."""
        for cache in self.caches:
            cache.count_row()
        parts = zip(forwards.together(step.work), self.fed, strict=True)
        return [each for work, fed in parts for each in forwards.collected(work, fed, self.clock)]

    def discard(self) -> None:
        """Clear the rows that the forward wrote, because its tokens are not fed. The sequences must not have been
        changed since the launch; a cache that was replaced since is left alone."""
        for work, cache, length in zip(self.work, self.caches, self.lengths, strict=True):
            if work.live.cache is cache:
                cache.clear_row_ahead(length)


def may_launch(sequences: LiveSequences, work: Sequence[SequenceWork]) -> bool:
    """Whether the next forward can be launched before the tokens of this step are known. Not if a forced token comes
    next, a sequence is full or has reached its length limit, or the next step feeds other sequences; nor if a cache
    cannot hold a row that it does not count yet: with a window, a codec, rows edited by hand, and at some page
    boundaries (see `PagedCache.can_write_ahead`)."""
    if [live for live in sequences if live.sequence.has_work] != [each.live for each in work]:
        return False
    return all(can_feed_another(sequences, each.live, each.num_tokens, len(work)) for each in work)


def can_feed_another(sequences: LiveSequences, live: LiveSequence, num_tokens: int, num_sequences: int) -> bool:
    """Whether a sequence of `num_tokens` tokens, one of `num_sequences` in the batch, will feed the sampled token next
    (unless that ends its text) and its cache has room for the row."""
    sequence, cache = live.sequence, live.cache
    most = sequence.sampling.max_new_tokens
    is_last = most is not None and num_tokens - sequence.num_prompt_tokens + 1 >= most
    if is_last or sequence.forced or sequences.mode.full_at(num_tokens, cache) is not None:
        return False
    return cache.can_write_ahead(num_tokens, num_sequences)
