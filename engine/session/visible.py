"""What pictures of a sequence are taken from: its live cache, or a kept state of another branch."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.history.history import History
from engine.history.journal import Journal
from engine.history.tree import Tree
from engine.look.pictures import Seen, SeenSequences
from engine.look.source import LiveSource, Nothing
from engine.session.going_back import StateRestorer
from engine.session.kept import KeptStates
from engine.session.mode import CacheMode
from engine.wire.records import Provenance


@dataclass(frozen=True, eq=False)
class VisibleSequence:
    """A sequence as pictures can show it: the `source` of its rows, the `journal` of its path, and what was `seen` of
    them. `has_tables` False: the rows are there but were moved to other pages since, so that the page tables of that
    step are unknown."""

    source: LiveSource | Nothing
    journal: Journal
    seen: Seen
    has_tables: bool = True
    is_live: bool = True


@dataclass(eq=False)
class OtherBranches:
    """Finds the rows of nodes that are not on the live path, without going there: in kept states at the node or
    descending from it that still hold its rows. Nothing is computed, copied or changed."""

    history: History
    restorer: StateRestorer
    kept: KeptStates
    _path: tuple[Tree, int, Journal] | None = field(default=None, init=False)
    _counted: tuple[Tree | None, int, SeenSequences] = field(default=(None, -1, SeenSequences()), init=False)

    def is_on_other_branch(self, node: int) -> bool:
        """Whether a node is off the live path; raises `InputError` for one that does not exist."""
        tree = self.history.tree
        tree.at(node)
        return not tree.is_on_path(node, self.history.last_step)

    def sequence_at(self, seq_id: int, node: int) -> VisibleSequence | None:
        """A sequence as it was at a node of another branch; None if it did not exist there."""
        checkpoint, journal = self.history.tree.at(node), self._journal(node)
        there = checkpoint.states.get(seq_id)
        if there is None:
            return None
        without_tables: VisibleSequence | None = None
        for state in (*self.restorer.sources(), *self.kept.removed):
            live = state.sequences.get(seq_id)
            if (
                live is None
                or not self.restorer.descends_from(state, node)
                or not state.holds(seq_id, node, there.num_tokens)
            ):
                continue
            # moves that led to this node itself do not hide its rows
            moves = live.sequence.moves
            moves = tuple(move for move in moves if move.step >= node or move.had < there.num_tokens)
            seen, held = self._seen.of(seq_id, live.cache), exact_provenance(state.mode, "kept")
            source = LiveSource(live.cache, there.num_tokens, held, moves, kept_by=seen, full=seen.full)
            has_tables = not state.mode.spec.is_paged or all(move.step < node for move in moves)
            found = VisibleSequence(source, journal, seen, has_tables=has_tables, is_live=False)
            if source.is_known:
                if found.has_tables:
                    return found
                without_tables = without_tables or found
        if without_tables is not None:
            return without_tables
        gone = f"Step {node} is on another branch, and its K and V are not kept: going there computes them again."
        nothing = Nothing(checkpoint.node.cache, there.num_tokens, gone)
        return VisibleSequence(nothing, journal, Seen(nothing), is_live=False)

    @property
    def _seen(self) -> SeenSequences:
        """What was seen of states of other branches; discarded after every step or edit, since kept states only change
        then."""
        tree, step, seen = self._counted
        if tree is not self.history.tree or step != self.history.next_step:
            seen = SeenSequences()
            self._counted = self.history.tree, self.history.next_step, seen
        return seen

    def _journal(self, node: int) -> Journal:
        """The journal of the path to a node; the last one asked for is remembered, since it never changes."""
        if self._path is None or self._path[0] is not self.history.tree or self._path[1] != node:
            self._path = self.history.tree, node, self.history.journal_to(node)
        return self._path[2]


def exact_provenance(mode: CacheMode, held: Provenance) -> Provenance:
    """The provenance of rows that are not read from codes, in a cache of this mode that `held` describes."""
    return "recomputed" if mode.spec.recomputes else held
