"""Where sequences stood after a step, and how they came into a cache mode: the words of the journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.records import StopReason

ALL_TOKENS = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Tokens to be fed next: `token_ids` from `start` on. What is left when one was fed shares the tuple with what was
    there before, so that noting it at every step copies nothing."""

    token_ids: tuple[int, ...] = ()
    start: int = 0

    def __len__(self) -> int:
        return len(self.token_ids) - self.start

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pending):
            return NotImplemented
        if self.token_ids is other.token_ids:
            return self.start == other.start
        return self.token_ids[self.start :] == other.token_ids[other.start :]

    @property
    def first(self) -> int:
        return self.token_ids[self.start]

    @property
    def rest(self) -> Pending:
        """All but the first."""
        return Pending(self.token_ids, self.start + 1) if len(self) > 1 else Pending()

    def behind(self, token_id: int) -> Pending:
        """With a token before the first."""
        return Pending((token_id, *self.token_ids[self.start :]))


@dataclass(frozen=True, slots=True)
class Mark:
    """Where one sequence stood after a step: tokens known, rows in its cache, the token chosen next, those forced, how
    tokens are chosen."""

    length: int
    num_tokens: int
    sampled: int | None
    sampled_is_forced: bool
    forced: Pending
    stop: StopReason | None
    sampling: SamplingParams
    num_preemptions: int = 0


@dataclass(frozen=True)
class Move:
    """A sequence came into a cache mode after `step` (-1: before the first) with `num_tokens` rows: converted from the
    mode before, or filled anew. It had `had` tokens before; of the states until then those with fewer tokens than
    `known_below` can still be told, since their rows were only copied or are noted. Of the tokens it had the first
    `num_same` are still the same."""

    step: int
    num_tokens: int
    cache: CacheSpec
    is_converted: bool = False
    had: int = 0
    known_below: int = 0
    num_same: int = ALL_TOKENS


@dataclass(frozen=True)
class Moved:
    """What a change of the cache mode did with the `num_tokens` rows of a sequence: converted or computed anew, and
    whether rows were dropped right away."""

    num_tokens: int
    is_converted: bool
    has_dropped: bool = False

    def known_below(self, before: CacheSpec, after: CacheSpec) -> int:
        """States with fewer tokens can still be told once `after` has taken over: where exact rows were copied as they
        are, or dropped and noted; not the last state itself where rows of it were dropped."""
        is_copied = self.is_converted and before.is_exact
        if not (is_copied and (after.is_exact or (after.codec.is_exact and after.quantizer is None))):
            return 0
        return self.num_tokens if self.has_dropped else self.num_tokens + 1


def are_kept(num_tokens: int, later: Iterable[Move]) -> bool:
    """Whether the rows of a state with so many tokens could still be told after all of the `later` moves, bit for bit.

    Looking, going back, forking and exporting ask this of the moves that came after the state, and then the cache
    itself, which may have forgotten on its own."""
    return num_tokens == 0 or all(num_tokens < move.known_below for move in later)


@dataclass(frozen=True)
class Birth:
    """A sequence that was forked when `until` was the newest step, from what `parent` had after `step`: its first
    `length` tokens. Where that is a step of another branch, `step` is the last one that both have, and `fed_at` the
    step, with the `seq_id`, that gave it its newest logits."""

    parent: int
    step: int
    until: int
    length: int
    fed_at: tuple[int, int] | None = None


# ---- what is noted between two steps -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """A sequence begins, or begins again, without the rows of the `had` tokens that it had."""

    seq_id: int
    move: Move


@dataclass(frozen=True)
class CameInto:
    """Sequences came into another cache mode, or had rows rewritten in it."""

    moves: dict[int, Move]


@dataclass(frozen=True)
class ForkNoted:
    """A sequence was forked, with the moves of what it was forked from; no birth where no step had been done."""

    child: int
    mark: Mark
    moves: tuple[Move, ...]
    birth: Birth | None


@dataclass(frozen=True)
class Rewritten(CameInto):
    """Rows of a sequence were written by hand, and what its newest token gives was computed anew."""


Note = Begun | CameInto | ForkNoted


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where every sequence stood after a step, by `seq_id`, the cache mode of then, and what was noted between the step
    before and this one."""

    step: int
    marks: dict[int, Mark]
    cache: CacheSpec
    notes: tuple[Note, ...] = ()
