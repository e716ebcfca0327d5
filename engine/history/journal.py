"""What makes a step reversible: where every sequence stood after it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import pairwise

from engine.errors import InputError
from engine.history.marks import Birth, Checkpoint, Mark, Move, Moved, are_kept
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_label

MAX_STEPS = 1 << 17  # that can be gone back to; a step takes some 300 bytes here


class Journal:
    """Checkpoints of the latest steps in order, and which sequence was forked from which. Going back drops what came
    after the target. Up to its birth the history of a fork is its parent's."""

    def __init__(self) -> None:
        self._checkpoints: list[Checkpoint] = []
        self._births: dict[int, Birth] = {}
        self._removed: dict[int, int] = {}  # the newest step when a sequence was removed
        self._moves: dict[int, list[Move]] = {}
        self._fed: dict[int, list[int]] = {}  # the steps that fed a sequence, ascending

    def __len__(self) -> int:
        return len(self._checkpoints)

    @property
    def first_step(self) -> int:
        """The earliest step that is kept."""
        return self._checkpoints[0].step if self._checkpoints else 0

    def add(self, checkpoint: Checkpoint) -> None:
        """The newest step. A sequence that stands where it stood shares its mark with the step before."""
        before = self._checkpoints[-1].marks if self._checkpoints else {}
        for seq_id, mark in checkpoint.marks.items():
            known = before.get(seq_id)
            if known is not None and known == mark:
                checkpoint.marks[seq_id] = known
            elif mark.num_tokens and (known is None or known.num_tokens != mark.num_tokens):
                self._fed.setdefault(seq_id, []).append(checkpoint.step)
        self._checkpoints.append(checkpoint)
        if len(self._checkpoints) >= MAX_STEPS + MAX_STEPS // 8:  # in blocks: every one would move all the others
            del self._checkpoints[:-MAX_STEPS]
            for steps in self._fed.values():
                del steps[: max(0, bisect_left(steps, self.first_step) - 1)]  # who rests was fed before the first

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint of a step; steps count without gaps."""
        index = step - self.first_step
        return self._checkpoints[index] if 0 <= index < len(self._checkpoints) else None

    def back_to(self, step: int) -> None:
        while self._checkpoints and self._checkpoints[-1].step > step:
            self._checkpoints.pop()
        self._births = {child: birth for child, birth in self._births.items() if birth.until <= step}
        self._moves = {seq_id: self._moves_until(seq_id, step) for seq_id in self._moves}
        for steps in self._fed.values():
            del steps[bisect_right(steps, step) :]

    def put(self, seq_id: int, mark: Mark) -> None:
        """A sequence was added after the newest step: going back there keeps it."""
        if self._checkpoints:
            self._checkpoints[-1].marks[seq_id] = mark

    @property
    def _newest(self) -> int:
        return self._checkpoints[-1].step if self._checkpoints else -1

    def begun(self, seq_id: int, cache: CacheSpec, had: int = 0) -> None:
        """After the newest step a sequence begins, or begins again, without the rows of the tokens that it had."""
        self._moves.setdefault(seq_id, []).append(Move(self._newest, 0, cache, had=had))

    def moved(self, cache: CacheSpec, sequences: dict[int, Moved]) -> None:
        """After the newest step sequences came into another mode."""
        for seq_id, moved in sequences.items():
            moves, count = self._moves[seq_id], moved.num_tokens
            known_below = moved.known_below(moves[-1].cache, cache)
            moves.append(Move(self._newest, count, cache, moved.is_converted and count > 0, count, known_below))

    def moves(self, seq_id: int, step: int | None = None) -> list[Move]:
        """How a sequence came into the mode in which it is now, or was after `step`: from where its cache was filled
        anew, through every conversion since."""
        reached = self._moves_until(seq_id, step)
        anew = [number for number, move in enumerate(reached) if not move.is_converted]
        return reached[anew[-1] :] if anew else []

    def _moves_until(self, seq_id: int, step: int | None) -> list[Move]:
        return [move for move in self._moves.get(seq_id, ()) if step is None or move.step < step]

    def all_moves(self, seq_id: int) -> tuple[Move, ...]:
        """Every move of a sequence that can still be gone back over."""
        return tuple(self._moves.get(seq_id, ()))

    def has_moved(self, seq_id: int, step: int) -> bool:
        """Whether a sequence came into another mode, or began again, after a step: its rows may be others since."""
        return any(move.step >= step for move in self._moves.get(seq_id, ()))

    def holds(self, seq_id: int, step: int, num_tokens: int) -> bool:
        """Whether the rows of now begin with those that a sequence had after `step`, with so many tokens, as far as the
        changes of its cache mode since then go: see `are_kept`."""
        return are_kept(num_tokens, (move for move in self._moves.get(seq_id, ()) if move.step >= step))

    def remove(self, seq_id: int) -> None:
        """A sequence was removed after the newest step."""
        if self._checkpoints:
            self._removed[seq_id] = self._checkpoints[-1].step

    def removed_at(self, seq_id: int) -> int | None:
        """The newest step when a sequence was removed; None where it was not."""
        return self._removed.get(seq_id)

    def fork(self, parent: int, child: int, step: int | None, mark: Mark, cache: CacheSpec) -> None:
        """A sequence was forked from what its parent had after `step` (None: from what it has now)."""
        newest, moves = self._newest, self._moves_until(parent, step)
        if not moves:  # the parent stood there without rows, since it was added after that step
            moves.append(Move(newest, 0, cache))
        if moves[-1].cache != cache:
            count = mark.num_tokens
            known_below = Moved(count, is_converted=True).known_below(moves[-1].cache, cache)
            moves.append(Move(newest, count, cache, True, count, known_below))
        self._moves[child] = moves
        if newest >= 0:
            self._births[child] = Birth(parent, newest if step is None else step, newest)
            self.put(child, mark)

    def birth(self, seq_id: int) -> Birth | None:
        """How a sequence was forked, None where it was not or no step had been done."""
        return self._births.get(seq_id)

    def _line(self, seq_id: int, step: int) -> Iterator[tuple[int, int, int]]:
        """Whose history that of a sequence up to `step` is, from the newest back: the `seq_id`, the step after which it
        was born (-1 where it was not forked), and the last step that counts. Never empty."""
        while (birth := self._births.get(seq_id)) is not None:
            if step >= birth.until:
                yield seq_id, birth.until, step
            seq_id, step = birth.parent, min(step, birth.step)
        yield seq_id, -1, step

    def mark(self, seq_id: int, step: int) -> Mark | None:
        """Where a sequence stood after a step, or the one it was forked from."""
        owner, _, last = next(self._line(seq_id, step))
        checkpoint = self.at(last)
        return checkpoint.marks.get(owner) if checkpoint else None

    def fed_at(self, seq_id: int, step: int) -> tuple[int, int] | None:
        """The newest step up to `step` that fed a sequence, and under which `seq_id`: that of the one it was forked
        from, where it has not been fed itself."""
        if self.at(step) is None:
            return None
        for owner, born, last in self._line(seq_id, step):
            steps = self._fed.get(owner, [])
            found = bisect_right(steps, last)
            if found and steps[found - 1] > born:
                return steps[found - 1], owner
        return None

    def fed_lengths(self, seq_id: int, until: int | None = None) -> list[int]:
        """The lengths a sequence had after each step, up to `until`, that fed it: replaying them repeats its forwards
        exactly."""
        lengths: list[int] = []
        for owner, _, last in reversed([*self._line(seq_id, self._newest if until is None else until)]):
            for checkpoint in self._checkpoints[: max(0, last + 1 - self.first_step)]:
                mark = checkpoint.marks.get(owner)
                if mark is None:
                    continue
                if lengths and mark.num_tokens < lengths[-1]:
                    lengths = []  # it was preempted and began again
                if mark.num_tokens > (lengths[-1] if lengths else 0):
                    lengths.append(mark.num_tokens)
        return lengths

    @property
    def _kept(self) -> str:
        return f"steps {self.first_step} … {self._newest} are kept" if self._checkpoints else "nothing was stepped yet"

    def checkpoint_to(self, step: int, live: Iterable[int]) -> Checkpoint:
        """Where everything stood after a step, or an `InputError` that says why the `live` sequences cannot go back."""
        checkpoint = self.at(step)
        if checkpoint is None:
            raise InputError(f"There is no step {step} to go back to: {self._kept}.")
        for seq_id in live:
            birth = self.birth(seq_id)
            if birth is not None and birth.until > step:
                raise InputError(
                    f"Sequence {seq_id} was forked after step {birth.until} and was not there at step {step}: remove "
                    f"it first, or go back to step {birth.until} or later."
                )
        for seq_id, mark in checkpoint.marks.items():
            removed_at = self.removed_at(seq_id)
            if mark.num_tokens and removed_at is not None and removed_at > step:
                raise InputError(
                    f"Sequence {seq_id} was there at step {step} and was removed after step {removed_at}: its rows are "
                    f"gone. Go back to step {removed_at} or later."
                )
        return checkpoint

    def mark_to_fork(self, seq_id: int, step: int, now: CacheSpec) -> Mark:
        """Where a sequence stood after a step, or an `InputError` that says why no fork of it can begin there in the
        mode of now."""
        checkpoint, mark = self.at(step), self.mark(seq_id, step)
        if checkpoint is None:
            raise InputError(f"There is no step {step} to fork from: {self._kept}.")
        if mark is None:
            raise InputError(f"Sequence {seq_id} was not there yet at step {step}: fork it from a later step.")
        then = checkpoint.cache
        if then != now and not (then.is_exact and now.is_exact):
            raise InputError(
                f"Step {step} ran in another cache mode ({cache_label(then)}), whose rows are not those of now: "
                "rewind to that step first, then fork."
            )
        return mark

    def was_batched(self, seq_ids: AbstractSet[int]) -> bool:
        """Whether a decode step fed one of these sequences together with another one."""
        for before, after in pairwise(self._checkpoints):
            lengths = {seq_id: mark.num_tokens for seq_id, mark in before.marks.items()}
            fed = [seq_id for seq_id, mark in after.marks.items() if mark.num_tokens == lengths.get(seq_id, -1) + 1]
            if len(fed) > 1 and not seq_ids.isdisjoint(fed):
                return True
        return False
