"""Copies a kept or live state as it was at an earlier step, from the rows that its caches still hold."""

from __future__ import annotations

from engine.cache.paged.pages import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.journal import Checkpoint, Move
from engine.history.state import SequenceState
from engine.model.loader import LoadedModel
from engine.session.kept import SessionState
from engine.session.live import LiveSequence, close_all, closed_on_failure
from engine.session.mode import CacheMode
from engine.spec.cache import CacheSpec


def fork_of(
    model: LoadedModel, sources: list[SessionState], checkpoint: Checkpoint, fed: frozenset[int]
) -> SessionState | None:
    """Copies of all sequences as they were at a checkpoint; None where a cache no longer holds those rows. Each comes
    from the first of the `sources`, states that descend from the checkpoint, that has the sequence; the copies are in
    the page pool of the first source. In a recomputing layout the rows of sequences in `fed` are not copied, since the
    next step computes them."""
    mode = mode_for(model, sources[0], checkpoint.cache)
    if mode is None:
        return None
    made: dict[int, LiveSequence] = {}
    moves: dict[int, tuple[Move, ...]] = {}
    try:
        for seq_id, mark in checkpoint.marks.items():
            source = next((each for each in sources if seq_id in each.sequences), None)
            one = None
            if source is not None:
                one = sequence_at(source, mode, seq_id, mark, checkpoint.step, is_fed=seq_id in fed)
            if source is None or one is None:
                break
            made[seq_id] = one
            moves[seq_id] = tuple(move for move in source.moves.get(seq_id, ()) if move.step < checkpoint.step)
        else:
            return SessionState(checkpoint.step, mode, made, moves)
    except (PoolExhausted, InputError, MemoryError):
        pass
    except BaseException:
        close_all(made)
        raise
    close_all(made)
    return None


def mode_for(model: LoadedModel, source: SessionState, spec: CacheSpec) -> CacheMode | None:
    """The mode for a copy that shall have `spec`: the source's own if it has that spec, else a new one if both keep
    exact rows; None if the rows cannot be converted exactly."""
    if source.mode.spec == spec:
        return source.mode
    if not (source.mode.spec.is_exact and spec.is_exact and spec.is_append_only):
        return None
    try:
        return CacheMode(model, spec)
    except InputError:
        return None


def sequence_at(
    source: SessionState, mode: CacheMode, seq_id: int, mark: SequenceState, step: int, is_fed: bool
) -> LiveSequence | None:
    """One sequence as it was at `mark`, with rows copied from its cache in `source`; None where they are gone."""
    origin = source.sequences[seq_id]
    cache = mode.new_cache(seq_id, mark.num_prompt_tokens)
    with closed_on_failure(cache):
        if is_fed and cache.spec.recomputes:
            cache.num_tokens = mark.num_tokens
        elif mark.num_tokens and not copy_rows(source, origin, cache, step, mark.num_tokens, as_itself=True):
            cache.close()
            return None
        cache.register_prefix(mark.token_ids)
    return LiveSequence(seq_id, mark, cache)


def copy_rows(
    source: SessionState,
    origin: LiveSequence,
    cache: SequenceCache,
    step: int,
    num_tokens: int,
    *,
    as_itself: bool = False,
) -> bool:
    """Copy into an empty cache the first `num_tokens` rows, as the sequence `origin` of `source` had them after an
    earlier step. False where they are not known any more, or may differ in the last bit."""
    spec = cache.spec
    if spec.recomputes and spec == source.mode.spec:
        if num_tokens != origin.cache.num_tokens or source.has_moved(origin.seq_id, step):
            return False  # rows recomputed with more tokens may differ in the last bit; another mode's are gone
    elif not source.holds(origin.seq_id, step, num_tokens):
        return False
    if source.mode.spec == spec:
        return cache.fork_from(origin.cache, num_tokens, as_itself=as_itself)
    has_room = cache.capacity is None or origin.cache.num_tokens <= cache.capacity
    is_exact = source.mode.spec.is_exact and spec.is_exact
    is_known = is_exact and has_room and origin.cache.knows(num_tokens)
    return is_known and cache.convert_from(origin.cache) and cache.crop(num_tokens)
