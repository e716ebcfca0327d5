"""Fills a cache again by repeating the forwards that filled it first, so that its rows are the same bit for bit."""

from __future__ import annotations

from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.history import History
from engine.history.journal import Journal
from engine.history.state import SequenceState
from engine.model.loader import LoadedModel
from engine.session.driver import Driver, lengths_to_feed
from engine.session.live import LiveSequence
from engine.session.mode import CacheMode


class Refill:
    """Repeats the forwards of a sequence as the journal recorded them."""

    def __init__(self, model: LoadedModel, history: History) -> None:
        self._model, self._history = model, history

    def refresh(self, live: LiveSequence) -> None:
        """Fill the cache of a sequence again if a failed step emptied it. Raises `InputError` where its rows were
        edited by hand, since the forwards would not give these edits."""
        if live.is_stale:
            if live.cache.by_hand:
                raise InputError(
                    f"The rows of sequence {live.seq_id}, some of them edited by hand, were lost with a step that "
                    "failed, and they cannot be computed again here: go to an earlier moment."
                )
            self.refill(live.sequence, live.cache, live.seq_id)
            live.is_stale = False

    def refill(
        self,
        sequence: SequenceState,
        cache: SequenceCache,
        seq_id: int,
        step: int | None = None,
        path: Journal | None = None,
    ) -> None:
        """Fill `cache` with the tokens of `sequence`, by the same forwards that the sequence `seq_id` went through up
        to `step` (None: now) of `path` (None: the live path). Where its cache mode was changed in between, the rows go
        through the same modes."""
        journal = path or self._history.journal
        lengths, moves = journal.fed_lengths(seq_id, step), journal.moves(seq_id, step)
        stages = moves[:-1] if moves and moves[-1].cache == cache.spec else []
        before: SequenceCache | None = None
        for number, move in enumerate(stages):
            stage = CacheMode(self._model, move.cache).new_cache(-1, sequence.num_prompt_tokens)
            start = continued(before, stage, sequence, move.num_tokens)
            repeat(self._model, sequence, stage, lengths, start, moves[number + 1].num_tokens)
            before = stage
        cache.clear()
        start = continued(before, cache, sequence, moves[-1].num_tokens if moves else 0)
        repeat(self._model, sequence, cache, lengths, start, sequence.num_tokens)


def continued(before: SequenceCache | None, cache: SequenceCache, sequence: SequenceState, num_tokens: int) -> int:
    """Convert the rows of the previous stage into `cache`; the number of tokens it then holds: 0 where there is no
    previous stage or its rows cannot be converted."""
    return 0 if before is None or convert(before, cache, sequence, num_tokens) is None else num_tokens


def convert(before: SequenceCache, cache: SequenceCache, sequence: SequenceState, num_tokens: int) -> int | None:
    """Convert the rows of a cache in another mode into `cache`, as a change of the mode does; the number of rows that
    were dropped, or None where the rows must be computed anew instead."""
    if not cache.convert_from(before):
        return None
    evicted = cache.compress(num_tokens, sequence.num_prompt_tokens, None) if num_tokens else ()
    cache.commit(num_tokens)
    return sum(each.num_rows for each in evicted)


def repeat(
    model: LoadedModel, sequence: SequenceState, cache: SequenceCache, fed_lengths: list[int], start: int, stop: int
) -> None:
    """Repeat the forwards of a sequence from `start` to `stop` tokens."""
    prompt = sequence.num_prompt_tokens
    driver = Driver(model, cache, prompt, sequence.token_ids[:start])
    for _ in driver.run(sequence.token_ids, lengths_to_feed(cache.spec, prompt, fed_lengths, stop)):
        pass
