"""The fold of history: what a session knows of its sequences after each change and each step. Used by the engine, by
saved sessions, and by whoever shows one; rows, logits and texts are elsewhere. Where the rows of a sequence come from
is known to the engine alone. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from engine.spec.cache import CacheSpec
from engine.spec.edit import BiasLogits, Edit, ReplaceTokens
from engine.spec.sampling import Chat, LogitBias, SamplingParams
from engine.wire.records import (
    Change,
    EditMade,
    ModeChanged,
    PromptAppended,
    SamplingChanged,
    SequenceAdded,
    SequenceForked,
    SequencePhase,
    SequenceRemoved,
    SequenceStopped,
    StopReason,
    TokensForced,
)
from engine.wire.tree import PlannedPart, PlannedStep

T = TypeVar("T")


class SharedList(Sequence[T]):
    """The first `count` items of a list that only grows: an immutable view. Longer and shorter views share the list as
    long as they agree, so that one for every step copies nothing; where they part, the longer one is copied once."""

    __slots__ = ("_count", "_items")

    def __init__(self, items: Iterable[T] = (), count: int | None = None) -> None:
        self._items: list[T] = items if isinstance(items, list) else list(items)
        self._count = len(self._items) if count is None else count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            return self._items[start:stop] if step == 1 else [self._items[n] for n in range(start, stop, step)]
        if not -self._count <= index < self._count:
            raise IndexError(f"item {index} of {self._count}")
        return self._items[index if index >= 0 else self._count + index]

    def __iter__(self) -> Iterator[T]:
        return map(self._items.__getitem__, range(self._count))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedList) and other._items is self._items:
            return other._count == self._count
        if not isinstance(other, SharedList | list | tuple):
            return NotImplemented
        return len(other) == self._count and self[:] == (other[:] if isinstance(other, SharedList) else [*other])

    def __hash__(self) -> int:
        return hash((self._count, *self[-1:]))

    def __repr__(self) -> str:
        return repr(self[:])

    def first(self, count: int) -> SharedList[T]:
        """The first `count` items, or all of fewer; copies nothing."""
        return self if count >= self._count else SharedList(self._items, count)

    def extended(self, items: Iterable[T]) -> SharedList[T]:
        """This list and the items behind it. Copies nothing unless another view has grown differently."""
        new = [*items]
        count = self._count + len(new)
        if len(self._items) == self._count:
            self._items += new
        elif self._items[self._count : count] != new:
            return SharedList([*self[:], *new])
        return SharedList(self._items, count)

    def replaced(self, start: int, stop: int, items: Iterable[T]) -> SharedList[T]:
        """A copy with the items `start … stop` replaced by others."""
        return SharedList([*self[:start], *items, *self[stop:]])

    def shares_with(self, other: SharedList[T]) -> bool:
        """Whether both are views of one list."""
        return self._items is other._items


def mapped(lists: Iterable[SharedList[T]], change: Callable[[T], T]) -> list[SharedList[T]]:
    """The lists with every item changed; those that shared their items still do, and one of which no item changes
    stays itself."""
    made: dict[int, list[T]] = {}
    found = []
    for each in lists:
        items = made.get(id(each._items))
        if items is None:
            items = [*map(change, each._items)]
            items = each._items if all(map(is_, items, each._items)) else items
            made[id(each._items)] = items
        found.append(each if items is each._items else SharedList(items, len(each)))
    return found


def num_shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many of the first items are the same objects; O(1) for views of one list."""
    least = min(len(one), len(other))
    if isinstance(one, SharedList) and isinstance(other, SharedList) and one.shares_with(other):
        return least
    return next((n for n in range(least) if one[n] is not other[n]), least)


UNKNOWN = -1  # stands for a token that a file does not contain


def to_force(token_ids: Sequence[int]) -> SharedList[int]:
    """Tokens to be computed next, as a state holds them: the first one last, so that what is left after it was computed
    shares the list, and the state after every step copies nothing."""
    return SharedList(token_ids[::-1])


