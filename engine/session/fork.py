"""Forks a sequence: adds an exact copy of it as it was after a step of any branch."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from engine.cache.paged.pool import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.counted import counted
from engine.errors import InputError
from engine.history.history import History
from engine.history.journal import Journal
from engine.history.state import Move, Origin, SequenceState
from engine.session.driver import Refill
from engine.session.going_back import StateRestorer, copy_rows, sharing_in_words
from engine.session.kept import KeptStates
from engine.session.live import LiveSequence, LiveSequences, on_failure
from engine.spec.cache import CacheSpec, cache_label
from engine.wire.events import ForkMade
from engine.wire.records import SequenceForked


@dataclass(frozen=True, eq=False)
class ForkOrigin:
    """Where the rows of a fork come from: sequence `owner` (the forked sequence, or the one that it was itself forked
    from after `step`), as `state` says it was after `step`. `journal` is that of the path to `step`; None: the live
    one."""

    owner: int
    step: int
    state: SequenceState
    journal: Journal | None


class Forking:
    """Makes forks. Where the page pool has no room, kept states are evicted from it."""

    def __init__(
        self, live: LiveSequences, history: History, refill: Refill, restorer: StateRestorer, kept: KeptStates
    ) -> None:
        self._live, self._history, self._refill, self._restorer, self._kept = live, history, refill, restorer, kept

    def fork(self, seq_id: int, step: int | None, num_tokens: int | None = None) -> ForkMade:
        """Add a copy of a sequence as it was after `step` (None: as it is now); `num_tokens` limits a copy of now to
        the first so many tokens. Raises `InputError` where that cannot be.

        Paged layouts share every page, others copy the rows; rows that cannot be copy_rows are computed again.
        """
        live, history = self._live, self._history
        if num_tokens is not None and not 0 < num_tokens <= live.get(seq_id).sequence.num_tokens:
            raise InputError(
                f"Sequence {seq_id} does not have rows of {counted(num_tokens, 'token')}: fork fewer of them."
            )
        origin = None if step is None else self._origin(seq_id, step)
        parent = live.get(seq_id) if origin is None else None
        while True:
            try:
                child, how = (
                    self._fork_live(parent, num_tokens) if parent is not None else self._fork_past(seq_id, origin)
                )
                break
            except PoolExhausted as error:
                if not self._kept.evict_from(live.mode.store):
                    raise InputError(
                        f"A fork needs pages that the pool does not have ({error}): remove a sequence."
                    ) from None
        live.add(child)
        child.sequence = self._forked(child.sequence, seq_id, origin)
        history.surprisal.fork(seq_id, child.seq_id, step)
        history.changes.append(SequenceForked(child.seq_id, seq_id, step, num_tokens))
        at = history.last_step if step is None else step
        return ForkMade(seq_id, child.seq_id, at, len(child.sequence.token_ids), how)

    def _origin(self, seq_id: int, step: int) -> ForkOrigin:
        history = self._history
        then = history.tree.at(step).node.cache
        is_live = history.journal.at(step) is not None
        journal = history.journal if is_live else history.journal_to(step)
        state = journal.state(seq_id, step)
        if state is None and seq_id >= self._live.next_id:
            self._live.get(seq_id)
        state = check_can_be_forked(seq_id, step, state, then, self._live.mode.spec)
        owner, last = journal.owner(seq_id, step)
        return ForkOrigin(owner, last, state, None if is_live else journal)

    def _forked(self, sequence: SequenceState, seq_id: int, origin: ForkOrigin | None) -> SequenceState:
        """The state of a fork with where its rows come from: those of the sequence `seq_id` until then, and from there
        on its own."""
        journal, spec, count = self._history.journal, self._live.mode.spec, sequence.num_tokens
        newest, moves = journal.newest, sequence.moves if origin is None else origin.state.moves
        if not moves:  # the sequence was added after that step and had no rows
            moves = (Move(newest, 0, spec),)
        if moves[-1].cache != spec:
            before = moves[-1].cache
            moves += (Move.to_mode(newest, count, before, spec, is_converted=True, has_evicted=False),)
        origins = sequence.origins if origin is None else origin.state.origins
        if newest >= 0:
            owner, last = (seq_id, newest) if origin is None else (origin.owner, origin.step)
            if origin is not None and origin.journal is not None:
                common = self._history.tree.common_ancestor(newest, origin.step)
                last = -1 if common is None else common
            origins = (Origin(owner, last, newest, len(sequence.token_ids)), *origins)
        return structs.replace(sequence, moves=moves, origins=origins)

    # ---- the rows of the fork ------------------------------------------------------------------------------------

    def _fork_live(self, parent: LiveSequence, num_tokens: int | None) -> tuple[LiveSequence, str]:
        self._refill.refresh(parent)
        child = self._new_child(parent.sequence.forked(num_tokens))
        with on_failure(child.cache.close):
            count = parent.sequence.num_tokens if num_tokens is None else num_tokens
            if count and not child.cache.fork_from(parent.cache, count):
                raise InputError(f"Sequence {parent.seq_id} cannot be copied in this cache mode: take another one.")
            if num_tokens is not None:
                child.cache.unshare_last_page()
        if num_tokens is None:
            child.set_logits(parent.logits)
        return child, rows_in_words(child.cache) if count else "its rows are computed when it goes on"

    def _fork_past(self, seq_id: int, origin: ForkOrigin | None) -> tuple[LiveSequence, str]:
        assert origin is not None
        history = self._history
        logits = history.logits_at(origin.owner, origin.step)
        if logits is not None or not history.tree.computed_by(origin.owner, origin.step):
            for source in self._restorer.sources():
                is_live = source.step == history.last_step
                names = (seq_id, origin.owner) if is_live and origin.journal is None else (origin.owner,)
                for name in names:
                    if name not in source.sequences or not self._restorer.descends_from(source, origin.step):
                        continue
                    child = self._new_child(origin.state.forked())
                    child.set_logits(logits)
                    if not origin.state.num_tokens:
                        return child, "its rows are computed when it goes on"
                    if copy_rows(source, source.sequences[name], child.cache, origin.step, origin.state.num_tokens):
                        return child, rows_in_words(child.cache)
                    child.cache.close()
        return self._fork_replayed(origin)

    def _fork_replayed(self, origin: ForkOrigin) -> tuple[LiveSequence, str]:
        """Restore the whole state after the step in a scratch session, and copy the sequence out of it."""
        state, how_made = self._restorer.state_and_words(origin.step)
        try:
            then = state.sequences[origin.owner]
            child = self._new_child(then.sequence.forked())
            with on_failure(child.cache.close):
                self._take_rows(child, then, origin)
        finally:
            state.close()
        child.set_logits(then.logits)
        return child, how_made

    def _take_rows(self, child: LiveSequence, then: LiveSequence, origin: ForkOrigin) -> None:
        cache, count = child.cache, then.sequence.num_tokens
        if not count:
            return
        if cache.spec == then.cache.spec:
            if not cache.fork_from(then.cache, count):
                cache.copy_from(then.cache)
        elif not cache.convert_from(then.cache):  # both are exact: only rows outside a window are missing
            if then.cache.by_hand:
                raise InputError(
                    f"Rows of sequence {origin.owner} were edited by hand, and this mode computes them anew from the "
                    "tokens: go to that step first, then fork."
                )
            self._refill.refill(child.sequence, cache, origin.owner, origin.step, origin.journal)

    def _new_child(self, state: SequenceState) -> LiveSequence:
        seq_id = self._live.next_id
        return LiveSequence(seq_id, state, self._live.mode.new_cache(seq_id, state.num_prompt_tokens))


def rows_in_words(cache: SequenceCache) -> str:
    """In words how the rows of a fork came."""
    return sharing_in_words(cache.page_counts().shared) if cache.spec.is_paged else "copied the rows"


def check_can_be_forked(
    seq_id: int, step: int, state: SequenceState | None, then: CacheSpec, now: CacheSpec
) -> SequenceState:
    """The state of a sequence after a step, or an `InputError` that says why it cannot be forked there in the present
    cache mode."""
    if state is None:
        raise InputError(f"Sequence {seq_id} was not there yet at step {step}: fork it from a later step.")
    if then != now and not (then.is_exact and now.is_exact):
        raise InputError(
            f"Step {step} ran in another cache mode ({cache_label(then)}), whose rows are not those of now: "
            "go to that step first, then fork."
        )
    return state
