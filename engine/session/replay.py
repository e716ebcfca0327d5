"""Filling a cache once more by the forwards that filled it first, so that it comes out bit for bit the same."""

from __future__ import annotations

from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.history import History
from engine.history.journal import Journal
from engine.model.loader import LoadedModel
from engine.session.driver import Driver, lengths_to_feed
from engine.session.live import LiveSequence
from engine.session.mode import CacheMode
from engine.session.sequence import Sequence


class Replay:
    """Repeats the forwards that the journal noted."""

    def __init__(self, model: LoadedModel, history: History) -> None:
        self._model, self._history = model, history

    def refresh(self, live: LiveSequence) -> None:
        """Fill the cache of a sequence again, where it had to be emptied."""
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
        sequence: Sequence,
        cache: SequenceCache,
        seq_id: int,
        step: int | None = None,
        path: Journal | None = None,
    ) -> None:
        """Fill a cache with the tokens of `sequence` as the sequence `seq_id` filled its own up to `step` (None: now)
        of a path (None: the live one): by the same forwards, and through every mode that it was converted from in
        between."""
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


def continued(before: SequenceCache | None, cache: SequenceCache, sequence: Sequence, num_tokens: int) -> int:
    """The tokens that a cache has from the stage before it; 0 where there is none or its rows cannot be converted."""
    return 0 if before is None or convert(before, cache, sequence, num_tokens) is None else num_tokens


def convert(before: SequenceCache, cache: SequenceCache, sequence: Sequence, num_tokens: int) -> int | None:
    """Take the rows of another mode over, as a change of the mode does; how many of them were dropped. None where the
    rows have to be computed anew."""
    if not cache.convert_from(before):
        return None
    evicted = cache.compress(num_tokens, sequence.num_prompt_tokens, None) if num_tokens else ()
    cache.commit(num_tokens)
    return sum(each.num_rows for each in evicted)


def repeat(
    model: LoadedModel, sequence: Sequence, cache: SequenceCache, fed_lengths: list[int], start: int, stop: int
) -> None:
    """Repeat the forwards of a sequence from `start` to `stop` tokens."""
    prompt = sequence.num_prompt_tokens
    driver = Driver(model, cache, prompt, sequence.token_ids[:start])
    for _ in driver.run(sequence.token_ids, lengths_to_feed(cache.spec, prompt, fed_lengths, stop)):
        pass
