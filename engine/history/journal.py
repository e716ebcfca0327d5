"""One path of the history tree, from the root to the live moment: where every sequence stood after each step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from engine.errors import InputError
from engine.history.marks import (
    ALL_TOKENS,
    Begun,
    Birth,
    CameInto,
    Checkpoint,
    ForkNoted,
    Mark,
    Move,
    Moved,
    Note,
    Rewritten,
    are_kept,
)
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_label

Noted = tuple[int, dict[int, int]]  # how many notes, and how many moves of each sequence
MAX_STEPS = 1 << 17  # that can be gone back to; a step takes some 300 bytes here


class _Past(NamedTuple):
    """A part of the history of a sequence: that of `owner`, from behind the step after which it was `born` (-1 where it
    was not forked) up to the `last` one that counts, as far as it had the first `length` tokens and no others."""

    owner: int
    born: int
    last: int
    length: int


class Journal:
    """Checkpoints of the latest steps of a path in ascending order, with gaps where other branches were made, and which
    sequence was forked from which. What is noted between two steps goes with the next checkpoint, so that a path can be
    cut back and put on again. Up to its birth the history of a fork is its parent's."""

    def __init__(self) -> None:
        self._checkpoints: list[Checkpoint] = []
        self._steps: list[int] = []
        self._births: dict[int, Birth] = {}
        self._moves: dict[int, list[Move]] = {}
        self._fed: dict[int, list[int]] = {}  # the steps that fed a sequence, ascending
        self._notes: list[Note] = []  # since the newest step
        self._forked: dict[int, Mark] = {}  # since the newest step: what forks began with

    def __len__(self) -> int:
        return len(self._checkpoints)

    # ---- the path ------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[int]:
        """The steps of the path that are kept, ascending."""
        return self._steps

    @property
    def first_step(self) -> int:
        """The earliest step that is kept."""
        return self._steps[0] if self._steps else 0

    @property
    def _newest(self) -> int:
        return self._steps[-1] if self._steps else -1

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was noted since the newest step."""
        return tuple(self._notes)

    def add(self, checkpoint: Checkpoint) -> None:
        """The newest step; it has the `notes` of before."""
        self._append(checkpoint)

    def put_on(self, checkpoint: Checkpoint) -> None:
        """A step that was cut off is the newest again."""
        self._discard_notes()
        for note in checkpoint.notes:
            self._apply(note)
        self._append(checkpoint)

    def _append(self, checkpoint: Checkpoint) -> None:
        """A sequence that stands where it stood shares its mark with the step before."""
        before = self._checkpoints[-1].marks if self._checkpoints else {}
        rewritten = {i for note in checkpoint.notes if isinstance(note, Rewritten) for i in note.moves}
        for seq_id in rewritten & checkpoint.marks.keys():
            self._fed.setdefault(seq_id, []).append(checkpoint.step)
        for seq_id, mark in checkpoint.marks.items():
            known = before.get(seq_id) or self._forked.get(seq_id)
            if known is not None and known == mark:
                checkpoint.marks[seq_id] = known
            elif seq_id not in rewritten and mark.num_tokens and (known is None or known.num_tokens != mark.num_tokens):
                self._fed.setdefault(seq_id, []).append(checkpoint.step)
        self._checkpoints.append(checkpoint)
        self._steps.append(checkpoint.step)
        self._notes.clear()
        self._forked.clear()
        if len(self._checkpoints) >= MAX_STEPS + MAX_STEPS // 8:  # in blocks: every one would move all the others
            del self._checkpoints[:-MAX_STEPS]
            del self._steps[:-MAX_STEPS]
            for steps in self._fed.values():
                del steps[: max(0, bisect_left(steps, self.first_step) - 1)]  # who rests was fed before the first

    def _discard_notes(self) -> None:
        self._notes.clear()
        self._forked.clear()

    def copied(self) -> Journal:
        """The same path, with lists of its own."""
        made = Journal()
        made._checkpoints, made._steps, made._notes = [*self._checkpoints], [*self._steps], [*self._notes]
        made._births, made._forked = {**self._births}, {**self._forked}
        made._moves = {seq_id: [*moves] for seq_id, moves in self._moves.items()}
        made._fed = {seq_id: [*steps] for seq_id, steps in self._fed.items()}
        return made

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint of a step of the path."""
        index = bisect_left(self._steps, step)
        return self._checkpoints[index] if index < len(self._steps) and self._steps[index] == step else None

    def back_to(self, step: int) -> None:
        """Cut off what came after a step (-1: all), what was noted since included."""
        keep = bisect_right(self._steps, step)
        del self._checkpoints[keep:], self._steps[keep:]
        self._discard_notes()
        self._births = {child: birth for child, birth in self._births.items() if birth.until < step}
        self._moves = {seq_id: self._moves_until(seq_id, step) for seq_id in self._moves}
        for steps in self._fed.values():
            del steps[bisect_right(steps, step) :]

    # ---- what is noted between two steps -------------------------------------------------------------------------

    def _note(self, note: Note) -> None:
        self._notes.append(note)
        self._apply(note)

    def _apply(self, note: Note) -> None:
        match note:
            case Begun(seq_id, move):
                self._moves.setdefault(seq_id, []).append(move)
            case CameInto(moves):
                for seq_id, move in moves.items():
                    self._moves.setdefault(seq_id, []).append(move)
            case ForkNoted(child, mark, moves, birth):
                self._moves[child] = list(moves)
                self._forked[child] = mark
                if birth is not None:
                    self._births[child] = birth

    def num_noted(self) -> Noted:
        """How much was noted since the newest step, to come back to."""
        return len(self._notes), {seq_id: len(moves) for seq_id, moves in self._moves.items()}

    def forget_notes_after(self, known: Noted) -> None:
        """What was noted since then failed."""
        for note in self._notes[known[0] :]:
            if isinstance(note, ForkNoted):
                self._births.pop(note.child, None)
                self._forked.pop(note.child, None)
        del self._notes[known[0] :]
        for seq_id, moves in self._moves.items():
            del moves[known[1].get(seq_id, 0) :]

    def begun(self, seq_id: int, cache: CacheSpec, had: int = 0) -> None:
        """After the newest step a sequence begins, or begins again, without the rows of the tokens that it had."""
        self._note(Begun(seq_id, Move(self._newest, 0, cache, had=had)))

    def moved(self, cache: CacheSpec, sequences: dict[int, Moved]) -> None:
        """After the newest step sequences came into another mode."""
        made = {}
        for seq_id, moved in sequences.items():
            count = moved.num_tokens
            known_below = moved.known_below(self._moves[seq_id][-1].cache, cache)
            made[seq_id] = Move(self._newest, count, cache, moved.is_converted and count > 0, count, known_below)
        self._note(CameInto(made))

    def rewrote(
        self, seq_id: int, num_tokens: int, first_position: int, cache: CacheSpec, had: int, num_same: int
    ) -> None:
        """After the newest step rows of a sequence from a position on were written by hand. It has `num_tokens` since
        and had `had`, of which the first `num_same` are still the same: of the states until then those that end before
        the position can still be told."""
        move = Move(self._newest, num_tokens, cache, True, max(had, num_tokens), first_position + 1, num_same)
        self._note(Rewritten({seq_id: move}))

    def fork(
        self, parent: int, child: int, step: int | None, mark: Mark, cache: CacheSpec, origin: Journal | None = None
    ) -> None:
        """A sequence was forked from what its parent had after `step` (None: from what it has now); `origin` is the
        path of that step where it is another one."""
        newest, source = self._newest, self if origin is None else origin
        moves = source._moves_until(parent, step)
        if not moves:  # the parent stood there without rows, since it was added after that step
            moves.append(Move(newest, 0, cache))
        if moves[-1].cache != cache:
            count = mark.num_tokens
            known_below = Moved(count, is_converted=True).known_below(moves[-1].cache, cache)
            moves.append(Move(newest, count, cache, True, count, known_below))
        birth = None
        if origin is not None and step is not None:
            common = [one for one, other in zip(self._steps, origin._steps, strict=False) if one == other]
            last = common[-1] if common else -1
            birth = Birth(parent, last, newest, mark.length, origin.fed_at(parent, step))
        elif newest >= 0:
            birth = Birth(parent, newest if step is None else step, newest, mark.length)
        self._note(ForkNoted(child, mark, tuple(moves), birth))

    # ---- moves ---------------------------------------------------------------------------------------------------

    def moves(self, seq_id: int, step: int | None = None) -> list[Move]:
        """How a sequence came into the mode in which it is now, or was after `step`: from where its cache was filled
        anew, through every conversion since."""
        reached = self._moves_until(seq_id, step)
        anew = [number for number, move in enumerate(reached) if not move.is_converted]
        return reached[anew[-1] :] if anew else []

    def _moves_until(self, seq_id: int, step: int | None) -> list[Move]:
        return [move for move in self._moves.get(seq_id, ()) if step is None or move.step < step]

    def all_moves(self, seq_id: int) -> tuple[Move, ...]:
        """Every move of a sequence on this path."""
        return tuple(self._moves.get(seq_id, ()))

    def has_moved(self, seq_id: int, step: int) -> bool:
        """Whether a sequence came into another mode, or began again, after a step: its rows may be others since."""
        return any(move.step >= step for move in self._moves.get(seq_id, ()))

    def num_same(self, seq_id: int, step: int) -> int:
        """Of the tokens that a sequence had after a step, how many of the first ones it still has: those behind them
        were replaced by hand since."""
        later = (move.num_same for move in self._moves.get(seq_id, ()) if move.step >= step)
        return min(later, default=ALL_TOKENS)

    def holds(self, seq_id: int, step: int, num_tokens: int) -> bool:
        """Whether the rows of now begin with those that a sequence had after `step`, with so many tokens, as far as the
        changes of its cache mode since then go: see `are_kept`."""
        return are_kept(num_tokens, (move for move in self._moves.get(seq_id, ()) if move.step >= step))

    # ---- sequences and their forks -------------------------------------------------------------------------------

    def birth(self, seq_id: int) -> Birth | None:
        """How a sequence was forked, None where it was not or no step had been done."""
        return self._births.get(seq_id)

    def _line(self, seq_id: int, step: int) -> Iterator[_Past]:
        """Whose history that of a sequence up to `step` is, from the newest back. Never empty."""
        length = ALL_TOKENS
        while (birth := self._births.get(seq_id)) is not None:
            if step > birth.until:
                yield _Past(seq_id, birth.until, step, length)
            seq_id, step, length = birth.parent, min(step, birth.step), min(length, birth.length)
        yield _Past(seq_id, -1, step, length)

    def owner(self, seq_id: int, step: int) -> tuple[int, int]:
        """Whose history that of a sequence is at a step, its own or that of the one it was forked from later, and the
        last step of that which counts."""
        past = next(self._line(seq_id, step))
        return past.owner, past.last

    def mark(self, seq_id: int, step: int) -> Mark | None:
        """Where a sequence stood after a step, or the one it was forked from, with tokens that both have."""
        past = next(self._line(seq_id, step))
        mark = self.mark_of(past.owner, past.last)
        return mark if mark is not None and mark.num_tokens <= past.length else None

    def mark_of(self, owner: int, step: int) -> Mark | None:
        """Where the sequence of that very number stood after a step."""
        checkpoint = self.at(step)
        return checkpoint.marks.get(owner) if checkpoint else None

    def fed_at(self, seq_id: int, step: int) -> tuple[int, int] | None:
        """The newest step up to `step` that fed a sequence, and under which `seq_id`: that of the one it was forked
        from, where it has not been fed itself."""
        if self.at(step) is None:
            return None
        for past in self._line(seq_id, step):
            steps = self._fed.get(past.owner, [])
            found = bisect_right(steps, past.last)
            if found and steps[found - 1] > past.born:
                mark = self.mark_of(past.owner, steps[found - 1])
                has_others = mark is not None and mark.num_tokens > past.length
                return None if has_others else (steps[found - 1], past.owner)
            birth = self._births.get(past.owner)
            if birth is not None and birth.until == past.born and birth.fed_at is not None:
                return birth.fed_at
        return None

    def fed_lengths(self, seq_id: int, until: int | None = None) -> list[int]:
        """The lengths a sequence had after each step, up to `until`, that fed it: replaying them repeats its forwards
        exactly."""
        lengths: list[int] = []
        for past in reversed([*self._line(seq_id, self._newest + 1 if until is None else until)]):
            for checkpoint in self._checkpoints[: bisect_right(self._steps, past.last)]:
                mark = checkpoint.marks.get(past.owner)
                if mark is None or mark.num_tokens > past.length:
                    continue
                if lengths and mark.num_tokens < lengths[-1]:
                    lengths = []  # it was preempted and began again
                if mark.num_tokens > (lengths[-1] if lengths else 0):
                    lengths.append(mark.num_tokens)
        return lengths


def check_can_be_forked(seq_id: int, step: int, mark: Mark | None, then: CacheSpec, now: CacheSpec) -> Mark:
    """Where a sequence stood after a step, or an `InputError` that says why no fork of it can begin there in the mode
    of now."""
    if mark is None:
        raise InputError(f"Sequence {seq_id} was not there yet at step {step}: fork it from a later step.")
    if then != now and not (then.is_exact and now.is_exact):
        raise InputError(
            f"Step {step} ran in another cache mode ({cache_label(then)}), whose rows are not those of now: "
            "go to that step first, then fork."
        )
    return mark
