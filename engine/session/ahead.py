"""The forward of the next decode step, launched before the host has read which tokens it feeds.

On a GPU the host would otherwise wait for the chosen tokens, and only then launch the next step: what it does
meanwhile, texts of tokens, records, the history, is done while the device computes. Whether a token ended its text is
known one forward late. Nothing shows that: the rows that were written stand behind those that are counted until the
step that feeds the tokens is really done, and where one sequence ends none of them is fed: the others go on without it,
in a forward of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.cache.attention_probe import Probe
from engine.cache.sequence_cache import SequenceCache
from engine.history.history import History
from engine.look.strip import MeasuredSequence
from engine.session.clock import StepClock
from engine.session.live import LiveSequence, LiveSequences
from engine.session.scheduler import SequenceWork


@dataclass(eq=False)
class LaunchedAhead:
    """A forward of one token of each sequence of the `work` of `step`: logits `[V]` and what was shown, by sequence, or
    once where they were fed `together`; `runner` that computed it, and the clock of the step that it belongs to."""

    work: list[SequenceWork]
    caches: list[SequenceCache]
    lengths: list[int]  # tokens of the sequences before
    step: int
    level: str  # of measuring
    logits: list[torch.Tensor]
    probes: list[Probe | None]
    strips: list[MeasuredSequence | None]  # by sequence, in either case
    together: bool
    runner: str
    clock: StepClock

    def belongs_to(self, sequences: LiveSequences, history: History, level: str) -> bool:
        """Whether the coming step is the one that was launched: nothing was done since, to the sequences or beside."""
        is_next = history.last_step == self.step and not history.changes and level == self.level
        working = [live for live in sequences if live.sequence.has_work]
        return (
            is_next
            and working == [each.live for each in self.work]
            and all(map(self._is_as_it_was, range(len(working))))
        )

    def _is_as_it_was(self, number: int) -> bool:
        live, cache, length = self.work[number].live, self.caches[number], self.lengths[number]
        is_same = live.cache is cache and cache.num_tokens == length and cache.can_write_ahead(length, len(self.work))
        return is_same and not live.sequence.sampled_is_forced

    def count(self) -> None:
        """The rows of the tokens are some of those that are held."""
        for cache in self.caches:
            cache.count_row()

    def take_back(self) -> None:
        """The tokens are not fed after all, and nothing was done since: their rows are as if they had never been
        written."""
        for work, cache, length in zip(self.work, self.caches, self.lengths, strict=True):
            if work.live.cache is cache:
                cache.clear_row_ahead(length)


def may_launch(sequences: LiveSequences, work: Sequence[SequenceWork]) -> bool:
    """Whether the forward behind a step can be launched before its tokens are known. Not where somebody must know them
    first: a token that was forced stands in its place; a sequence is full, or as long as it may get; another sequence
    is next; and where a row cannot stand behind those that are counted: in windows, in codes, where rows were edited by
    hand, and with some of the pages that begin (`PagedCache.can_write_ahead` says which)."""
    if [live for live in sequences if live.sequence.has_work] != [each.live for each in work]:
        return False
    return all(goes_on(sequences, each.live, each.num_tokens, len(work)) for each in work)


def goes_on(sequences: LiveSequences, live: LiveSequence, num_tokens: int, num_sequences: int) -> bool:
    """Whether a sequence that has so many tokens, one of several that are, is fed another one, unless its text has
    ended, in room for it."""
    sequence, cache = live.sequence, live.cache
    most = sequence.sampling.max_new_tokens
    is_last = most is not None and num_tokens - sequence.num_prompt_tokens + 1 >= most
    if is_last or sequence.forced or sequences.mode.full_at(num_tokens, cache) is not None:
        return False
    return cache.can_write_ahead(num_tokens, num_sequences)
