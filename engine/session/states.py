"""The state of a session: its live sequences, each with its cache and the logits of its newest forward; earlier states
that are kept; and the state that a command which fails leaves as it was."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch

from engine.cache.paged.store import PageStore
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.history import History
from engine.history.state import Move, SequenceState, are_kept
from engine.look.pictures import PictureMemos
from engine.model.tokenizer import TokenTexts
from engine.session.mode import CacheMode
from engine.session.sampler import SampledToken, choose
from engine.wire.pages import KEPT, ContinuedFrom
from engine.wire.status import SequenceInfo
from engine.wire.tree import KeptStateBytes

if TYPE_CHECKING:
    from engine.session.session import Session


@dataclass(eq=False)
class LiveSequence:
    """A sequence and its cache; the logits `[V]` of its newest forward, and their log-probabilities if computed
    already. `is_stale`: a failed step emptied the cache, which has to be filled again before the next step.
    `continued` says which sequence's rows the prompt reused, `note` an unexpected detail of the prompt's rendering."""

    seq_id: int
    sequence: SequenceState
    cache: SequenceCache
    logits: torch.Tensor | None = None
    logprobs: torch.Tensor | None = None
    is_stale: bool = False
    continued: ContinuedFrom | None = None
    note: str = ""

    def set_logits(self, logits: torch.Tensor | None, logprobs: torch.Tensor | None = None) -> None:
        self.logits, self.logprobs = logits, logprobs

    def copied(self, cache: SequenceCache) -> LiveSequence:
        """An independent copy of the sequence, with `cache` as its cache."""
        return replace(self, cache=cache, is_stale=False)

    def choose_again(self, mode: CacheMode, text_of: TokenTexts) -> SampledToken | None:
        """Sample again from the present logits; a forced token stays the next one. None where there are no logits or
        the prompt is not read yet."""
        sequence, count = self.sequence, self.sequence.num_tokens
        if self.logits is None or sequence.is_prefilling:
            return None
        ruled = mode.model.apply_generation_rules(
            self.logits, sequence.token_ids[:count], sequence.num_prompt_tokens, sequence.sampling.max_new_tokens
        )
        choice = choose(self.logits, sequence.sampling, count, text_of, ruled)
        if sequence.sampled_is_forced:
            return choice
        after = mode.stop_after(sequence, choice, self.cache)
        stop = "stopped" if sequence.stop == "stopped" else after
        self.sequence = sequence.chosen(choice.token_id, stop)
        return choice

    def info(self) -> SequenceInfo:
        sequence, pages = self.sequence, self.cache.page_counts()
        return SequenceInfo(
            seq_id=self.seq_id,
            phase=sequence.phase,
            num_tokens=sequence.num_tokens,
            num_prompt_tokens=sequence.num_prompt_tokens,
            sampled=sequence.sampled,
            stop=sequence.stop,
            num_pages=pages.held,
            num_shared_pages=pages.shared,
            hit_tokens=pages.hit_tokens,
            num_preemptions=sequence.num_preemptions,
            why_not_reused=self.continued or pages.why_not_reused,
            sampling=sequence.sampling,
        )


class LiveSequences:
    """All sequences of a session by `seq_id`, and the cache mode that they are in."""

    def __init__(self, mode: CacheMode) -> None:
        self.mode = mode
        self.memos = PictureMemos()
        self.next_id = 0
        self._by_id: dict[int, LiveSequence] = {}

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._by_id)

    @property
    def caches(self) -> list[SequenceCache]:
        return [live.cache for live in self]

    def get(self, seq_id: int) -> LiveSequence:
        """The sequence of that id, or an `InputError`."""
        if seq_id not in self._by_id:
            raise InputError(f"There is no sequence {seq_id}: it was removed or never started.")
        return self._by_id[seq_id]

    def state_of(self, seq_id: int) -> SequenceState | None:
        """The state of the sequence of that id, None where there is none."""
        live = self._by_id.get(seq_id)
        return None if live is None else live.sequence

    def add(self, live: LiveSequence) -> None:
        self._by_id[live.seq_id] = live
        self.next_id = max(self.next_id, live.seq_id + 1)

    def detach(self, seq_id: int) -> None:
        """Remove a sequence from the live ones without closing its cache, which the caller owns from then on."""
        self.memos.forget(seq_id)
        self._by_id = {each: live for each, live in self._by_id.items() if each != seq_id}

    def replace(self, mode: CacheMode, sequences: dict[int, LiveSequence]) -> None:
        """Make other sequences the live ones. Assignments only: this cannot fail."""
        self.mode, self._by_id = mode, sequences
        for seq_id in sequences:
            self.next_id = max(self.next_id, seq_id + 1)
        self.memos.forget_all()

    def bound_lost_rows(self, limit: int) -> None:
        """Limit the bytes of the caches' logs of lost rows: the oldest are dropped, and going back beyond them computes
        the rows again."""
        caches = self.caches
        if sum(cache.lost_bytes for cache in caches) > limit:
            for cache in caches:
                cache.lost.shrink(limit // len(caches))

    # ---- a step that fails ---------------------------------------------------------------------------------------

    def copies(self, some: Iterable[LiveSequence] | None = None) -> dict[int, LiveSequence]:
        """Copies of these sequences (None: all) with the same caches, for `restore`."""
        return {live.seq_id: replace(live) for live in (self if some is None else some)}

    def restore(self, before: Mapping[int, LiveSequence], history: History) -> None:
        """Restore the sequences that were copied `before` a failed step: new rows are dropped. Where a cache cannot
        drop them it is emptied, and its rows are computed again before the next step."""
        for seq_id, then in before.items():
            live = self._by_id[seq_id]
            live.is_stale = live.is_stale or live.sequence.num_preemptions != then.sequence.num_preemptions
            live.sequence = then.sequence
            live.set_logits(then.logits, then.logprobs)
            history.drop_logs(live.seq_id)
            self.crop(live)

    def crop(self, live: LiveSequence) -> bool:
        """Drop the rows behind the sequence's `num_tokens`; False where the cache cannot and was emptied instead, so
        that it is stale."""
        self.memos.forget(live.seq_id)
        if not live.is_stale and live.cache.crop(live.sequence.num_tokens):
            return True
        by_hand = live.cache.by_hand
        live.cache.clear()
        live.cache.by_hand = by_hand  # rows that are computed again need these edits again
        live.is_stale = True
        return False

    def preempt(self, live: LiveSequence, newest: int) -> None:
        """Free the rows of a sequence after the `newest` step; its tokens are prefilled again later."""
        live.cache.clear()
        live.is_stale = False
        self.memos.forget(live.seq_id)
        begun = Move(newest, 0, self.mode.spec, had=live.sequence.num_tokens)
        live.sequence = live.sequence.preempted().moved(begun)


@contextmanager
def on_failure(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` if the block fails."""
    try:
        yield
    except BaseException:
        undo()
        raise


