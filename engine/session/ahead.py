"""The forward of the next decode step, launched before the host has read which token it feeds.

On a GPU the host would otherwise wait for the chosen token, and only then launch the next step: what it does meanwhile,
texts of tokens, records, the history, is done while the device computes. Whether the token ended the text is known one
forward late. Nothing shows that: the row that was written stands behind those that are counted until the step that
feeds the token is really done, and is written over by whatever else comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.cache.attention_probe import Probe
from engine.cache.layers.growing import GrowingLayer
from engine.cache.sequence_cache import SequenceCache
from engine.history.history import History
from engine.session.clock import StepClock
from engine.session.live import LiveSequence, LiveSequences


@dataclass(eq=False)
class LaunchedAhead:
    """A forward of one token of a sequence behind `step`: its logits `[V]`, what it showed, `runner` that computed it,
    and the clock of the step that it belongs to."""

    live: LiveSequence
    cache: SequenceCache
    step: int
    level: str  # of measuring
    logits: torch.Tensor
    probe: Probe | None
    runner: str
    clock: StepClock

    def belongs_to(self, sequences: LiveSequences, history: History, level: str) -> bool:
        """Whether the coming step is the one that was launched: nothing was done since, to the sequence or beside."""
        is_next = history.last_step == self.step and not history.changes
        alone = len(sequences) == 1 and next(iter(sequences)) is self.live and self.live.cache is self.cache
        sequence = self.live.sequence
        return is_next and alone and level == self.level and sequence.has_work and not sequence.sampled_is_forced

    def count(self) -> None:
        """The row of the token is one of those that are held."""
        for layer in growing(self.cache):
            layer.count_row()

    @torch.inference_mode()
    def take_back(self) -> None:
        """The token is not fed after all, and nothing was done since: its row is as if it had never been written."""
        self.count()
        for layer in growing(self.cache):
            layer.crop(layer.length - 1)


def may_launch(sequences: LiveSequences, live: LiveSequence, num_tokens: int) -> bool:
    """Whether the forward behind `num_tokens` can be launched before the token is known. Not where somebody must know
    it first: a token that was forced stands in its place; the sequence is full, or as long as it may get; several
    sequences choose who is next; and where a row cannot stand behind those that are counted: in pages, windows, codes,
    and where rows were edited by hand."""
    sequence, cache, mode = live.sequence, live.cache, sequences.mode
    most = sequence.sampling.max_new_tokens
    is_last = most is not None and num_tokens - sequence.num_prompt_tokens + 1 >= most
    is_alone = len(sequences) == 1 and not sequence.forced and not cache.by_hand and cache.spec.is_append_only
    in_rooms = mode.store is None and len(growing(cache)) == len(cache.layers)
    return is_alone and in_rooms and not is_last and mode.full_at(num_tokens, cache) is None


def hide_row(cache: SequenceCache) -> None:
    """The newest row is written and not counted."""
    for layer in growing(cache):
        layer.length -= 1


def growing(cache: SequenceCache) -> list[GrowingLayer]:
    """The layers of a cache of which all are such: `may_launch` asks."""
    return [layer for layer in cache.layers if isinstance(layer, GrowingLayer)]
