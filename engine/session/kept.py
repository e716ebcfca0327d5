"""Moments of a session that are not the live one and are kept as they stood, so that going there is a swap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from engine.cache.paged.store import PageStore
from engine.history.marks import Move, are_kept
from engine.session.live import LiveSequence, LiveSequences
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

    def holds(self, seq_id: int, step: int, num_tokens: int) -> bool:
        """Whether the rows of a sequence begin with those that it had after an earlier `step`, bit for bit, as far as
        its cache has not forgotten them: rows that were computed anew since, in another mode or in other pieces, may
        differ in their last bit."""
        live = self.sequences[seq_id]
        later = (move for move in self.moves.get(seq_id, ()) if move.step >= step)
        return not live.is_stale and are_kept(num_tokens, later)

    def own(self, *, is_live: bool) -> None:
        """Its pages belong to its sequences, or to a kept moment."""
        for live in self.sequences.values():
            live.cache.own(live.seq_id if is_live else KEPT)

    def close(self) -> None:
        """Give back what it holds."""
        for live in self.sequences.values():
            live.cache.close()

    @property
    def row_bytes(self) -> int:
        """K and V, states, what is kept for going back, and logits. What lies in pages is counted with its pool."""
        found = 0
        for live in self.sequences.values():
            held = live.cache.all_bytes() if self.mode.store is None else []
            found += sum(one.reserved + one.journal + one.scores for one in held)
            found += 0 if live.logits is None else int(live.logits.nbytes)
        return found


class KeptStates:
    """Kept moments by their step, the least recently used first. Beyond `max_bytes` of their own that one goes; it is
    computed again when it is wanted."""

    def __init__(self, live: LiveSequences, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._live = live
        self._states: OrderedDict[int, SessionState] = OrderedDict()
        self._has_grown = False
        self._sizes: dict[int, BranchBytes] = {}
        self._pinned: SessionState | None = None  # what nothing could compute again

    def __iter__(self) -> Iterator[SessionState]:
        """The most recently used first."""
        pinned = [] if self._pinned is None else [self._pinned]
        return iter([*self._states.values()][::-1] + pinned)

    def __contains__(self, step: int) -> bool:
        return step in self._states

    def put(self, state: SessionState) -> None:
        """Keep a moment that was left. Before the next step those that are too many go."""
        assert state.step is not None
        self.let_go(state.step)
        state.own(is_live=False)
        self._states[state.step] = state
        self._sizes.pop(state.step, None)
        self._has_grown = True

    def take_back(self, state: SessionState) -> None:
        """It is not left after all."""
        state.own(is_live=True)
        if state.step is not None:
            self._states.pop(state.step, None)

    def take(self, step: int) -> SessionState | None:
        """Make a kept moment somebody's own again."""
        state = self._states.pop(step, None)
        if state is not None:
            state.own(is_live=True)
        return state

    def let_go(self, step: int) -> None:
        if (state := self._states.pop(step, None)) is not None:
            state.close()

    def let_go_in(self, store: PageStore | None) -> bool:
        """Let the least recently used moment go whose pages are in this store; False where there is none."""
        found = next((s.step for s in self._states.values() if store is not None and s.mode.store is store), None)
        if found is not None:
            self.let_go(found)
            return True
        if self._pinned is not None and store is not None and self._pinned.mode.store is store:
            self._unpin()
            return True
        return False

    def trim(self) -> None:
        """Let moments go until what is left fits into its bytes."""
        has_grown, self._has_grown = self._has_grown, False
        while has_grown and self._states and self.num_bytes > self.max_bytes:
            self.let_go(next(iter(self._states)))

    def clear(self) -> None:
        self._unpin()
        for step in [*self._states]:
            self.let_go(step)

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
        """What each takes, counted when it was left, by step."""
        known = self._sizes
        self._sizes = {step: known.get(step) or size_of(state) for step, state in self._states.items()}
        return tuple(self._sizes[step] for step in sorted(self._sizes))

    @property
    def row_bytes(self) -> int:
        """Of these, what does not lie in pages; of a moment that cannot be computed again as well."""
        return sum(state.row_bytes for state in self)

    @property
    def num_bytes(self) -> int:
        """What they take that nobody else does: a pool that is not the live one as a whole, of the live one the pages
        that are theirs alone."""
        found = sum(state.row_bytes for state in self._states.values())
        stores = {id(s.mode.store): s.mode.store for s in self._states.values() if s.mode.store is not None}
        for store in stores.values():
            if store is self._live.mode.store:
                found += store.kept_bytes
            else:
                found += sum(store.reserved_bytes(layer) for layer in store.rows_of)
        return found


def size_of(state: SessionState) -> BranchBytes:
    """What a kept moment takes: of pages those that nobody else refers to are its own."""
    assert state.step is not None
    store = state.mode.store
    private, shared = state.row_bytes, 0
    for number, group in enumerate(store.groups if store is not None else ()):
        mine = {page_id for live in state.sequences.values() for page_id in live.cache.tables[number].held_pages}
        own = {id(live.cache.tables[number]) for live in state.sequences.values()}
        others = {page_id for table in group.tables if id(table) not in own for page_id in table.held_pages}
        width = sum(rows.row_bytes for layer in group.layers for rows in store.rows_of[layer.index]) if store else 0
        page_bytes = width * (store.page_size if store is not None else 0)
        private += len(mine - others) * page_bytes
        shared += len(mine & others) * page_bytes
    return BranchBytes(state.step, shared, private)