def close_all(sequences: Mapping[int, LiveSequence]) -> None:
    """Free the caches of these sequences."""
    for live in sequences.values():
        live.cache.close()


def exchange(session: Session, mode: CacheMode, sequences: dict[int, LiveSequence]) -> dict[int, LiveSequence]:
    """Make other sequences the live ones, in an atomic command. The state before is kept, if it is that of a step; else
    returns the sequences of before, to be closed when nothing can fail any more."""
    before, old = session.restorer.state_of_newest_step(), {live.seq_id: live for live in session.live}
    if before is not None:
        session.kept.keep(before)
    session.live.replace(mode, sequences)
    return old if before is None else {}


# ---- kept states: held in memory as they were, so that going back to one is a swap ------------------------------

KEPT_BYTES = 1 << 30  # default limit for all kept states together, without what they share with the live state


@dataclass(eq=False)
class SessionState:
    """All sequences as they are after `step` (None: before the first), with their cache mode."""

    step: int | None
    mode: CacheMode
    sequences: dict[int, LiveSequence]

    @classmethod
    def of(cls, step: int | None, live: LiveSequences) -> SessionState:
        """The state of the live sequences after `step`: the sequences themselves, not copies."""
        return cls(step, live.mode, {each.seq_id: each for each in live})

    def holds(self, seq_id: int, step: int, num_tokens: int) -> bool:
        """Whether the first `num_tokens` rows of a sequence are still, bit for bit, those that it had after an earlier
        `step`. Rows that were computed again since, in another mode or in other chunks, may differ in the last bit.
        Rows that the cache has evicted do not count."""
        live = self.sequences[seq_id]
        return not live.is_stale and are_kept(num_tokens, live.sequence.moves_since(step))

    def assign_pages(self, *, is_live: bool) -> None:
        """Assign the pages of all sequences to the sequences themselves, or to the kept states' owner in the pool."""
        for live in self.sequences.values():
            live.cache.set_owner(live.seq_id if is_live else KEPT)

    def close(self) -> None:
        """Free all caches of the state."""
        close_all(self.sequences)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of K and V, recurrent states, logs of lost rows, rule scores and logits, constant while it is kept.
        Rows in pages are not counted here but with their pool."""
        found = 0
        for live in self.sequences.values():
            held = live.cache.all_bytes() if self.mode.store is None else []
            found += sum(one.reserved + one.lost + one.scores for one in held)
            found += 0 if live.logits is None else int(live.logits.nbytes)
        return found

    @cached_property
    def lost_bytes(self) -> dict[int, int]:
        """Of `row_bytes`, the logged steps of lost rows, which copies of the caches share: bytes by the identity of the
        step."""
        lives = self.sequences.values() if self.mode.store is None else ()
        return {step: size for live in lives for step, size in live.cache.lost.step_bytes()}


StateKey = tuple[int, int | None]  # a step, and the removed sequence; None: all sequences


class KeptStates:
    """Kept states by step, the least recently used first, and removed sequences. While they take more than `max_bytes`
    of their own, the least recently used is dropped; its state is computed again when it is needed. `forget_recorded`
    is called with the cache of every sequence that is kept, and drops the graphs recorded for it, whose memory is not
    counted here."""

    def __init__(self, live: LiveSequences, forget_recorded: Callable[[Any], None]) -> None:
        self.max_bytes = KEPT_BYTES
        self._live, self._forget_recorded = live, forget_recorded
        self._states: OrderedDict[StateKey, SessionState] = OrderedDict()
        self._has_grown = False
        self._counted = KeptBytes()
        self._pinned: SessionState | None = None  # a state that could not be computed again

    def __iter__(self) -> Iterator[SessionState]:
        """Kept states of all sequences, the most recently used first; the pinned one last."""
        pinned = [] if self._pinned is None else [self._pinned]
        return iter([state for (_, seq_id), state in self._states.items() if seq_id is None][::-1] + pinned)

    def __contains__(self, step: object) -> bool:
        return (step, None) in self._states

    @property
    def removed(self) -> list[SessionState]:
        """Removed sequences, each a state of its own as it was when removed, the most recently removed first."""
        return [state for (_, seq_id), state in self._states.items() if seq_id is not None][::-1]

    def keep(self, state: SessionState) -> None:
        """Keep a state that is no longer live; its pages then belong to the kept states. The limit is enforced later,
        by `trim` before the next step. Raises and changes nothing where the pages cannot be reassigned."""
        assert state.step is not None
        self._keep((state.step, None), state)

    def keep_removed(self, state: SessionState) -> None:
        """Keep the single sequence of `state`, which is being removed. One without rows, or removed before the first
        step, is closed instead."""
        ((seq_id, live),) = state.sequences.items()
        if state.step is None or live.is_stale or not live.cache.num_tokens:
            live.cache.close()
        else:
            self._keep((state.step, seq_id), state)

    def _keep(self, key: StateKey, state: SessionState) -> None:
        self.drop(key)
        for live in state.sequences.values():  # before the pages change their owner: a failure changes nothing
            self._forget_recorded(live.cache.model_cache)
        try:
            state.assign_pages(is_live=False)
        except BaseException:
            state.assign_pages(is_live=True)
            raise
        self._states[key], self._has_grown = state, True

    @property
    def all(self) -> dict[StateKey, SessionState]:
        """All kept states and removed sequences, for `restore`."""
        return dict(self._states)

    def restore(self, known: Mapping[StateKey, SessionState]) -> None:
        """Keep no other states than the `known` ones: after a failure the others stay live, and their pages belong to
        their sequences again."""
        for key, state in self.all.items():
            if known.get(key) is not state:
                state.assign_pages(is_live=True)
                del self._states[key]

    def take_out(self, step: int) -> SessionState | None:
        """Remove the state kept for `step`, give its pages back to its sequences, and return it; None if no state is
        kept for `step`. On failure it stays kept."""
        key = step, None
        state = self._states.get(key)
        if state is None:
            return None
        try:
            state.assign_pages(is_live=True)
            del self._states[key]
        except BaseException:
            state.assign_pages(is_live=False)
            raise
        return state

    def drop(self, key: StateKey) -> None:
        """Drop a kept state and free what it holds; nothing if there is none."""
        if (state := self._states.pop(key, None)) is not None:
            state.close()

    def drop_missing(self, tree: Container[int]) -> None:
        """Drop the states of steps that are no longer in the history tree."""
        for key in [key for key in self._states if key[0] not in tree]:
            self.drop(key)
        if self._pinned is not None and self._pinned.step not in tree:
            self._unpin()

    def evict_from(self, store: PageStore | None) -> bool:
        """Drop the least recently used state whose pages are in this store; False where there is none.

        Called when the pool has no free or cached page left. Cached pages go first: losing one costs a prefill of one
        page, if that prefix is ever asked for again; losing a kept state costs the replay of every step from the
        nearest state still kept.
        """
        found = next((key for key, s in self._states.items() if store is not None and s.mode.store is store), None)
        if found is not None:
            self.drop(found)
            return True
        if self._pinned is not None and store is not None and self._pinned.mode.store is store:
            self._unpin()
            return True
        return False

    def set_limit(self, max_bytes: int) -> None:
        """Change the limit in bytes, and drop states until they fit."""
        self.max_bytes, self._has_grown = max_bytes, True
        self.trim()

    def trim(self) -> None:
        """Drop the least recently used states until the rest fits into `max_bytes`; nothing if none was added since the
        last call."""
        has_grown, self._has_grown = self._has_grown, False
        while has_grown and self._states and self.num_bytes > self.max_bytes:
            self.drop(next(iter(self._states)))

    def clear(self) -> None:
        self._unpin()
        for key in [*self._states]:
            self.drop(key)

    def pin(self, state: SessionState) -> None:
        """Keep a state that cannot be computed again, however much it takes; it is only ever copied, not swapped in."""
        self._unpin()
        state.assign_pages(is_live=False)
        self._pinned = state

    def _unpin(self) -> None:
        if self._pinned is not None:
            self._pinned.close()
        self._pinned = None

    @property
    def sizes(self) -> tuple[KeptStateBytes, ...]:
        """The bytes of each kept state of all sequences, ascending by step."""
        return self._count().sizes

    @property
    def row_bytes(self) -> int:
        """Bytes of all kept states outside page pools, the pinned one's included."""
        pinned = 0 if self._pinned is None else self._pinned.row_bytes
        return self._count().row_bytes + pinned

    @property
    def num_bytes(self) -> int:
        """Bytes that only kept states need: their rows outside pages, whole pools of other cache modes, and in the live
        pool the pages that no live sequence uses."""
        return self._count().num_bytes

    def _count(self) -> KeptBytes:
        """The bytes of the kept states; counted again only if other states are kept or page sharing has changed."""
        live = self._live.mode.store
        stores = {id(s.mode.store): s.mode.store for s in self._states.values() if s.mode.store is not None}
        changes = tuple(group.pool.num_share_changes for store in stores.values() for group in store.groups)
        seen = (tuple(map(id, self._states.values())), id(live), changes)
        if self._counted.counted_for != seen:
            holders = Counter(step for each in self._states.values() for step in each.lost_bytes)
            sizes_of = {step: size for each in self._states.values() for step, size in each.lost_bytes.items()}
            row_bytes = sum(each.row_bytes for each in self._states.values())
            row_bytes -= sum((count - 1) * sizes_of[step] for step, count in holders.items())
            num_bytes = row_bytes
            for store in stores.values():
                is_live = store is live
                num_bytes += store.kept_bytes if is_live else sum(map(store.reserved_bytes, store.rows_of))
            whole = sorted(step for step, seq_id in self._states if seq_id is None)
            sizes = tuple(size_of(self._states[step, None], holders) for step in whole)
            self._counted = KeptBytes(seen, sizes, num_bytes, row_bytes)
        return self._counted


