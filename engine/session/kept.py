"""Moments of a session that are not the live one and are kept as they stood, so that going there is a swap."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

from engine.cache.paged.store import PageStore
from engine.history.journal import Journal
from engine.history.marks import Move, are_kept
from engine.session.live import LiveSequence, LiveSequences, close_all
from engine.session.mode import CacheMode
from engine.wire.page_events import KEPT
from engine.wire.tree import BranchBytes

KEPT_BYTES = 1 << 30  # of their own that kept moments may take, all together


@dataclass(eq=False)
class SessionState:
    """All sequences as they stand after `step` (None: before the first), in a cache mode. `moves` say how their caches
    came into it."""

    step: int | None
    mode: CacheMode
    sequences: dict[int, LiveSequence]
    moves: dict[int, tuple[Move, ...]]

    @classmethod
    def of(cls, step: int | None, live: LiveSequences, journal: Journal) -> SessionState:
        """The live sequences, which stand after a step of the path."""
        moves = {each.seq_id: journal.all_moves(each.seq_id) for each in live}
        return cls(step, live.mode, {each.seq_id: each for each in live}, moves)

    def holds(self, seq_id: int, step: int, num_tokens: int) -> bool:
        """Whether the rows of a sequence begin with those that it had after an earlier `step`, bit for bit, as far as
        its cache has not forgotten them: rows that were computed anew since, in another mode or in other pieces, may
        differ in their last bit."""
        live = self.sequences[seq_id]
        later = (move for move in self.moves.get(seq_id, ()) if move.step >= step)
        return not live.is_stale and are_kept(num_tokens, later)

    def has_moved(self, seq_id: int, step: int) -> bool:
        """Whether a sequence came into another mode, or began again, since an earlier `step`."""
        return any(move.step >= step for move in self.moves.get(seq_id, ()))

    def own(self, *, is_live: bool) -> None:
        """Its pages belong to its sequences, or to a kept moment."""
        for live in self.sequences.values():
            live.cache.set_owner(live.seq_id if is_live else KEPT)

    def close(self) -> None:
        """Give back what it holds."""
        close_all(self.sequences)

    @property
    def row_bytes(self) -> int:
        """K and V, states, what is kept for going back, and logits. What lies in pages is counted with its pool."""
        found = 0
        for live in self.sequences.values():
            held = live.cache.all_bytes() if self.mode.store is None else []
            found += sum(one.reserved + one.journal + one.scores for one in held)
            found += 0 if live.logits is None else int(live.logits.nbytes)
        return found

    @property
    def noted_bytes(self) -> dict[int, int]:
        """Of these, what copies of its caches hold as well, for nobody writes to it: by its identity."""
        lives = self.sequences.values() if self.mode.store is None else ()
        return {noted: size for live in lives for layer in live.cache.layers for noted, size in layer.noted_bytes()}


MomentKey = tuple[int, int | None]  # a step, and the sequence that was removed then, None where all of them are kept


class KeptStates:
    """Kept moments by their step, the least recently used first, and sequences that were removed. Beyond `max_bytes` of
    their own the first goes; it is computed again when it is wanted. `forget_recorded` is told the cache of every
    sequence that is kept: steps recorded for it take memory that nobody counts here."""

    def __init__(
        self, live: LiveSequences, max_bytes: int, forget_recorded: Callable[[Any], None] = lambda cache: None
    ) -> None:
        self.max_bytes = max_bytes
        self._live, self._forget_recorded = live, forget_recorded
        self._states: OrderedDict[MomentKey, SessionState] = OrderedDict()
        self._has_grown = False
        self._row_bytes: dict[MomentKey, int] = {}  # of each, which does not change while it is kept
        self._noted: dict[MomentKey, dict[int, int]] = {}  # of these, what others may hold as well
        self._counted = KeptBytes()
        self._pinned: SessionState | None = None  # what nothing could compute again

    def __iter__(self) -> Iterator[SessionState]:
        """Whole moments, the most recently used first."""
        pinned = [] if self._pinned is None else [self._pinned]
        return iter([state for (_, seq_id), state in self._states.items() if seq_id is None][::-1] + pinned)

    def __contains__(self, step: object) -> bool:
        return (step, None) in self._states

    @property
    def removed(self) -> list[SessionState]:
        """Sequences that were removed, each as it stood then, the most recently removed first."""
        return [state for (_, seq_id), state in self._states.items() if seq_id is not None][::-1]

    def put(self, state: SessionState) -> None:
        """Keep a moment that was left. Before the next step those that are too many go."""
        assert state.step is not None
        self._put((state.step, None), state)

    def put_removed(self, state: SessionState) -> None:
        """Keep one sequence, which goes, as it stands; nothing of one that has no rows, or that stood before the first
        step."""
        ((seq_id, live),) = state.sequences.items()
        if state.step is None or live.is_stale or not live.cache.num_tokens:
            live.cache.close()
        else:
            self._put((state.step, seq_id), state)

    def _put(self, key: MomentKey, state: SessionState) -> None:
        self.let_go(key)
        row_bytes, noted = state.row_bytes, state.noted_bytes
        for live in state.sequences.values():  # first: nothing has changed where this fails
            self._forget_recorded(live.cache.live)
        try:
            state.own(is_live=False)
        except BaseException:
            state.own(is_live=True)
            raise
        self._states[key], self._row_bytes[key], self._noted[key], self._has_grown = state, row_bytes, noted, True

    def take_back(self, state: SessionState) -> None:
        """It is not left after all."""
        state.own(is_live=True)
        if state.step is not None and self._states.get((state.step, None)) is state:
            self._pop((state.step, None))

    def take(self, step: int) -> SessionState | None:
        """Make a kept moment somebody's own again."""
        key = step, None
        state = self._states.get(key)
        if state is None:
            return None
        try:
            state.own(is_live=True)
            self._pop(key)
        except BaseException:
            state.own(is_live=False)
            raise
        return state

    def _pop(self, key: MomentKey) -> SessionState | None:
        self._row_bytes.pop(key, None)
        self._noted.pop(key, None)
        return self._states.pop(key, None)

    def let_go(self, key: MomentKey) -> None:
        if (state := self._pop(key)) is not None:
            state.close()

    def let_go_beside(self, tree: Container[int]) -> None:
        """Let moments go that are forgotten."""
        for key in [key for key in self._states if key[0] not in tree]:
            self.let_go(key)
        if self._pinned is not None and self._pinned.step not in tree:
            self._unpin()

    def let_go_in(self, store: PageStore | None) -> bool:
        """Let the least recently used moment go whose pages are in this store; False where there is none.

        It is asked when no page is left, cached ones among them: these go first. One of them costs the prefill of one
        page, if anybody ever asks for that prefix again; a moment costs every step from the nearest one that is kept.
        """
        found = next((key for key, s in self._states.items() if store is not None and s.mode.store is store), None)
        if found is not None:
            self.let_go(found)
            return True
        if self._pinned is not None and store is not None and self._pinned.mode.store is store:
            self._unpin()
            return True
        return False

    def set_limit(self, max_bytes: int) -> None:
        """From now on they may take so many bytes."""
        self.max_bytes, self._has_grown = max_bytes, True
        self.trim()

    def trim(self) -> None:
        """Let moments go until what is left fits into its bytes."""
        has_grown, self._has_grown = self._has_grown, False
        while has_grown and self._states and self.num_bytes > self.max_bytes:
            self.let_go(next(iter(self._states)))

    def clear(self) -> None:
        self._unpin()
        for key in [*self._states]:
            self.let_go(key)

    def pin(self, state: SessionState) -> None:
        """Keep a moment that cannot be computed again whatever it takes, and copy it where it is wanted."""
        self._unpin()
        state.own(is_live=False)
        self._pinned = state

    def _unpin(self) -> None:
        if self._pinned is not None:
            self._pinned.close()
        self._pinned = None

    @property
    def sizes(self) -> tuple[BranchBytes, ...]:
        """What each whole moment takes, by step."""
        return self._count().sizes

    @property
    def row_bytes(self) -> int:
        """Of these, what does not lie in pages; of a moment that cannot be computed again as well."""
        pinned = 0 if self._pinned is None else self._pinned.row_bytes
        return self._count().row_bytes + pinned

    @property
    def num_bytes(self) -> int:
        """What they take that nobody else does: a pool that is not the live one as a whole, of the live one the pages
        that are theirs alone."""
        return self._count().num_bytes

    def _count(self) -> KeptBytes:
        """Counted again where others are kept, or somebody began or ceased to share pages with one that is."""
        live = self._live.mode.store
        stores = {id(s.mode.store): s.mode.store for s in self._states.values() if s.mode.store is not None}
        changes = tuple(group.pool.num_share_changes for store in stores.values() for group in store.groups)
        seen = (tuple(map(id, self._states.values())), id(live), changes)
        if self._counted.seen != seen:
            holders = Counter(noted for each in self._noted.values() for noted in each)
            noted_once = {noted: size for each in self._noted.values() for noted, size in each.items()}
            row_bytes = sum(self._row_bytes.values())
            row_bytes -= sum((count - 1) * noted_once[noted] for noted, count in holders.items())
            num_bytes = row_bytes
            for store in stores.values():
                is_live = store is live
                num_bytes += store.kept_bytes if is_live else sum(map(store.reserved_bytes, store.rows_of))
            whole = sorted(step for step, seq_id in self._states if seq_id is None)
            sizes = tuple(self._size_of((step, None), holders) for step in whole)
            self._counted = KeptBytes(seen, sizes, num_bytes, row_bytes)
        return self._counted

    def _size_of(self, key: MomentKey, holders: Counter[int]) -> BranchBytes:
        shared = sum(size for noted, size in self._noted[key].items() if holders[noted] > 1)
        return size_of(self._states[key], self._row_bytes[key] - shared, shared)


@dataclass(frozen=True)
class KeptBytes:
    """What kept moments take, one by one and all together, for as long as what was `seen` of them is the same;
    `row_bytes` are those that do not lie in pages."""

    seen: tuple[object, ...] = ()
    sizes: tuple[BranchBytes, ...] = ()
    num_bytes: int = 0
    row_bytes: int = 0


def size_of(state: SessionState, private: int, shared: int) -> BranchBytes:
    """What a kept moment takes, beside what does not lie in pages: of these those that nobody else refers to are its
    own."""
    assert state.step is not None
    store = state.mode.store
    for number, group in enumerate(store.groups if store is not None else ()):
        mine = Counter(page for live in state.sequences.values() for page in live.cache.tables[number].held_pages)
        num_own = sum(group.pool.ref_count(page_id) == count for page_id, count in mine.items())
        width = sum(rows.row_bytes for layer in group.layers for rows in store.rows_of[layer.index]) if store else 0
        page_bytes = width * (store.page_size if store is not None else 0)
        private += num_own * page_bytes
        shared += (len(mine) - num_own) * page_bytes
    return BranchBytes(state.step, shared, private)
