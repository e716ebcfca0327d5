"""A copy of a kept or live state as it was at an earlier moment, from the rows that it still knows."""

from __future__ import annotations

from engine.cache.paged.pages import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.marks import Checkpoint, Mark, Move
from engine.model.loader import LoadedModel
from engine.session.kept import SessionState
from engine.session.live import LiveSequence, close_all, closed_on_failure
from engine.session.mode import CacheMode
from engine.spec.cache import CacheSpec


def fork_of(
    model: LoadedModel, sources: list[SessionState], checkpoint: Checkpoint, fed: frozenset[int]
) -> SessionState | None:
    """All sequences as they stood at a checkpoint, each from the first of the `sources`, which came of it, that has it;
    None where a cache does not know that any more. The first source says in which pool they lie. The step that follows
    computes the rows of those that are `fed` anew in a recomputing layout."""
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
    """The mode of a state, where rows of then can be in it, or one that exact rows can be copied into."""
    if source.mode.spec == spec:
        return source.mode
    if not (source.mode.spec.is_exact and spec.is_exact and spec.is_append_only):
        return None
    try:
        return CacheMode(model, spec)
    except InputError:
        return None


def sequence_at(
    source: SessionState, mode: CacheMode, seq_id: int, mark: Mark, step: int, is_fed: bool
) -> LiveSequence | None:
    """One sequence as `mark` says, with rows copied from where it stands in `source`."""
    origin = source.sequences[seq_id]
    sequence = origin.sequence.fork(seq_id)
    sequence.go_back(mark)
    cache = mode.new_cache(seq_id, sequence.num_prompt_tokens)
    with closed_on_failure(cache):
        if is_fed and cache.spec.recomputes:
            cache.num_tokens = mark.num_tokens
        elif mark.num_tokens and not copied(source, origin, cache, step, mark.num_tokens, as_itself=True):
            cache.close()
            return None
        cache.register_prefix(sequence.token_ids)
    return LiveSequence(sequence, cache)


def copied(
    source: SessionState,
    origin: LiveSequence,
    cache: SequenceCache,
    step: int,
    num_tokens: int,
    *,
    as_itself: bool = False,
) -> bool:
    """Whether an empty cache could be given the rows that a sequence of a state had after an earlier step."""
    spec = cache.spec
    if spec.recomputes and spec == source.mode.spec:
        if num_tokens != origin.cache.num_tokens or source.has_moved(origin.seq_id, step):
            return False  # a scratch of more tokens may differ in the last bit; that of another mode is gone
    elif not source.holds(origin.seq_id, step, num_tokens):
        return False
    if source.mode.spec == spec:
        return cache.fork_from(origin.cache, num_tokens, as_itself=as_itself)
    has_room = cache.capacity is None or origin.cache.num_tokens <= cache.capacity
    is_exact = source.mode.spec.is_exact and spec.is_exact
    is_known = is_exact and has_room and origin.cache.knows(num_tokens)
    return is_known and cache.convert_from(origin.cache) and cache.crop(num_tokens)