@dataclass(frozen=True)
class KeptBytes:
    """The bytes of the kept states, one by one and together; `row_bytes` are those outside pages. Valid while
    `counted_for` (which states, the live store, changes of page sharing) is the same."""

    counted_for: tuple[object, ...] = ()
    sizes: tuple[KeptStateBytes, ...] = ()
    num_bytes: int = 0
    row_bytes: int = 0


def size_of(state: SessionState, holders: Counter[int]) -> KeptStateBytes:
    """The bytes of one kept state: of its logged steps those are shared that several of the `holders` have, and of
    its pages those to which other sequences refer."""
    assert state.step is not None
    store = state.mode.store
    shared = sum(size for step, size in state.lost_bytes.items() if holders[step] > 1)
    private = state.row_bytes - shared
    for number, group in enumerate(store.groups if store is not None else ()):
        mine = Counter(page for live in state.sequences.values() for page in live.cache.tables[number].held_pages)
        num_own = sum(group.pool.ref_count(page_id) == count for page_id, count in mine.items())
        width = sum(rows.row_bytes for layer in group.layers for rows in store.rows_of[layer.index]) if store else 0
        page_bytes = width * (store.page_size if store is not None else 0)
        private += num_own * page_bytes
        shared += (len(mine) - num_own) * page_bytes
    return KeptStateBytes(state.step, shared, private)