NO_IDS: SharedList[int] = SharedList()


# ---- where the rows of a sequence come from ----------------------------------------------------------------------

ALL_TOKENS = 1 << 62


def num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading tokens of two lists, or characters of two texts, are equal."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:  # the usual case, and much faster
        return shorter
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


@dataclass(frozen=True)
class Move:
    """A change, after `step` (-1: before the first), of all rows of a sequence: its cache began empty, changed to the
    mode `cache`, or was edited by hand. `num_tokens` are the tokens with rows after it, `had` those before.
    `is_converted`: the rows come from those before, not from the tokens. Earlier states with fewer tokens than
    `known_below` are still known, since their rows were only copied or are in the cache's log. The first `num_same`
    tokens are the same as before."""

    step: int
    num_tokens: int
    cache: CacheSpec
    is_converted: bool = False
    had: int = 0
    known_below: int = 0
    num_same: int = ALL_TOKENS

    @classmethod
    def to_mode(
        cls, step: int, num_tokens: int, before: CacheSpec, after: CacheSpec, *, is_converted: bool, has_evicted: bool
    ) -> Move:
        """The change of a sequence to another cache mode; `has_evicted`: rows were evicted at once. Exact rows are
        copied as they are, or evicted and logged; the last state itself is not known if rows of it were evicted."""
        is_copied = is_converted and before.is_exact
        is_known = is_copied and after.holds_exact_rows
        known_below = num_tokens + (not has_evicted) if is_known else 0
        return cls(step, num_tokens, after, is_converted and num_tokens > 0, num_tokens, known_below)


def are_kept(num_tokens: int, later: Iterable[Move]) -> bool:
    """Whether the rows of a state with `num_tokens` tokens are still known, bit for bit, after all of the `later`
    moves.

    Slices, going back, forking and exporting check this first, and then the cache itself, which may have evicted rows
    without a move."""
    return num_tokens == 0 or all(num_tokens < move.known_below for move in later)


@dataclass(frozen=True)
class Origin:
    """Where a sequence was forked: it took the first `length` tokens that `parent` had after `step`, when `until` was
    the newest step of the path. If it was forked from another branch, `step` is the last step that both paths have."""

    parent: int
    step: int
    until: int
    length: int


