"""Kept states: earlier states of a session, held in memory as they were, so that going back to one is a swap."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.cache.paged.store import PageStore
from engine.history.state import are_kept
from engine.session.live import LiveSequence, LiveSequences, close_all
from engine.session.mode import CacheMode
from engine.wire.pages import KEPT
from engine.wire.tree import BranchBytes

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
        """Bytes of K and V, recurrent states, journals, rule scores and logits, constant while it is kept. Rows in
        pages are not counted here but with their pool."""
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
            self._forget_recorded(live.cache.live)
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
    def sizes(self) -> tuple[BranchBytes, ...]:
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
    sizes: tuple[BranchBytes, ...] = ()
    num_bytes: int = 0
    row_bytes: int = 0


def size_of(state: SessionState, holders: Counter[int]) -> BranchBytes:
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
    return BranchBytes(state.step, shared, private)