# ---- all or nothing: a command that raises has changed nothing ---------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")


class StateBefore:
    """The state of a session before a command, to be restored if the command fails: sequences, their bookkeeping,
    changes and notes since the newest step, kept states, and page tables. Rows are not copied: a command writes only
    into new caches."""

    def __init__(self, live: LiveSequences, history: History, kept: KeptStates) -> None:
        self._live, self._history, self._kept, self._kept_before = live, history, kept, kept.all
        self._mode, self._next_id = live.mode, live.next_id
        self._sequences = {each.seq_id: each for each in live}
        self._states = [replace(each) for each in live]
        self._before, self._surprisal = history.state(), history.surprisal.owners()
        store = live.mode.store
        self._tables = [(group, {*group.tables}) for group in (store.groups if store is not None else ())]

    def restore(self) -> None:
        """Undo what was done since this was made: pages taken since are freed, removed sequences are live again."""
        self._kept.restore(self._kept_before)
        self._live.replace(self._mode, self._sequences)
        self._live.next_id = self._next_id
        for each, state in zip(self._sequences.values(), self._states, strict=True):
            each.sequence, each.cache, each.is_stale = state.sequence, state.cache, state.is_stale
            each.set_logits(state.logits, state.logprobs)
        self._history.restore(self._before)
        self._history.surprisal.restore_owners(self._surprisal)
        for group, tables in self._tables:  # those created since, of caches that the failed command began to fill
            for table in [table for table in group.tables if table not in tables]:
                group.pool.release(table)
                group.tables.remove(table)


def atomic(command: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """Decorator: where the command raises, the session is restored to what it was. A forward launched ahead is
    discarded before the command in any case, and rows that a failed step lost are there again: a command that failed
    could not give them back."""

    @wraps(command)
    def done(session: Session, *args: P.args, **kwargs: P.kwargs) -> T:
        session.stepper.discard_ahead()
        session.restorer.fill_emptied()
        before = StateBefore(session.live, session.history, session.kept)
        try:
            return command(session, *args, **kwargs)
        except BaseException:
            before.restore()
            raise

    return done  # type: ignore[return-value]