class SequenceState(Struct, frozen=True, gc=False):
    """One sequence after a step. The first `num_tokens` of its `token_ids` have rows in the cache. `sampled`, chosen
    with `sampling`, is computed next, then the tokens in `forced`, of which the last one comes first. `chat` is the
    conversation that its prompt was rendered from. `computed_by` is the newest node that computed tokens or rows of it,
    and the sequence that it did so for: this one, or that which it was forked from. Immutable: a change or a step gives
    another state, which shares the tokens.

    In the engine, `moves` say how its rows changed as a whole, and `origins` from which sequences it was forked, itself
    first; both empty elsewhere.

    ::

        |------------- token_ids -------------| sampled | forced ...
        |--- num_tokens ---|--- to prefill ---|
    """

    token_ids: SharedList[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    num_tokens: int = 0
    sampled: int | None = None
    sampled_is_forced: bool = False
    forced: SharedList[int] = NO_IDS
    stop: StopReason | None = None
    num_preemptions: int = 0
    chat: Chat | None = None
    computed_by: tuple[int, int] | None = None
    moves: tuple[Move, ...] = ()
    origins: tuple[Origin, ...] = ()

    @classmethod
    def of_prompt(cls, token_ids: Iterable[int], sampling: SamplingParams, chat: Chat | None = None) -> SequenceState:
        """A new sequence, of which nothing is computed yet."""
        ids = SharedList(token_ids)
        return cls(ids, len(ids), sampling, chat=chat)

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens have no rows yet, so that the next step is a prefill chunk."""
        return self.num_tokens < len(self.token_ids)

    @property
    def has_work(self) -> bool:
        """Whether a step can compute it: it has not ended, and a token is there to be computed."""
        return self.stop is None and (self.sampled is not None or self.is_prefilling)

    @property
    def phase(self) -> SequencePhase:
        if self.stop is not None:
            return "finished"
        if self.num_tokens == 0:
            return "waiting"
        return "prefill" if self.is_prefilling else "decode"

    def next_ids(self, chunk: int) -> list[int]:
        """The tokens to compute next: up to `chunk` tokens of the prompt, or the sampled one."""
        if self.is_prefilling:
            return self.token_ids[self.num_tokens : self.num_tokens + chunk]
        assert self.sampled is not None
        return [self.sampled]

    # ---- a step --------------------------------------------------------------------------------------------------

    def step(self, part: PlannedPart, node: int) -> SequenceState:
        """After a step, which is that node, computed tokens of it. O(new tokens)."""
        newest = self.sampled if part.token_id is None else part.token_id
        computed = self.computed(part.num_tokens, newest, (node, part.seq_id))
        return computed if part.sampled is None else computed.chosen(part.sampled, part.stop)

    def computed(self, num_tokens: int, newest: int | None, computed_by: tuple[int, int]) -> SequenceState:
        """After K and V of its first `num_tokens` tokens were computed, of which `newest` is the last, by the (step,
        seq_id) `computed_by`. If it had fewer, those before that one are unknown."""
        ids, missing = self.token_ids, num_tokens - len(self.token_ids)
        if missing > 0:
            ids = ids.extended([*[UNKNOWN] * (missing - 1), UNKNOWN if newest is None else newest])
        return replace(self, token_ids=ids, num_tokens=num_tokens, computed_by=computed_by)

    def chosen(self, token_id: int, stop: StopReason | None) -> SequenceState:
        """After this token was chosen to be computed next, unless a forced token comes first. `stop`: why it ends
        here."""
        if self.forced:
            return self._with_forced(self.forced, stop)
        return replace(self, sampled=token_id, sampled_is_forced=False, stop=stop)

    def preempted(self) -> SequenceState:
        """After its rows were freed. Its tokens and the next one are kept, and are prefilled again later."""
        forced = self.forced
        if self.sampled_is_forced and self.sampled is not None:
            forced = SharedList([*forced, self.sampled])  # the prefill samples again, and a forced token must stay
        count = self.num_preemptions + 1
        return replace(self, num_tokens=0, forced=forced, sampled_is_forced=False, num_preemptions=count)

    # ---- its rows ------------------------------------------------------------------------------------------------

    def moved(self, move: Move) -> SequenceState:
        """After this change of all its rows."""
        return replace(self, moves=(*self.moves, move))

    @property
    def stages(self) -> tuple[Move, ...]:
        """How it got the rows that it has: the newest move that filled its cache anew, and every conversion since."""
        anew = [number for number, move in enumerate(self.moves) if not move.is_converted]
        return self.moves[anew[-1] :] if anew else ()

    def moves_since(self, step: int) -> tuple[Move, ...]:
        """The moves after a step: its cache mode was changed, it was started again, or it was edited, so that its rows
        may be others."""
        return tuple([move for move in self.moves if move.step >= step])

    def num_same(self, step: int) -> int:
        """How many of the first tokens that it had after a step it still has; later ones were replaced by an edit."""
        return min((move.num_same for move in self.moves_since(step)), default=ALL_TOKENS)

    # ---- a change ------------------------------------------------------------------------------------------------

    def edited(self, edit: Edit, node: int) -> SequenceState:
        """After an edit that was made on it became part of a node."""
        return self if isinstance(edit, BiasLogits) else replace(self, computed_by=(node, edit.seq_id))

    def apply(self, change: Change) -> SequenceState:
        """After a change that was made to it. Changes that only concern rows, or its cache, leave it as it is."""
        match change:
            case PromptAppended(_, token_ids, sampling, chat):
                ids = self.token_ids.extended(token_ids)
                return SequenceState(
                    ids, len(ids), sampling, self.num_tokens, num_preemptions=self.num_preemptions, chat=chat,
                    moves=self.moves, origins=self.origins,
                )  # fmt: skip
            case SequenceStopped():
                return replace(self, stop=self.stop or "stopped")
            case TokensForced(_, token_ids):
                return self._force(to_force(token_ids))
            case SamplingChanged(_, sampling):
                is_lifted = self.stop == "length" and sampling.max_new_tokens is None
                return replace(self, sampling=sampling, stop=None if is_lifted else self.stop)
            case EditMade(ReplaceTokens() as edit):
                return self._replace(edit)
            case EditMade(BiasLogits() as edit):
                return replace(self, sampling=replace(self.sampling, bias=LogitBias.of(edit)))
            case _:
                return self

    def forked(self, num_tokens: int | None = None) -> SequenceState:
        """A fork of it; with `num_tokens` of its first tokens alone, which have rows, and nothing chosen to follow."""
        if num_tokens is None:
            return replace(self, num_preemptions=0)
        ids, count = self.token_ids.first(num_tokens), min(self.num_tokens, num_tokens)
        return SequenceState(
            ids, self.num_prompt_tokens, self.sampling, count, chat=self.chat, moves=self.moves, origins=self.origins
        )

    def _with_forced(self, forced: SharedList[int], stop: StopReason | None) -> SequenceState:
        rest = forced.first(len(forced) - 1)
        return replace(self, sampled=forced[-1], sampled_is_forced=True, forced=rest, stop=stop)

    def _force(self, forced: SharedList[int]) -> SequenceState:
        """Schedule these tokens next, the first in place of the token already chosen."""
        # a forced token continues a sequence that has ended, unless there is no room for it
        stop = self.stop if self.stop in ("context full", "cache full") else None
        if self.is_prefilling:
            return replace(self, forced=forced, stop=stop)
        return self._with_forced(forced, stop)

    def _replace(self, edit: ReplaceTokens) -> SequenceState:
        ids = self.token_ids.replaced(edit.position, edit.stop, edit.token_ids)
        if edit.how == "overwrite":
            return replace(self, token_ids=ids)
        num_prompt = self.num_prompt_tokens
        if edit.position < num_prompt:
            num_prompt = edit.position + len(edit.token_ids) + max(0, num_prompt - edit.stop)
        return replace(self, token_ids=ids, num_tokens=len(ids), num_prompt_tokens=num_prompt)


States = dict[int, SequenceState]  # of all sequences at one node, by `seq_id`


def apply(states: States, change: Change, node: int, past: Callable[[int], States | None]) -> None:
    """Apply a change that a node carries to the states of all sequences; `past` has those after an earlier step of
    any branch, None where it is not known. A change of a sequence that is missing is ignored."""
    match change:
        case SequenceAdded(seq_id, token_ids, sampling, chat):
            states[seq_id] = SequenceState.of_prompt(token_ids, sampling, chat)
        case SequenceForked(seq_id, parent, at, num_tokens):
            then = None if at is None else past(at)
            if (source := (states if then is None else then).get(parent)) is not None:
                states[seq_id] = source.forked(num_tokens)
        case SequenceRemoved(seq_id):
            states.pop(seq_id, None)
        case ModeChanged():
            pass
        case EditMade(edit):
            if (state := states.get(edit.seq_id)) is not None:
                states[edit.seq_id] = state.apply(change).edited(edit, node)
        case _:
            if change.seq_id in states:
                states[change.seq_id] = states[change.seq_id].apply(change)


def step(states: States, work: PlannedStep, node: int) -> None:
    """Apply a step, which is that node, to the states of all sequences. One of which nothing was said begins with
    unknown tokens."""
    for seq_id in work.preempted:
        if seq_id in states and states[seq_id].num_tokens:
            states[seq_id] = states[seq_id].preempted()
    for part in work.parts:
        state = states.get(part.seq_id) or SequenceState.of_prompt((), SamplingParams())
        states[part.seq_id] = state.step(part, node)
