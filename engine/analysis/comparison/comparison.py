"""Runs two sequences in lock-step: side B is given the tokens of side A, and every step is compared."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from msgspec.structs import replace

from engine.analysis.comparison.compare import aligned, first_difference, not_compared, step_of
from engine.analysis.comparison.sides import ComparedRun, LiveRun, check_comparable
from engine.analysis.tolerance import tolerance_between
from engine.common_prefix import num_common
from engine.errors import InputError
from engine.geometry.dimensions import LayerGeometry
from engine.look.pictures import NewestQuery, Seen, attention_picture, held_columns, of_queries, picture_of
from engine.look.reductions import missing_rows
from engine.look.source import Difference, Source
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_label
from engine.spec.lenses import LENSES
from engine.spec.sampling import Prompt
from engine.wire.comparison import ComparedStep, ComparisonScanned, ComparisonStarted, Opponent, TokenDivergence
from engine.wire.pictures import AttentionRequest, HeadRequest, Picture, PictureRequest, RowRequest, Side, WallRequest


@torch.inference_mode()
def attention_difference(
    row: torch.Tensor | None, other: torch.Tensor | None, query_position: int, layer: LayerGeometry
) -> NewestQuery:
    """The weights `[H, S]` of A minus those of B. Positions that a side had evicted have no difference: they are
    NaN."""
    if row is None or other is None:
        note = "The attention of that step is not kept on both sides."
        return NewestQuery(None, query_position, "difference", note)
    one, two = aligned(*(held_columns(weights, layer, query_position)[0] for weights in (row, other)))
    is_gone = missing_rows(one) | missing_rows(two)
    difference = (one.nan_to_num(0.0) - two.nan_to_num(0.0)).masked_fill(is_gone, torch.nan)
    return NewestQuery(difference, query_position, "difference")


class Comparison:
    """Compares two runs. `catch_up()` brings B to the tokens of A; this needs a `follower`, which steps B.

    Rows are compared as both sides held them at the same number of tokens. With `compares_with_now`, B is an earlier
    step of A itself, whose rows at that time would be equal, so they are compared with those that A holds now; single
    steps are not compared. With `are_branches`, steps after the `TokenDivergence` are compared too, position by
    position, and marked with it. When the cache mode of A changes, the comparison starts again with the steps of the
    new mode.
    """

    def __init__(
        self,
        a: ComparedRun,
        b: ComparedRun,
        text_of: Callable[[int], str],
        follower: ComparisonFollower | None = None,
        *,
        compares_with_now: bool = False,
        are_branches: bool = False,
    ) -> None:
        self.no_rows = check_comparable(a, b)
        self.a, self.b, self._text_of, self._follower = a, b, text_of, follower
        self.compares_with_now, self._are_branches = compares_with_now, are_branches
        self._compared_ids: list[int] = []  # the tokens of A at the last comparison
        self.tolerance = tolerance_between(a.side().dtype, b.side().dtype)
        self.steps: list[ComparedStep] = []
        self._mode = a.mode
        self._seen: dict[Side, Seen] = {}
        if not a.num_tokens:
            raise InputError("There is nothing to compare yet: run a prompt first.")

    def check_common(self) -> None:
        """Raise `InputError` if the two have no common first token; unknown tokens count as different."""
        if not num_common(self.a.token_ids, self.b.token_ids):
            raise InputError(
                f"{self.a.side().name} and {self.b.side().name} begin with other tokens: compare runs of one text."
            )

    def close(self) -> None:
        """Free what is used by this comparison alone."""
        self.a.close()
        self.b.close()

    def started(self, against: Opponent) -> ComparisonStarted:
        """The event for the start: what is compared with, both sides, and every step compared so far."""
        layers = tuple(layer.index for layer in self.a.geometry.attention_layers)
        return ComparisonStarted(
            self.a.seq_id,
            against,
            self.a.side(),
            self.b.side(),
            layers,
            tuple(self.steps),
            self.no_rows,
            self.tolerance.logit,
        )

    @property
    def is_behind(self) -> bool:
        """Whether B has fewer tokens than A and can be stepped."""
        return self._follower is not None and self.b.num_tokens < self.a.num_tokens

    def catch_up(self, check: Callable[[], None] | None = None) -> Iterator[ComparedStep | tuple[int, int]]:
        """Give B the tokens of A, and compare wherever both have the same number of tokens. Yields each comparison, or
        progress (tokens of B, tokens of A). `check` is called between the layers of a prefill and raises to cancel."""
        self._drop_outdated_steps()
        divergence = self._divergence() if self._are_branches else None
        last = self.steps[-1].num_tokens if self.steps else 0
        wanted, common = set(self.a.lengths(last)), num_common(self.a.token_ids, self.b.token_ids)
        for count in sorted(wanted.intersection(self.b.lengths(last))):
            if count <= common:
                yield self._compare(count)
            elif divergence is not None:
                yield self._compare(count, divergence)
        is_followed = self._follower is not None and (wanted or common < self.a.num_tokens)
        if not is_followed and common > (self.steps[-1].num_tokens if self.steps else 0):
            self.steps.append(replace(not_compared(self.a, common), divergence=self._divergence()))
            if self._follower is None:  # pictures need a step, even if its numbers are not kept on both sides
                yield self.steps[-1]
        for count in self._follower.follow(self.a.token_ids, check) if self._follower is not None else ():
            yield self._compare(count) if count in wanted else (count, self.a.num_tokens)
        if is_followed and self.a.is_before_first_step and self.b.num_tokens == self.a.num_tokens:
            self.steps.append(not_compared(self.a, self.a.num_tokens))  # so that pictures are of what is held now
            yield self.steps[-1]

    def scan(self, check: Callable[[], None] = lambda: None) -> ComparisonScanned | None:
        """Compare all rows that both hold now; None if there are none to compare. `check` raises to cancel."""
        count = num_common(self.a.token_ids, self.b.token_ids)
        if self.no_rows or not count:
            return None
        layers = self.a.geometry.attention_layers
        return ComparisonScanned(count, first_difference(*self._sources(count), layers, self.tolerance, check))

    @torch.inference_mode()
    def picture(self, request: PictureRequest, side: Side) -> Picture:
        """A picture of one side, or of the difference A - B, at the same number of tokens."""
        count = getattr(request, "num_tokens", None)
        if isinstance(request, AttentionRequest):
            return replace(self.a.picture(request), request=request) if side == "a" else self._attention(request, side)
        count = min(self.a.num_tokens if count is None else count, self.b.num_tokens)
        if side == "b" or (side == "a" and not self.compares_with_now):
            return replace((self.a if side == "a" else self.b).picture(request), request=request)
        if side == "a":
            return self._picture(request, side, self._sources(count)[0])
        if self.no_rows:
            raise InputError(self.no_rows)
        return self._picture(request, side, Difference(*self._sources(count)))

    def _picture(self, request: PictureRequest, side: Side, source: Source) -> Picture:
        """A picture of rows that no session or file shows; what was drawn and counted of them is used again."""
        is_change = isinstance(request, WallRequest) and request.change
        if is_change or not isinstance(request, WallRequest | HeadRequest | RowRequest):
            raise InputError("Of a difference there are pictures of the wall, of a head, of a row and of attention.")
        seen = self._seen.get(side)
        if seen is None or seen.rows_of != source.owner:
            seen = self._seen[side] = Seen(source.owner)
        return picture_of(request, source, self.a.geometry, seen)

    def _sources(self, num_tokens: int) -> tuple[Source, Source]:
        """What is compared: both sides at the same number of tokens, or side A as it is held now."""
        if self.compares_with_now:
            assert isinstance(self.a, LiveRun)
            now = dataclasses.replace(self.a.source(self.a.num_tokens), num_tokens=num_tokens, is_as_now=True)
            return now, self.b.source(num_tokens)
        return self.a.source(num_tokens), self.b.source(num_tokens)

    def _attention(self, request: AttentionRequest, side: Side) -> Picture:
        compared = (step.num_tokens for step in reversed(self.steps) if step.step <= request.step)
        count = next(compared, self.b.num_tokens)
        theirs = self.b.step_with(count)
        if side == "b":
            asked = replace(request, step=theirs if theirs is not None else -1)
            return replace(self.b.picture(asked), request=request)
        if LENSES[request.lens].reads == "queries":
            found = of_queries(request, Difference(*self._sources(count)))
            return attention_picture(request, found, self.a.geometry)
        mine, other = (run.attention(count).get(request.layer) for run in (self.a, self.b))
        layer = self.a.geometry.layers[request.layer]
        return attention_picture(request, attention_difference(mine, other, count - 1, layer), self.a.geometry)

    def _divergence(self) -> TokenDivergence | None:
        """The point from which A and B are given different tokens; None if one of them ends before."""
        one, other = self.a.token_ids, self.b.token_ids
        common = num_common(one, other)
        if common == min(len(one), len(other)):
            return None
        return TokenDivergence(common, (self._text_of(one[common]), self._text_of(other[common])))

    def _compare(self, num_tokens: int, divergence: TokenDivergence | None = None) -> ComparedStep:
        if self.compares_with_now:
            step = not_compared(self.a, num_tokens)
        else:
            step = step_of(self.a, self.b, num_tokens, self.tolerance, not self.no_rows, self._text_of, divergence)
        self.steps.append(step)
        return step

    def _drop_outdated_steps(self) -> None:
        """Drop compared steps that A went back over, or all of them if its cache mode has changed."""
        if self.a.mode != self._mode:
            self._mode = self.a.mode
            self.steps.clear()
        while self.steps and self.steps[-1].num_tokens > self.a.num_tokens:
            self.steps.pop()
        computed = self.a.token_ids
        same = num_common(computed, self._compared_ids if self._are_branches else self.b.token_ids)
        while self.steps and self.steps[-1].num_tokens > same:
            self.steps.pop()
        self._compared_ids = computed


class ComparisonFollower:
    """The other run of a comparison: a session of its own, which is given the tokens of side A."""

    def __init__(self, model: LoadedModel, cache: CacheSpec, prompt_ids: Sequence[int]) -> None:
        self._model, self._cache, self._prompt = model, cache, Prompt(token_ids=tuple(prompt_ids), has_start=True)
        session = Session(model, cache, surprisal=False)
        self.run = LiveRun(session, session.submit(self._prompt), f"the same tokens in {cache_label(cache)}")

    def _restart(self) -> None:
        self.run.session = Session(self._model, self._cache, surprisal=False)
        self.run.seq_id = self.run.session.submit(self._prompt)

    def follow(self, token_ids: list[int], check: Callable[[], None] | None = None) -> Iterator[int]:
        """Step until the run has all of `token_ids`; yields its number of tokens after each step."""
        self._go_back_to(num_common(token_ids, self.run.token_ids), len(token_ids))
        session = self.run.session
        while (sequence := session.sequence(self.run.seq_id)).num_tokens < len(token_ids):
            # one token at a time, so that no forced token is left over if A goes back
            if len(sequence.token_ids) == sequence.num_tokens:
                session.force(self.run.seq_id, (token_ids[sequence.num_tokens],))
            began = time.perf_counter()
            record = session.step(check)
            stored = sum(layer.stored for layer in record.num_bytes.layers)
            num_tokens = session.sequence(self.run.seq_id).num_tokens
            self.run.note(num_tokens, (time.perf_counter() - began) * 1e3, stored)
            yield num_tokens

    def _go_back_to(self, num_common: int, num_tokens: int) -> None:
        """Go back to the last common token if the tokens differ: with the run's own history if it still has that step,
        else by starting again. If A only went back, nothing is done: B waits."""
        if num_common == min(num_tokens, self.run.num_tokens):
            return
        step = self.run.step_with(num_common) if num_common else None
        if step is None:
            self._restart()
        else:
            self.run.session.go_to(step)
