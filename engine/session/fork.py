"""A second sequence as the first stood after a step, exactly."""

from __future__ import annotations

from engine.cache.paged.pool_errors import PoolExhausted
from engine.errors import InputError
from engine.history.history import History
from engine.session.live import LiveSequence, LiveSequences
from engine.session.replay import Replay
from engine.session.rewind import holds
from engine.wire.events import Forked


def fork(live: LiveSequences, history: History, replay: Replay, seq_id: int, step: int | None) -> Forked:
    """Add the fork of a sequence as it stood after `step` (None: as it stands now), or raise an `InputError`.

    Paged layouts share every page, others copy the rows; what cannot be copied is computed again.
    """
    parent, spec = live.get(seq_id), live.mode.spec
    mark = parent.sequence.mark() if step is None else history.journal.mark_to_fork(seq_id, step, spec)
    sequence = parent.sequence.fork(live.next_id)
    sequence.go_back(mark)
    child = LiveSequence(sequence, live.mode.new_cache(sequence.seq_id))
    try:
        how = fill(parent, child, history, replay, step)
    except PoolExhausted as error:
        child.cache.close()
        raise InputError(f"A fork needs pages that the pool does not have ({error}): remove a sequence.") from None
    except BaseException:
        child.cache.close()
        raise
    child.set_logits(parent.logits if step is None else history.logits_at(seq_id, step))
    live.add(child)
    history.journal.fork(seq_id, child.seq_id, step, sequence.mark(), spec)
    history.surprisal.fork(seq_id, child.seq_id, step)
    return Forked(seq_id, child.seq_id, history.last_step if step is None else step, len(sequence.token_ids), how)


def fill(parent: LiveSequence, child: LiveSequence, history: History, replay: Replay, step: int | None) -> str:
    """Give a fork the rows of the first `num_tokens` tokens of its parent; says how."""
    sequence, cache = child.sequence, child.cache
    if not sequence.num_tokens:
        return "its rows are computed when it goes on"
    if holds(parent, history, step, sequence.num_tokens) and cache.fork_from(parent.cache, sequence.num_tokens):
        return f"shares {cache.page_counts().shared} pages" if cache.spec.is_paged else "copied the rows"
    replay.refill(sequence, cache, parent.seq_id, step)
    return f"replayed {sequence.num_tokens} tokens: this cache forgets"
