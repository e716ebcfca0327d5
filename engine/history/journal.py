"""The journal of one path of the history tree, from the root to a node: the state of every sequence after each step,
and what changed its rows between two steps. No torch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from engine.errors import InputError
from engine.history.state import SequenceState, States
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_label

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
    the newest step of the path. If it was forked from another branch, `step` is the last step that both paths have."""

    parent: int
    step: int
    until: int
    length: int


# ---- notes between two steps -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowsMoved:
    """The rows of sequences changed: they begin without any (a new sequence, or one that was preempted and lost those
    of `had` tokens), in another cache mode, or by an edit by hand."""

    moves: dict[int, Move]


@dataclass(frozen=True)
class ForkNoted:
    """A sequence was forked, and has the moves of its parent. `birth` is None where no step had been done."""

    child: int
    moves: tuple[Move, ...]
    birth: Birth | None


Note = RowsMoved | ForkNoted


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of every sequence after a step, by `seq_id`, the cache mode then, and the notes taken since the
    previous step."""

    step: int
    marks: States
    cache: CacheSpec
    notes: tuple[Note, ...] = ()


# ---- the journal ---------------------------------------------------------------------------------------------

MAX_STEPS = 1 << 17  # steps that can be gone back to; each takes some 300 bytes here


class LineageSegment(NamedTuple):
    """A part of the history of a forked sequence, and in which sequence it took place: `owner`, up to the step `last`.
    Only its first `length` tokens are also those of the forked sequence."""

    owner: int
    last: int
    length: int


class Journal:
    """Checkpoints of the latest steps of one path, in ascending order (numbers of other branches are missing), and
    which sequence was forked from which. Notes taken between two steps are stored in the next checkpoint, so that a
    path can be cut back and its steps appended again. Up to the fork the history of a sequence is that of its
    parent."""

    def __init__(self) -> None:
        self._checkpoints: list[Checkpoint] = []
        self._steps: list[int] = []
        self._births: dict[int, Birth] = {}
        self._moves: dict[int, list[Move]] = {}
        self._notes: list[Note] = []  # since the newest step

    def __len__(self) -> int:
        return len(self._checkpoints)

    # ---- the path ------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[int]:
        """The known steps of the path, ascending."""
        return self._steps

    @property
    def first_step(self) -> int:
        """The earliest known step."""
        return self._steps[0] if self._steps else 0

    @property
    def _newest(self) -> int:
        return self._steps[-1] if self._steps else -1

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes taken since the newest step."""
        return tuple(self._notes)

    def append_known(self, checkpoint: Checkpoint) -> None:
        """Append a step that was done earlier: its notes are applied again."""
        self._notes.clear()
        for note in checkpoint.notes:
            self._apply(note)
        self.add(checkpoint)

    def add(self, checkpoint: Checkpoint) -> None:
        """Append a step that was just done; its checkpoint holds the `notes` taken before it. A sequence that has not
        changed shares its mark with the previous step, to save memory."""
        before = self._checkpoints[-1].marks if self._checkpoints else {}
        for seq_id, mark in checkpoint.marks.items():
            if (known := before.get(seq_id)) == mark and known is not None:
                checkpoint.marks[seq_id] = known
        self._checkpoints.append(checkpoint)
        self._steps.append(checkpoint.step)
        self._notes.clear()
        if len(self._checkpoints) >= MAX_STEPS + MAX_STEPS // 8:  # in blocks: each deletion moves the whole list
            del self._checkpoints[:-MAX_STEPS]
            del self._steps[:-MAX_STEPS]

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint of a step; None if it is not on the path."""
        index = bisect_left(self._steps, step)
        return self._checkpoints[index] if index < len(self._steps) and self._steps[index] == step else None

    def cut_after(self, step: int) -> None:
        """Remove all steps after `step` (-1: all), and the notes taken since the newest."""
        keep = bisect_right(self._steps, step)
        del self._checkpoints[keep:], self._steps[keep:]
        self._notes.clear()
        for child in [child for child, birth in self._births.items() if birth.until >= step]:
            del self._births[child], self._moves[child]
        self._moves = {seq_id: self._moves_until(seq_id, step) for seq_id in self._moves}

    # ---- notes between two steps ---------------------------------------------------------------------------------

    def _note(self, note: Note) -> None:
        self._notes.append(note)
        self._apply(note)

    def _apply(self, note: Note) -> None:
        match note:
            case RowsMoved(moves):
                for seq_id, move in moves.items():
                    self._moves.setdefault(seq_id, []).append(move)
            case ForkNoted(child, moves, birth):
                self._moves[child] = list(moves)
                if birth is not None:
                    self._births[child] = birth

    def restore_notes(self, notes: Iterable[Note]) -> None:
        """Discard the notes taken since the newest step, because what they describe failed, and take these instead."""
        self.cut_after(self._newest)
        for note in notes:
            self._note(note)

    def note_start(self, seq_id: int, cache: CacheSpec, had: int = 0) -> None:
        """Note that after the newest step a sequence begins without rows: a new one, or one that was preempted and
        loses the rows of the `had` tokens that it had."""
        self._note(RowsMoved({seq_id: Move(self._newest, 0, cache, had=had)}))

    def note_mode_change(self, cache: CacheSpec, sequences: dict[int, Moved]) -> None:
        """Note that after the newest step sequences changed to the cache mode `cache`."""
        made = {}
        for seq_id, moved in sequences.items():
            count = moved.num_tokens
            known_below = moved.known_below(self._moves[seq_id][-1].cache, cache)
            made[seq_id] = Move(self._newest, count, cache, moved.is_converted and count > 0, count, known_below)
        self._note(RowsMoved(made))

    def note_edit(
        self, seq_id: int, num_tokens: int, first_position: int, cache: CacheSpec, had: int, num_same: int
    ) -> None:
        """Note that after the newest step rows of a sequence from `first_position` on were edited by hand. The sequence
        had `had` tokens, of which the first `num_same` are still the same, and has `num_tokens` since. Earlier states
        that end before the position are still known."""
        move = Move(self._newest, num_tokens, cache, True, max(had, num_tokens), first_position + 1, num_same)
        self._note(RowsMoved({seq_id: move}))

    def fork(
        self,
        parent: int,
        child: int,
        step: int | None,
        mark: SequenceState,
        cache: CacheSpec,
        origin: Journal | None = None,
    ) -> None:
        """Note that `child` was forked from `parent` as it was after `step` (None: as it is now), where `mark` was its
        state. `origin` is the journal of the path of `step`; None: this path."""
        newest, source = self._newest, self if origin is None else origin
        moves = source._moves_until(parent, step)
        if not moves:  # the parent was added after that step and had no rows
            moves.append(Move(newest, 0, cache))
        if moves[-1].cache != cache:
            count = mark.num_tokens
            known_below = Moved(count, is_converted=True).known_below(moves[-1].cache, cache)
            moves.append(Move(newest, count, cache, True, count, known_below))
        birth = None
        if origin is not None and step is not None:
            common = [one for one, other in zip(self._steps, origin._steps, strict=False) if one == other]
            last = common[-1] if common else -1
            birth = Birth(parent, last, newest, len(mark.token_ids))
        elif newest >= 0:
            birth = Birth(parent, newest if step is None else step, newest, len(mark.token_ids))
        self._note(ForkNoted(child, tuple(moves), birth))

    # ---- moves ---------------------------------------------------------------------------------------------------

    def moves(self, seq_id: int, step: int | None = None) -> list[Move]:
        """How a sequence got the rows that it has now, or had after `step`: the newest move that filled its cache anew,
        and every conversion since."""
        reached = self._moves_until(seq_id, step)
        anew = [number for number, move in enumerate(reached) if not move.is_converted]
        return reached[anew[-1] :] if anew else []

    def _moves_until(self, seq_id: int, step: int | None) -> list[Move]:
        return [move for move in self._moves.get(seq_id, ()) if step is None or move.step < step]

    def all_moves(self, seq_id: int) -> tuple[Move, ...]:
        """Every move of a sequence on this path."""
        return tuple(self._moves.get(seq_id, ()))

    def has_moved(self, seq_id: int, step: int) -> bool:
        """Whether a sequence changed its cache mode, was started again, or was edited after a step: its rows may be
        others since."""
        return any(move.step >= step for move in self._moves.get(seq_id, ()))

    def num_same(self, seq_id: int, step: int) -> int:
        """How many of the first tokens that a sequence had after a step it still has; later ones were replaced by an
        edit."""
        later = (move.num_same for move in self._moves.get(seq_id, ()) if move.step >= step)
        return min(later, default=ALL_TOKENS)

    # ---- sequences and their forks -------------------------------------------------------------------------------

    def _lineage(self, seq_id: int, step: int) -> Iterator[LineageSegment]:
        """The history of a sequence up to `step` in segments, each with the sequence that it took place in: the newest
        first. Never empty."""
        length = ALL_TOKENS
        while (birth := self._births.get(seq_id)) is not None:
            if step > birth.until:
                yield LineageSegment(seq_id, step, length)
            seq_id, step, length = birth.parent, min(step, birth.step), min(length, birth.length)
        yield LineageSegment(seq_id, step, length)

    def owner(self, seq_id: int, step: int) -> tuple[int, int]:
        """The sequence that was what `seq_id` was at a step: itself, or the one that it was forked from later; and the
        step at which to look that one up."""
        segment = next(self._lineage(seq_id, step))
        return segment.owner, segment.last

    def mark(self, seq_id: int, step: int) -> SequenceState | None:
        """The mark of a sequence after a step, or of the one that it was forked from later; None where it did not exist
        or had tokens that the fork did not take."""
        segment = next(self._lineage(seq_id, step))
        mark = self.mark_of(segment.owner, segment.last)
        return mark if mark is not None and mark.num_tokens <= segment.length else None

    def mark_of(self, owner: int, step: int) -> SequenceState | None:
        """The mark of exactly this sequence after a step, without following forks."""
        checkpoint = self.at(step)
        return checkpoint.marks.get(owner) if checkpoint else None

    def fed_at(self, seq_id: int, step: int) -> tuple[int, int] | None:
        """The newest step up to `step` that fed a sequence, and the `seq_id` that it fed: the sequence itself, or the
        one that it was forked from. None where none is known."""
        mark = self.mark(seq_id, step)
        return None if mark is None else mark.fed

    def fed_lengths(self, seq_id: int, until: int | None = None) -> list[int]:
        """The length of a sequence after each step up to `until` that fed it since it last began: forwards that end at
        these lengths repeat its own exactly."""
        lengths: list[int] = []
        for segment in reversed([*self._lineage(seq_id, self._newest + 1 if until is None else until)]):
            for checkpoint in self._checkpoints[: bisect_right(self._steps, segment.last)]:
                mark = checkpoint.marks.get(segment.owner)
                if mark is None or mark.num_tokens > segment.length:
                    continue
                if lengths and mark.num_tokens < lengths[-1]:
                    lengths = []  # it was preempted, and prefilled again
                if mark.num_tokens > (lengths[-1] if lengths else 0):
                    lengths.append(mark.num_tokens)
        return lengths


def check_can_be_forked(
    seq_id: int, step: int, mark: SequenceState | None, then: CacheSpec, now: CacheSpec
) -> SequenceState:
    """The mark of a sequence after a step, or an `InputError` that says why it cannot be forked there in the present
    cache mode."""
    if mark is None:
        raise InputError(f"Sequence {seq_id} was not there yet at step {step}: fork it from a later step.")
    if then != now and not (then.is_exact and now.is_exact):
        raise InputError(
            f"Step {step} ran in another cache mode ({cache_label(then)}), whose rows are not those of now: "
            "go to that step first, then fork."
        )
    return mark
