"""The data of the journal: the state of sequences after a step, and what changed their rows between steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.history.state import SequenceState, States
from engine.spec.cache import CacheSpec

ALL_TOKENS = 1 << 62


@dataclass(frozen=True)
class Move:
    """A change, after `step` (-1: before the first), of all rows of a sequence: its cache began empty, changed to the
    mode `cache`, or was edited by hand. `num_tokens` are the tokens with rows after it, `had` those before.
    `is_converted`: the rows come from those before, not from the tokens. Earlier states with fewer tokens than
    `known_below` are still known, since their rows were only copied or are in the cache's journal. The first `num_same`
    tokens are the same as before."""

    step: int
    num_tokens: int
    cache: CacheSpec
    is_converted: bool = False
    had: int = 0
    known_below: int = 0
    num_same: int = ALL_TOKENS


@dataclass(frozen=True)
class Moved:
    """What a change of the cache mode did with the `num_tokens` rows of a sequence: whether they were converted (else
    computed anew), and whether some were evicted at once."""

    num_tokens: int
    is_converted: bool
    has_dropped: bool = False

    def known_below(self, before: CacheSpec, after: CacheSpec) -> int:
        """Earlier states with fewer tokens than this are still known after the change from `before` to `after`: exact
        rows were copied as they are, or evicted and journaled. The last state itself is not known if rows of it were
        evicted."""
        is_copied = self.is_converted and before.is_exact
        if not (is_copied and (after.is_exact or (after.codec.is_exact and after.quantizer is None))):
            return 0
        return self.num_tokens if self.has_dropped else self.num_tokens + 1


def are_kept(num_tokens: int, later: Iterable[Move]) -> bool:
    """Whether the rows of a state with `num_tokens` tokens are still known, bit for bit, after all of the `later`
    moves.

    Slices, going back, forking and exporting check this first, and then the cache itself, which may have evicted rows
    without a move."""
    return num_tokens == 0 or all(num_tokens < move.known_below for move in later)


@dataclass(frozen=True)
class Birth:
    """Where a sequence was forked: it took the first `length` tokens that `parent` had after `step`, when `until` was
    the newest step of the path. If it was forked from another branch, `step` is the last step that both paths have, and
    `fed_at` the (step, seq_id) on that branch that gave it its newest logits."""

    parent: int
    step: int
    until: int
    length: int
    fed_at: tuple[int, int] | None = None


# ---- notes between two steps -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """A sequence begins without rows: it is new, or it was preempted and lost those of `move.had` tokens."""

    seq_id: int
    move: Move


@dataclass(frozen=True)
class RowsMoved:
    """The rows of sequences changed: another cache mode, or an edit by hand."""

    moves: dict[int, Move]


@dataclass(frozen=True)
class ForkNoted:
    """A sequence was forked, and has the moves of its parent. `birth` is None where no step had been done."""

    child: int
    mark: SequenceState
    moves: tuple[Move, ...]
    birth: Birth | None


@dataclass(frozen=True)
class Rewritten(RowsMoved):
    """Rows of a sequence were edited by hand, and the logits of its newest token were computed again."""


Note = Begun | RowsMoved | ForkNoted


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of every sequence after a step, by `seq_id`, the cache mode then, and the notes taken since the
    previous step."""

    step: int
    marks: States
    cache: CacheSpec
    notes: tuple[Note, ...] = ()
