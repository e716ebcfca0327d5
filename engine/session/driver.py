"""Feeds known tokens into one cache, forward by forward, as the steps of a session do, without sampling, records or
history; and the forwards that a sequence once went through, again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from engine.cache.attention_probe import Probe
from engine.cache.sequence_cache import SequenceCache
from engine.device import to_device
from engine.errors import Check, InputError
from engine.history.history import History
from engine.history.state import SequenceState
from engine.history.tree import TreePath
from engine.model.batch import Batch
from engine.model.loader import LoadedModel
from engine.session.mode import CacheMode
from engine.session.states import LiveSequence
from engine.spec.cache import CacheSpec


class Driver:
    """Computes into one cache and remembers the `token_ids` that it holds. From the end of the prompt
    (`num_prompt_tokens`) on, rows are quantised and evicted as the cache's spec says."""

    def __init__(
        self, model: LoadedModel, cache: SequenceCache, num_prompt_tokens: int, token_ids: Sequence[int] = ()
    ) -> None:
        self.model, self.cache, self.num_prompt_tokens = model, cache, num_prompt_tokens
        self.token_ids = list(token_ids)
        self.weights: dict[int, torch.Tensor] = {}  # `[B, H, S]` of the newest query, where a rule reads attention

    @classmethod
    def in_mode(
        cls, model: LoadedModel, spec: CacheSpec, num_prompt_tokens: int, token_ids: Sequence[int] = ()
    ) -> Driver:
        """A driver with a cache of its own; `InputError` where the model cannot have one in that mode."""
        cache = CacheMode(model, spec).new_cache(0, num_prompt_tokens)
        return cls(model, cache, num_prompt_tokens, token_ids)

    def compute(self, token_ids: Sequence[int], check: Check | None = None, probe: Probe | None = None) -> torch.Tensor:
        """Compute these tokens in one forward, or in several where the cache takes fewer at once; returns the newest
        logits `[V]`. `check` is called between layers and raises to cancel; a `probe` records attention, else the one
        that the cache's rule needs does. After a failure the cache may hold part of the tokens."""
        at_once = self.cache.max_forward_tokens or len(token_ids)
        for start in range(0, len(token_ids), at_once):
            logits = self._forward(token_ids[start : start + at_once], check, probe)
        return logits

    def _forward(self, token_ids: Sequence[int], check: Check | None, probe: Probe | None) -> torch.Tensor:
        cache, stop = self.cache, len(self.token_ids) + len(token_ids)
        cache.begin(len(token_ids))
        probe = probe or cache.probe(False)
        computed = [*self.token_ids, *token_ids] if cache.spec.recomputes else list(token_ids)
        cache.plan_forward(len(token_ids))
        ids = to_device(torch.tensor([computed]), self.model.device)
        batch = Batch(ids, cache.model_cache, probe, hidden=cache.hidden_rows(), check=check)
        logits = self.model.forward(batch).logits[0, -1]
        cache.compress(stop, self.num_prompt_tokens, probe)
        cache.commit(stop)
        cache.release_undo()
        self.weights = probe.rows() if probe else {}
        self.token_ids += token_ids
        return logits

    def run(
        self, token_ids: Sequence[int], lengths: Iterable[int], check: Check | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Compute the tokens of a sequence that the cache lacks, in forwards that end at each of these ascending
        lengths; yields each length and the newest logits `[V]` after it."""
        for length in lengths:
            if length > len(self.token_ids):
                yield length, self.compute(token_ids[len(self.token_ids) : length], check)


def recompute(
    model: LoadedModel,
    cache: SequenceCache,
    sequence: SequenceState,
    forward_lengths: list[int],
    stop: int | None = None,
    check: Check | None = None,
    *,
    is_every: bool = False,
) -> Iterator[tuple[int, torch.Tensor]]:
    """Compute those of the first `stop` tokens of a sequence (None: of all that have rows) that a cache lacks, as the
    sequence was computed, whose forwards ended at each of `forward_lengths`. Yields the number of tokens and the newest
    logits `[V]` after each forward; with `is_every` of them all, also in a cache whose last forward computes all rows.
    `check` is called between layers and raises to cancel."""
    prompt, stop = sequence.num_prompt_tokens, sequence.num_tokens if stop is None else stop
    is_last_enough = cache.spec.recomputes and not is_every
    lengths = [stop] if is_last_enough else lengths_to_compute(cache.spec, prompt, forward_lengths, stop)
    if cache.num_source:  # the encoder reads its source in one forward
        lengths = [length for length in lengths if length >= prompt]
    driver = Driver(model, cache, prompt, sequence.token_ids[: cache.num_tokens])
    yield from driver.run(sequence.token_ids, lengths, check)


def lengths_to_compute(spec: CacheSpec, prompt: int, forward_lengths: list[int], stop: int) -> list[int]:
    """The ascending lengths after each forward, up to `stop` tokens, that repeat how a sequence was computed: its
    forwards ended at each of `forward_lengths`.

    A compressed cache quantises and evicts from the end of the prompt on, between steps: there one forward ends at the
    prompt, and single tokens follow. transformers' quantised cache takes the prompt in one forward.
    """
    lengths = [n for n in forward_lengths if n < stop]
    is_whole = spec.layout == "quantized"
    if is_whole or (spec.is_compressed and prompt < stop):
        lengths = [*([] if is_whole else [n for n in lengths if n < prompt]), *range(prompt, stop)]
    return [*lengths, stop] if stop else []


# ---- the forwards of then ------------------------------------------------------------------------------------------


def refresh(model: LoadedModel, history: History, live: LiveSequence) -> None:
    """Fill the cache of a sequence again if a failed step emptied it. Raises `InputError` where its rows were edited by
    hand, since the forwards would not give these edits."""
    if live.is_stale:
        if live.cache.by_hand:
            raise InputError(
                f"The rows of sequence {live.seq_id}, some of them edited by hand, were lost with a step that "
                "failed, and they cannot be computed again here: go to an earlier step."
            )
        refill(model, history, live.sequence, live.cache, live.seq_id)
        live.is_stale = False


def refill(
    model: LoadedModel,
    history: History,
    sequence: SequenceState,
    cache: SequenceCache,
    seq_id: int,
    step: int | None = None,
    path: TreePath | None = None,
) -> None:
    """Fill `cache` with the tokens of `sequence`, by the same forwards that the sequence `seq_id` went through up to
    `step` (None: now) of `path` (None: the live path). Where its cache mode was changed in between, the rows go through
    the same modes."""
    lengths, moves = (path or history.path).forward_lengths(seq_id, step), sequence.stages
    moves = moves if moves and moves[-1].cache == cache.spec else ()
    before: SequenceCache | None = None
    cache.clear()
    for number, stop in enumerate([*(move.num_tokens for move in moves[1:]), sequence.num_tokens]):
        stage = cache
        if number + 1 < len(moves):
            stage = CacheMode(model, moves[number].cache).new_cache(-1, sequence.num_prompt_tokens)
        if before is not None:  # where its rows cannot be converted, all are computed
            convert(before, stage, sequence, moves[number].num_tokens)
        for _ in recompute(model, stage, sequence, lengths, stop):
            pass
        before = stage


def convert(before: SequenceCache, cache: SequenceCache, sequence: SequenceState, num_tokens: int) -> int | None:
    """Convert the rows of a cache in another mode into `cache`, as a change of the mode does; the number of rows that
    were evicted, or None where the rows must be computed anew instead."""
    if not cache.convert_from(before):
        return None
    evicted = cache.compress(num_tokens, sequence.num_prompt_tokens, None) if num_tokens else ()
    cache.commit(num_tokens)
    return sum(each.num_rows for each in evicted)
