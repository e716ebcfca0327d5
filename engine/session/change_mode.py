"""Move all live sequences into another cache mode, or fail and change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from engine.cache.paged.pool import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.counted import counted
from engine.errors import InputError
from engine.history.history import History
from engine.history.state import Move, SequenceState
from engine.model.loader import LoadedModel
from engine.session.atomic import atomic
from engine.session.driver import convert, lengths_to_compute, repeat
from engine.session.edits.again import compute_with_edits, edits_of
from engine.session.live import LiveSequence, LiveSequences
from engine.session.mode import CacheMode
from engine.spec.cache import CacheSpec
from engine.wire.records import ModeChanged

if TYPE_CHECKING:
    from engine.session.session import Session


@dataclass(frozen=True, eq=False)
class ConvertedCache:
    """The cache of one sequence in the new mode, whether its `num_tokens` rows were converted or computed anew, and how
    many were evicted at once. `is_edited_again`: edits by hand were made again on rows computed anew."""

    cache: SequenceCache
    num_tokens: int
    is_converted: bool
    num_evicted: int = 0
    is_edited_again: bool = False


@atomic
def set_mode(session: Session, spec: CacheSpec) -> str:
    """Change the cache mode of a session; returns in words how. The state before is kept. All of it succeeds or nothing
    changes."""
    live = session.live
    old, old_store = live.caches, live.mode.store
    before = session.restorer.state_of_newest_step()
    if before is not None:
        session.kept.keep(before)
    how = change_mode(session.model, live, session.history, spec)
    session.history.changes.append(ModeChanged(spec))
    if before is None and old_store is not None:  # no state keeps these caches, but kept states may share their store
        for cache in old:
            cache.close()
    return how


def change_mode(model: LoadedModel, live: LiveSequences, history: History, spec: CacheSpec) -> str:
    """Convert every live sequence, then switch all of them; returns in words how."""
    mode = CacheMode(model, spec)
    made: dict[int, ConvertedCache] = {}
    for each in live:
        try:
            made[each.seq_id] = convert_one(model, mode, each, history)
        except PoolExhausted as error:
            raise InputError(f"The pool cannot hold the live sequences ({error}): give it more pages.") from None
    if not made:
        mode.check()
    moved = {each.seq_id: each.copied(made[each.seq_id].cache) for each in live}
    for each in moved.values():
        one, newest, before = made[each.seq_id], history.journal.newest, each.sequence.moves[-1].cache
        move = Move.to_mode(
            newest, one.num_tokens, before, spec, is_converted=one.is_converted, has_evicted=one.num_evicted > 0
        )
        each.sequence = structs.replace(each.sequence, stop=mode.stop_of(each.sequence, each.cache)).moved(move)
    how = words(spec, list(made.values()))
    live.replace(mode, moved)
    return how


def convert_one(model: LoadedModel, mode: CacheMode, live: LiveSequence, history: History) -> ConvertedCache:
    """A new cache with the rows of one sequence, converted where possible, else computed from its tokens. Raises
    `InputError` where edits by hand cannot be made again."""
    sequence = live.sequence
    cache, count = mode.new_cache(live.seq_id, sequence.num_prompt_tokens), sequence.num_tokens
    mode.check_holds(live.seq_id, sequence, cache)
    evicted = None if live.is_stale else convert(live.cache, cache, sequence, count)
    by_hand, is_edited_again = live.cache.by_hand, False
    if evicted is None:
        computed = history.journal.forward_lengths(live.seq_id)
        if is_edited_again := bool(by_hand) and not mode.spec.recomputes:
            compute_edited(model, cache, live, history, computed)
        else:
            cache.clear()
            repeat(model, sequence, cache, computed, 0, count)
            cache.commit(count)
    else:
        cache.by_hand = by_hand
    cache.register_prefix(sequence.token_ids)
    return ConvertedCache(cache, count, evicted is not None, evicted or 0, is_edited_again)


def compute_edited(
    model: LoadedModel, cache: SequenceCache, live: LiveSequence, history: History, forward_lengths: list[int]
) -> None:
    """Fill a cache with the tokens of a sequence and make its edits by hand again on the way."""
    edits = edits_of(history, live.seq_id)
    if not edits:
        raise InputError(
            f"Rows of sequence {live.seq_id} were edited by hand before this session, and that mode computes them anew "
            "from the tokens: choose a mode that takes rows over."
        )

    def lengths(state: SequenceState) -> list[int]:
        return lengths_to_compute(cache.spec, state.num_prompt_tokens, forward_lengths, state.num_tokens)

    try:
        for _ in compute_with_edits(model, live.copied(cache), edits, lengths):
            pass
    except InputError as error:
        raise InputError(
            f"Rows of sequence {live.seq_id} were edited by hand, and that mode computes them anew from the tokens, "
            f"where an edit cannot be made again. {error}"
        ) from None


def words(spec: CacheSpec, made: list[ConvertedCache]) -> str:
    """How the mode was changed, for the user."""
    if not made:
        return "from the next prompt on"
    if spec.recomputes:
        without = ", without the edits of its rows" if any(one.cache.by_hand for one in made) else ""
        return f"dropped the cache: every step recomputes from now on{without}"
    num_recomputed = sum(one.num_tokens for one in made if not one.is_converted)
    if num_recomputed:
        again = ", and made its edits again" if any(one.is_edited_again for one in made) else ""
        return f"re-prefilled {counted(num_recomputed, 'token')}{again}"
    parts = []
    if not spec.codec.is_exact or spec.layout == "quantized":
        parts.append("the rows held were quantised")
    if any(one.num_evicted for one in made):
        parts.append("rows over budget were evicted")
    return "converted without recomputing" + (f": {' and '.join(parts)}" if parts else "")
