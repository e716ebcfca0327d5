"""Two runs in lock-step: side B is fed the tokens of side A, and what differs is told step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from engine.analysis.duel.compare import first_departure, not_compared, step_of
from engine.analysis.duel.difference import DifferenceAt, NowAt
from engine.analysis.duel.pictures import attention_difference, drawn
from engine.analysis.duel.sides import LiveRun, LiveSide, check_comparable
from engine.analysis.tolerance import tolerance_between
from engine.common_prefix import num_common
from engine.errors import InputError
from engine.look.rows_at import RowsAt
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from engine.wire.duel import DuelScanned, DuelStarted, DuelStep, Parting
from engine.wire.requests import AttentionRequest, Side, SliceRequest
from engine.wire.slices import Slice


class Duel:
    """A run and another one beside it. `catch_up()` brings B to where A is; a `follower` makes B go on with A.

    Rows are compared as both sides held them with the same number of tokens; `compares_with_now`: as A holds them now,
    where B is an earlier step of A itself and they would be the same otherwise. Of its steps nothing is compared then.
    `are_branches`: they are compared behind their parting too, position by position, and every such step says so.
    Where A is kept in another mode, its steps are compared anew: those that it did in that mode.
    """

    def __init__(
        self,
        a: LiveSide,
        b: LiveSide,
        text_of: Callable[[int], str],
        follower: DuelFollower | None = None,
        *,
        compares_with_now: bool = False,
        are_branches: bool = False,
    ) -> None:
        self.no_rows = check_comparable(a, b)
        self.a, self.b, self._text_of, self._follower = a, b, text_of, follower
        self.compares_with_now, self._are_branches = compares_with_now, are_branches
        self._fed: list[int] = []  # to A, when it was last compared
        self.tolerance = tolerance_between(a.side().dtype, b.side().dtype)
        self.steps: list[DuelStep] = []
        self._mode = a.mode
        if not a.num_tokens:
            raise InputError("There is nothing to compare yet: run a prompt first.")

    def check_common(self) -> None:
        """Raises `InputError` where the two have no token in common: whose tokens are not known have none."""
        if not num_common(self.a.token_ids, self.b.token_ids):
            raise InputError(
                f"{self.a.side().name} and {self.b.side().name} begin with other tokens: compare runs of one text."
            )

    def close(self) -> None:
        """Let go of what only this duel holds."""
        self.a.close()
        self.b.close()

    def started(self) -> DuelStarted:
        """Both sides, and every step compared so far."""
        layers = tuple(layer.index for layer in self.a.geometry.attention_layers)
        return DuelStarted(
            self.a.seq_id, self.a.side(), self.b.side(), layers, tuple(self.steps), self.no_rows, self.tolerance.logit
        )

    @property
    def is_behind(self) -> bool:
        """Whether B has tokens to read."""
        return self._follower is not None and self.b.num_tokens < self.a.num_tokens

    def catch_up(self, check: Callable[[], None] | None = None) -> Iterator[DuelStep | tuple[int, int]]:
        """Bring B to the tokens of A and compare wherever both have the same number of them; yields each comparison,
        or how many tokens B has, of how many. `check` is called between the layers of a prefill, and raises to stop."""
        self._forget_what_changed()
        parting = self._parting() if self._are_branches else None
        last = self.steps[-1].num_tokens if self.steps else 0
        wanted, common = set(self.a.lengths(last)), num_common(self.a.token_ids, self.b.token_ids)
        for count in sorted(wanted.intersection(self.b.lengths(last))):
            if count <= common:
                yield self._compare(count)
            elif parting is not None:
                yield self._compare(count, parting)
        is_followed = self._follower is not None and (wanted or common < self.a.num_tokens)
        if not is_followed and common > (self.steps[-1].num_tokens if self.steps else 0):
            self.steps.append(replace(not_compared(self.a, common), parting=self._parting()))
            if self._follower is None:  # what is drawn is drawn of a step, whether both kept numbers of it or not
                yield self.steps[-1]
        for count in self._follower.follow(self.a.token_ids, check) if self._follower is not None else ():
            yield self._compare(count) if count in wanted else (count, self.a.num_tokens)

    def scan(self, check: Callable[[], None] = lambda: None) -> DuelScanned | None:
        """All rows that both hold now; None where there are none to compare. `check` raises to stop."""
        count = num_common(self.a.token_ids, self.b.token_ids)
        if self.no_rows or not count:
            return None
        layers = self.a.geometry.attention_layers
        return DuelScanned(count, first_departure(*self._pasts(count), layers, self.tolerance, check))

    def slice(self, request: SliceRequest, side: Side) -> Slice:
        """One picture of a side, or of the difference, A less B, at the same number of tokens."""
        count = getattr(request, "num_tokens", None)
        if isinstance(request, AttentionRequest):
            return replace(self.a.slice(request), request=request) if side == "a" else self._attention(request, side)
        count = min(self.a.num_tokens if count is None else count, self.b.num_tokens)
        if side == "a" and self.compares_with_now:
            return drawn(request, NowAt.of(self.a.past(self.a.num_tokens), count), self.a.geometry)
        if side == "a":
            return replace(self.a.slice(request), request=request)
        if side == "b":
            return replace(self.b.slice(request), request=request)
        if self.no_rows:
            raise InputError(self.no_rows)
        return drawn(request, DifferenceAt.of(*self._pasts(count)), self.a.geometry)

    def _pasts(self, num_tokens: int) -> tuple[RowsAt, RowsAt]:
        return self.a.past(self.a.num_tokens if self.compares_with_now else num_tokens), self.b.past(num_tokens)

    def _attention(self, request: AttentionRequest, side: Side) -> Slice:
        compared = (step.num_tokens for step in reversed(self.steps) if step.step <= request.step)
        count = next(compared, self.b.num_tokens)
        theirs = self.b.step_with(count)
        if side == "b":
            asked = replace(request, step=theirs if theirs is not None else -1)
            return replace(self.b.slice(asked), request=request)
        rows = [run.attention(count).get(request.layer) for run in (self.a, self.b)]
        return attention_difference(request, rows[0], rows[1], count - 1, self.a.geometry)

    def _parting(self) -> Parting | None:
        """Where A and B begin to be fed other tokens; None where one of them ends before."""
        one, other = self.a.token_ids, self.b.token_ids
        common = num_common(one, other)
        if common == min(len(one), len(other)):
            return None
        return Parting(common, (self._text_of(one[common]), self._text_of(other[common])))

    def _compare(self, num_tokens: int, parting: Parting | None = None) -> DuelStep:
        if self.compares_with_now:
            step = not_compared(self.a, num_tokens)
        else:
            step = step_of(self.a, self.b, num_tokens, self.tolerance, not self.no_rows, self._text_of, parting)
        self.steps.append(step)
        return step

    def _forget_what_changed(self) -> None:
        """Steps that A went back over, and all where it is kept in another mode."""
        if self.a.mode != self._mode:
            self._mode = self.a.mode
            self.steps.clear()
        while self.steps and self.steps[-1].num_tokens > self.a.num_tokens:
            self.steps.pop()
        fed = self.a.token_ids
        same = num_common(fed, self._fed if self._are_branches else self.b.token_ids)
        while self.steps and self.steps[-1].num_tokens > same:
            self.steps.pop()
        self._fed = fed


class DuelFollower:
    """The other run of a duel: a session of its own, which is fed the tokens of another sequence."""

    def __init__(self, model: LoadedModel, cache: CacheSpec, name: str, prompt_ids: Sequence[int]) -> None:
        self._model, self._cache, self._prompt = model, cache, Prompt(token_ids=tuple(prompt_ids), has_start=True)
        session = Session(model, cache, surprisal=False)
        self.run = LiveRun(session, session.submit(self._prompt), name)

    def _begin_anew(self) -> None:
        self.run.session = Session(self._model, self._cache, surprisal=False)
        self.run.seq_id = self.run.session.submit(self._prompt)

    def follow(self, token_ids: list[int], check: Callable[[], None] | None = None) -> Iterator[int]:
        """Step until it has the same tokens; yields how many it has after each step."""
        self._go_back_to(num_common(token_ids, self.run.token_ids), len(token_ids))
        session, sequence = self.run.session, self.run.session.sequence(self.run.seq_id)
        while sequence.num_tokens < len(token_ids):
            if len(sequence.token_ids) == sequence.num_tokens:  # one at a time: nothing waits where A goes another way
                session.force(self.run.seq_id, (token_ids[sequence.num_tokens],))
            began = time.perf_counter()
            record = session.step(check)
            stored = sum(layer.stored for layer in record.num_bytes.layers)
            self.run.note(sequence.num_tokens, (time.perf_counter() - began) * 1e3, stored)
            yield sequence.num_tokens

    def _go_back_to(self, num_common: int, num_tokens: int) -> None:
        """Where A has gone another way, so does B: exactly, by its own history where that still has the step. Where A
        only went back, B waits."""
        if num_common == min(num_tokens, self.run.num_tokens):
            return
        step = self.run.step_with(num_common) if num_common else None
        if step is None:
            self._begin_anew()
        else:
            self.run.session.go_to(step)
