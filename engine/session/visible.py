"""What slices of a sequence are taken from: its live cache, or a kept state of another branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.cache.contract import HeldRows, StateMatrix
from engine.cache.row_delta import RowDelta
from engine.cache.sequence_cache import SequenceCache
from engine.history.history import History
from engine.history.journal import Journal, Move
from engine.history.tree import Tree
from engine.look.magnitudes import SessionMagnitudes
from engine.look.rows_at import HalfWritten, RowsAt
from engine.session.going_back import StateRestorer
from engine.session.kept import KeptStates
from engine.session.mode import CacheMode
from engine.spec.cache import CacheSpec
from engine.spec.codec import Part
from engine.wire.records import Provenance


@dataclass(frozen=True, eq=False)
class VisibleSequence:
    """A sequence as slices can show it: a cache with rows of up to `num_tokens` tokens, the `moves` after which earlier
    rows may have changed, and the `journal` of its path. `half` says how far a suspended step has written its new rows.
    `why_not` says why there are no rows. `has_tables` False: the rows are there but were moved to other pages since, so
    that the page tables of that step are unknown. `is_past`: it is shown as it was before the newest of its `moves`."""

    cache: SequenceCache | NoRows
    num_tokens: int
    exact_provenance: Provenance
    moves: tuple[Move, ...]
    journal: Journal
    magnitudes: SessionMagnitudes
    half: HalfWritten | None = None
    why_not: str = ""
    has_tables: bool = True
    is_live: bool = True
    is_past: bool = False

    def rows_at(self, num_tokens: int) -> RowsAt:
        """The rows as they were when the sequence had `num_tokens` tokens."""
        half = self.half if self.half is not None and num_tokens > self.half.had else None
        return RowsAt(self.cache, num_tokens, self.exact_provenance, self.moves, half, self.is_past)


@dataclass(frozen=True)
class NoRows:
    """Stands in for the cache of a state of `num_tokens` tokens whose rows are in no kept state."""

    spec: CacheSpec
    num_tokens: int
    layers: Sequence[object] = ()

    def rows(self, layer_index: int) -> HeldRows | None:
        return None

    def rows_at(self, layer_index: int, num_tokens: int) -> HeldRows | None:
        return None

    def exact_from(self, layer_index: int, num_tokens: int, part: Part) -> int:
        return 0

    def knows(self, num_tokens: int) -> bool:
        return True

    def newest_rows(self, layer_index: int, first_position: int) -> HeldRows | None:
        return None

    def newest_rows_at(self, layer_index: int, num_tokens: int, first_position: int) -> HeldRows | None:
        return None

    def num_final(self, layer_index: int, part: Part, num_tokens: int) -> int:
        return 0

    def states(self, layer_index: int) -> tuple[StateMatrix, ...]:
        return ()

    def changes_since(self, num_tokens: int, until: int | None = None) -> list[RowDelta] | None:
        return None

    def page_ids_at(self, num_tokens: int) -> list[list[int]]:
        return []


@dataclass(eq=False)
class OtherBranches:
    """Finds the rows of nodes that are not on the live path, without going there: in kept states at the node or
    descending from it that still hold its rows. Nothing is computed, copied or changed."""

    history: History
    restorer: StateRestorer
    kept: KeptStates
    num_layers: int
    _path: tuple[Tree | None, int, Journal] = field(default=(None, -1, Journal()), init=False)
    _counted: tuple[Tree | None, int, SessionMagnitudes] = field(default=(None, -1, SessionMagnitudes()), init=False)

    def is_on_other_branch(self, node: int) -> bool:
        """Whether a node is off the live path; raises `InputError` for one that does not exist."""
        tree = self.history.tree
        tree.at(node)
        return not tree.is_on_path(node, self.history.last_step)

    def sequence_at(self, seq_id: int, node: int) -> VisibleSequence | None:
        """A sequence as it was at a node of another branch; None if it did not exist there."""
        checkpoint, journal = self.history.tree.at(node).checkpoint, self._journal(node)
        mark = checkpoint.marks.get(seq_id)
        if mark is None:
            return None
        without_tables: VisibleSequence | None = None
        for state in (*self.restorer.sources(), *self.kept.removed):
            live = state.sequences.get(seq_id)
            if (
                live is None
                or not self.restorer.descends_from(state, node)
                or not state.holds(seq_id, node, mark.num_tokens)
            ):
                continue
            # moves that led to this node itself do not hide its rows
            moves = state.moves.get(seq_id, ())
            moves = tuple(move for move in moves if move.step >= node or move.had < mark.num_tokens)
            found = VisibleSequence(
                live.cache, mark.num_tokens, exact_provenance(state.mode, "kept"), moves, journal, self._magnitudes,
                has_tables=not state.mode.spec.is_paged or all(move.step < node for move in moves), is_live=False,
            )  # fmt: skip
            if found.rows_at(mark.num_tokens).is_known:
                if found.has_tables:
                    return found
                without_tables = without_tables or found
        if without_tables is not None:
            return without_tables
        gone = f"Step {node} is on another branch, and its K and V are not kept: going there computes them again."
        nothing = NoRows(checkpoint.cache, mark.num_tokens, (None,) * self.num_layers)
        return VisibleSequence(
            nothing, mark.num_tokens, "kept", (), journal, self._magnitudes, why_not=gone, is_live=False
        )

    @property
    def _magnitudes(self) -> SessionMagnitudes:
        """Magnitudes counted for states of other branches; discarded after every step or edit, since kept states only
        change then."""
        tree, step, counted = self._counted
        if tree is not self.history.tree or step != self.history.next_step:
            counted = SessionMagnitudes()
            self._counted = self.history.tree, self.history.next_step, counted
        return counted

    def _journal(self, node: int) -> Journal:
        """The journal of the path to a node; the last one asked for is remembered, since it never changes."""
        tree, at, journal = self._path
        if tree is not self.history.tree or at != node:
            journal = self.history.journal_to(node)
            self._path = self.history.tree, node, journal
        return journal


def exact_provenance(mode: CacheMode, held: Provenance) -> Provenance:
    """The provenance of rows that are not read from codes, in a cache of this mode that `held` describes."""
    return "recomputed" if mode.spec.recomputes else held
