"""Going back: the state after an earlier step becomes the live one, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.cache.paged.pool_errors import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.history import History
from engine.history.marks import Checkpoint
from engine.model.loader import LoadedModel
from engine.session.live import LiveSequence, LiveSequences
from engine.session.mode import CacheMode
from engine.session.replay import Replay
from engine.session.sequence import Sequence
from engine.spec.presets import cache_label


def holds(live: LiveSequence, history: History, step: int | None, num_tokens: int) -> bool:
    """Whether the live rows of the first tokens are those of a step (None: of now), bit for bit: rows that were
    computed anew since, in another mode or in other pieces, may differ in their last bit."""
    if live.is_stale or (step is not None and not history.journal.holds(live.seq_id, step, num_tokens)):
        return False
    return live.cache.knows(num_tokens)


@dataclass(eq=False)
class Returned:
    """How the caches went back: rows restored where they were, and tokens fed again, of which sequences."""

    num_restored: int = 0
    num_replayed: int = 0
    replayed_ids: frozenset[int] = frozenset()


class Rewind:
    """One way back to a step. Refuses, and changes nothing, where that state cannot be had any more."""

    def __init__(self, model: LoadedModel, live: LiveSequences, history: History, replay: Replay, step: int) -> None:
        self._model, self._live, self._history, self._replay = model, live, history, replay
        self._checkpoint = history.journal.checkpoint_to(step, live.ids)
        self._began_with_hit = {each.seq_id for each in live if each.cache.page_counts().hit_tokens}

    def run(self) -> str:
        """Go back; says how."""
        checkpoint, live, before = self._checkpoint, self._live, self._live.mode.spec
        step, is_other_mode = checkpoint.step, checkpoint.cache != before
        moved = self._other_mode() if is_other_mode else None
        counts = {seq_id: mark.num_tokens for seq_id, mark in checkpoint.marks.items()}
        journal = self._history.journal
        are_held = {i: is_other_mode or journal.holds(i, step, counts.get(i, 0)) for i in live.ids}
        logits = {i: self._history.logits_at(i, step) for i in live.ids}
        self._history.back_to(step)
        if moved is not None:
            live.switch(*moved)
        returned = self._return(are_held, logits)
        if live.mode.store is not None:
            live.mode.store.forget_after(step)
        try:
            for each in live:
                self._replay.refresh(each)
        except (MemoryError, RuntimeError) as error:
            return f"went back; K and V come back with the next step, there was no room for them now ({error})"
        if is_other_mode:
            is_exact = live.mode.spec.is_exact and before.is_exact
            words = "" if is_exact else self._replay_words(frozenset(live.ids))
            return f"back in the cache mode of that step, {cache_label(live.mode.spec)}{words}"
        if returned.num_replayed:
            words = self._replay_words(returned.replayed_ids)
            return f"replayed {returned.num_replayed} tokens: this cache forgets{words}"
        if returned.num_restored:
            return f"put {returned.num_restored:,} dropped rows back where they were"
        return "cropped to the rows it had"

    def _return(self, are_held: dict[int, bool], logits: dict[int, torch.Tensor | None]) -> Returned:
        """Every sequence stands where it stood; a cache that has forgotten is emptied."""
        returned = Returned()
        for live in self._live:
            seq_id, mark = live.seq_id, self._checkpoint.marks.get(live.seq_id)
            live.sequence.go_back(mark) if mark else live.sequence.restart()
            if not live.sequence.num_tokens:
                self._history.journal.begun(seq_id, self._live.mode.spec)
            live.set_logits(logits[seq_id])
            if not are_held[seq_id]:
                live.cache.clear()
                live.is_stale = True
            if self._live.crop(live):
                returned.num_restored += live.cache.num_restored
            else:
                returned.num_replayed += live.sequence.num_tokens
                returned.replayed_ids |= {seq_id}
        return returned

    def _replay_words(self, seq_ids: frozenset[int]) -> str:
        """What a replay cannot give back: a step that fed several sequences at once is replayed one by one, and a
        prompt that began with another one's pages is fed in other pieces."""
        store, words = self._live.mode.store, ""
        if store is not None and store.can_batch and self._history.journal.was_batched(seq_ids):
            words = "; steps of several sequences were replayed one by one, which is exact but for rounding"
        if not self._began_with_hit.isdisjoint(seq_ids):
            words += "; rows of a shared prefix were computed in other pieces, which is exact but for rounding"
        return words

    # ---- back in another mode ------------------------------------------------------------------------------------

    def _other_mode(self) -> tuple[CacheMode, dict[int, SequenceCache]]:
        """Caches of the mode of the step, with what every sequence had in them then; the live ones stay."""
        mode, caches = CacheMode(self._model, self._checkpoint.cache), dict[int, SequenceCache]()
        for live in self._live:
            cache = caches[live.seq_id] = mode.new_cache(live.seq_id)
            try:
                self._fill(mode, live, cache)
            except PoolExhausted as error:
                raise InputError(
                    f"The pool cannot hold what it held at that step ({error}): remove a sequence."
                ) from None
        return mode, caches

    def _fill(self, mode: CacheMode, live: LiveSequence, cache: SequenceCache) -> None:
        then, mark = live.sequence.fork(live.seq_id), self._checkpoint.marks.get(live.seq_id)
        then.go_back(mark) if mark else then.restart()
        mode.check_holds(then, cache, "remove it first")
        if not took_back(live, then, cache, self._history, self._checkpoint):
            self._replay.refill(then, cache, live.seq_id, self._checkpoint.step)
        cache.register_prefix(then.token_ids)


def took_back(
    live: LiveSequence, then: Sequence, cache: SequenceCache, history: History, checkpoint: Checkpoint
) -> bool:
    """Whether the live rows, exact both then and now, could be copied and cropped."""
    if not then.num_tokens:
        return True
    is_known = holds(live, history, checkpoint.step, then.num_tokens)
    has_room = cache.capacity is None or live.cache.num_tokens <= cache.capacity
    if not (is_known and has_room and live.cache.spec.is_exact and cache.spec.is_append_only):
        return False
    try:
        return cache.convert_from(live.cache) and cache.crop(then.num_tokens)
    except PoolExhausted:  # all live rows at once are more than those of then
        return False
