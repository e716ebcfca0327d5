"""Runs two sequences in lock-step: side B is given the tokens of side A, and every step is compared."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from msgspec.structs import replace

from engine.analysis.reference import errors_at, largest
from engine.analysis.tolerance import TOLERANCES, Tolerance, tolerance_between
from engine.cache.contract import Pair
from engine.errors import Check, InputError
from engine.files.text import model_beside
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.history.state import num_common
from engine.look.candidates import kl_divergence
from engine.look.pictures import PictureMemo, QueryWeights, attention_picture, held_columns, of_queries, picture_of
from engine.look.reductions import missing_rows
from engine.look.source import NO_POSITION, CacheSource, Difference, Rows, Source, row_at
from engine.model.loader import LoadedModel
from engine.session.sampler import choose
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_label
from engine.spec.codec import PARTS, Part
from engine.spec.lenses import LENSES
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import StartComparison
from engine.wire.comparison import (
    ComparedSide,
    ComparedStep,
    ComparisonScanned,
    ComparisonStarted,
    FirstDifference,
    Opponent,
    OtherFile,
    OtherStep,
    TokenDivergence,
)
from engine.wire.pictures import AttentionRequest, HeadRequest, Picture, PictureRequest, RowRequest, Side, WallRequest
from engine.wire.records import Candidate, read_only_floats

if TYPE_CHECKING:
    from engine.opened.file import OpenedSnapshot
    from engine.snapshot.llama_state import ModelOfState


@torch.inference_mode()
def attention_difference(
    row: torch.Tensor | None, other: torch.Tensor | None, query_position: int, layer: LayerGeometry
) -> QueryWeights:
    """The weights `[H, S]` of A minus those of B. Positions that a side had evicted have no difference: they are
    NaN."""
    if row is None or other is None:
        note = "The attention of that step is not kept on both sides."
        return QueryWeights(None, query_position, "difference", note)
    one, two = aligned(*(held_columns(weights, layer, query_position)[0] for weights in (row, other)))
    is_gone = missing_rows(one) | missing_rows(two)
    difference = (one.nan_to_num(0.0) - two.nan_to_num(0.0)).masked_fill(is_gone, torch.nan)
    return QueryWeights(difference, query_position, "difference")


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
        self._memos: dict[Side, PictureMemo] = {}
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

    def catch_up(self, check: Check | None = None) -> Iterator[ComparedStep | tuple[int, int]]:
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

    def scan(self, check: Check = lambda: None) -> ComparisonScanned | None:
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
        memo = self._memos.get(side)
        if memo is None or memo.rows_of != source.owner:
            memo = self._memos[side] = PictureMemo(source.owner)
        return picture_of(request, source, self.a.geometry, memo)

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

    def follow(self, token_ids: list[int], check: Check | None = None) -> Iterator[int]:
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


# ---- the two sides: a sequence of a session, a step of its history, or a snapshot file -------------------------------


class LiveRun:
    """A sequence of a session: as it is now, or as it was with `until` tokens. Requests for more than `num_tokens`, the
    number of tokens with rows, are answered for that many. `is_own`: the session was made for the comparison and is
    closed with it."""

    def __init__(
        self, session: Session, seq_id: int, name: str, until: int | None = None, *, is_own: bool = False
    ) -> None:
        self.session, self.seq_id, self._name, self._until, self._is_own = session, seq_id, name, until, is_own
        self._costs: dict[int, tuple[float, int]] = {}
        self._steps: dict[int, int] = {}  # steps by number of tokens, since searching the history is slow

    @property
    def geometry(self) -> CacheGeometry:
        return self.session.model.info.geometry

    @property
    def num_tokens(self) -> int:
        count = self.session.sequence(self.seq_id).num_tokens
        return count if self._until is None else min(count, self._until)

    @property
    def token_ids(self) -> list[int]:
        """The ids of all tokens with rows."""
        return self.session.sequence(self.seq_id).token_ids[: self.num_tokens]

    def side(self) -> ComparedSide:
        info, spec = self.session.model.info, self.session.cache
        edited_from = self.session.cache_of(self.seq_id).by_hand.back_to(self.num_tokens).first_position
        is_lossy, moves = not spec.is_exact, self._until is None
        return ComparedSide(self._name, info.name, cache_label(spec), info.dtype, is_lossy, moves, edited_from)

    def source(self, num_tokens: int) -> CacheSource:
        return self.session.rows_at(self.seq_id, min(num_tokens, self.num_tokens))

    def newest(self, num_tokens: int) -> dict[int, Pair]:
        """K and V `[H_kv, D]` by layer of the row that was added when the run reached `num_tokens`, for layers in which
        every head holds it."""
        sequence = self.session.sequence(self.seq_id)
        if num_tokens == sequence.num_tokens:  # avoids dequantising all rows
            found = self.session.cache_of(self.seq_id).all_newest_rows(num_tokens - 1)
            return {layer: (keys[:, -1], values[:, -1]) for layer, (keys, values) in found.items() if keys.shape[1]}
        return newest_of(self.source(num_tokens), self.geometry, num_tokens - 1)

    def logits(self, num_tokens: int) -> torch.Tensor | None:
        """Logits `[V]` of the forward pass with which the run reached `num_tokens`; None if they are not kept."""
        step = self.step_with(num_tokens)
        return None if step is None else self.session.history.logits_at(self.seq_id, step)

    def attention(self, num_tokens: int) -> dict[int, torch.Tensor]:
        """Attention weights `[H, S]` by layer of the newest query at `num_tokens`; empty if they are not kept."""
        step = self.step_with(num_tokens)
        return {} if step is None else self.session.history.attention_at(self.seq_id, step)

    def picture(self, request: PictureRequest) -> Picture:
        """A picture of this run, whatever sequence the request names."""
        return self.session.take_picture(replace(request, seq_id=self.seq_id))

    @property
    def mode(self) -> CacheSpec:
        """The cache mode of its rows now."""
        return self.session.cache

    def lengths(self, above: int) -> list[int]:
        """The numbers of tokens above `above`, ascending, after its steps in the present mode whose logits are kept."""
        logged = self.session.history.logged_logits(self.seq_id, above)
        found = {each.num_tokens: each.step for each in logged if each.cache == self.mode}
        self._steps.update(found)
        return [count for count in found if count <= self.num_tokens]

    @property
    def is_before_first_step(self) -> bool:
        """Whether no step was taken in the present mode since the run was changed into it."""
        newest = self.session.history.logged_logits(self.seq_id, self.num_tokens - 1)
        return any(each.num_tokens == self.num_tokens and each.cache != self.mode for each in newest)

    def step_with(self, num_tokens: int) -> int | None:
        """The step after which the run had `num_tokens`."""
        step = self._steps.get(num_tokens)
        state = None if step is None else self.session.history.path.state(self.seq_id, step)
        if state is not None and state.num_tokens == num_tokens:
            return step
        return self.session.history.step_at(self.seq_id, num_tokens)

    def note(self, num_tokens: int, took_ms: float, num_bytes: int) -> None:
        """Store the cost of the step with which the run reached `num_tokens`."""
        self._costs[num_tokens] = took_ms, num_bytes

    def cost(self, num_tokens: int) -> tuple[float | None, int | None]:
        """Milliseconds of the step with which the run reached `num_tokens`, and bytes of its K and V after it; None if
        unknown."""
        return self._costs.get(num_tokens, (None, None))

    def close(self) -> None:
        if self._is_own:
            self.session.close()


def run_at(session: Session, seq_id: int, step: int) -> LiveRun:
    """A sequence as it was after a step of any branch, in a session of its own."""
    then = session.session_at(step)
    if seq_id not in then.live.ids:
        then.close()
        raise InputError(f"Sequence {seq_id} was not there after step {step}: choose one that both branches have.")
    is_elsewhere = not session.history.tree.is_on_path(step, session.last_step)
    name = f"step {step} of another branch" if is_elsewhere else f"step {step}"
    return LiveRun(then, seq_id, name, then.sequence(seq_id).num_tokens, is_own=True)


class FileRun:
    """The sequence of a snapshot file, read as `LiveRun` is. `is_own`: the file was opened for the comparison and is
    closed with it."""

    seq_id = 0  # a file has one sequence, whatever its id was when it was written

    def __init__(self, opened: OpenedSnapshot, *, is_own: bool = False) -> None:
        self._opened, self._is_own = opened, is_own

    @property
    def geometry(self) -> CacheGeometry:
        return self._opened.info.geometry

    @property
    def num_tokens(self) -> int:
        return self._opened.num_tokens

    @property
    def token_ids(self) -> list[int]:
        """The ids of the tokens, up to the first unknown one."""
        return list(takewhile(lambda token_id: token_id >= 0, self._opened.token_ids))

    def side(self) -> ComparedSide:
        info, rows = self._opened.info, self._opened.rows
        if info.dtype not in TOLERANCES:
            raise InputError(f"{self._opened.file.path.name} is in {info.dtype}, which no table of rounding knows.")
        is_lossy = not rows.spec.is_exact
        file = self._opened.file
        cache = self._opened.opened.foreign_cache or cache_label(rows.spec)
        edited_from = file.manifest.edited_from
        return ComparedSide(
            file.path.name, info.name, cache, info.dtype, is_lossy, moves=False, edited_from=edited_from
        )

    def source(self, num_tokens: int) -> Source:
        return self._opened.at(num_tokens)

    def newest(self, num_tokens: int) -> dict[int, Pair]:
        return newest_of(self._opened.at(num_tokens), self.geometry, num_tokens - 1)

    def logits(self, num_tokens: int) -> torch.Tensor | None:
        return self._opened.logits() if num_tokens == self.num_tokens else None

    def attention(self, num_tokens: int) -> dict[int, torch.Tensor]:
        if num_tokens != self.num_tokens:
            return {}
        rows = ((layer.index, self._opened.attention(layer.index)) for layer in self.geometry.attention_layers)
        return {index: row for index, row in rows if row is not None}

    def picture(self, request: PictureRequest) -> Picture:
        return self._opened.take(request)

    @property
    def mode(self) -> CacheSpec:
        return self._opened.rows.spec

    @property
    def is_before_first_step(self) -> bool:
        return False

    def lengths(self, above: int) -> list[int]:
        return [self.num_tokens] if self.num_tokens > above else []

    def step_with(self, num_tokens: int) -> int | None:
        return self._opened.last_step if num_tokens == self.num_tokens else None

    def cost(self, num_tokens: int) -> tuple[float | None, int | None]:
        return None, None

    def close(self) -> None:
        if self._is_own:
            self._opened.close()


ComparedRun = LiveRun | FileRun


def newest_of(source: Source, geometry: CacheGeometry, position: int) -> dict[int, Pair]:
    """K and V `[H_kv, D]` of a position, for layers in which every head holds it."""
    found: dict[int, Pair] = {}
    for layer in geometry.attention_layers:
        rows = [source.rows(layer.index, part, range(position, position + 1)) for part in PARTS]
        pair = [None if each is None else row_at(each, position) for each in rows]
        is_whole = rows[0] is not None and (
            rows[0].positions is None or bool((rows[0].positions == position).any(1).all())
        )
        if is_whole and pair[0] is not None and pair[1] is not None:
            found[layer.index] = pair[0], pair[1]
    return found


def check_comparable(a: ComparedRun, b: ComparedRun) -> str:
    """Raise `InputError` if the vocabularies differ in size. Returns a sentence that says why K and V cannot be
    compared; empty if they can."""
    one, other = a.geometry, b.geometry
    check_vocabularies(one, other)
    shapes = [[(x.index, x.num_kv_heads, x.key_dim, x.value_dim) for x in g.attention_layers] for g in (one, other)]
    if shapes[0] != shapes[1]:
        return "The two models have other layers or heads: their logits are compared, their K and V cannot be."
    return ""


def check_vocabularies(one: CacheGeometry, other: CacheGeometry) -> None:
    """Raise `InputError` if the models have vocabularies of different sizes."""
    if None not in (one.vocab_size, other.vocab_size) and one.vocab_size != other.vocab_size:
        raise InputError(
            f"The two models have vocabularies of {one.vocab_size:,} and {other.vocab_size:,} tokens: compare models "
            "that share one."
        )


# ---- two runs at the same number of tokens: logits, newest rows, newest attention, and all rows ----------------------

NUM_TOP = 5


@torch.inference_mode()
def step_of(
    a: ComparedRun,
    b: ComparedRun,
    num_tokens: int,
    tolerance: Tolerance,
    has_rows: bool,
    text_of: Callable[[int], str],
    divergence: TokenDivergence | None = None,
) -> ComparedStep:
    """Compare both sides when they had `num_tokens`. With a `divergence` they were given different tokens before, so
    that `is_beyond_rounding` is None."""
    mine, theirs = a.logits(num_tokens), b.logits(num_tokens)
    kl = far = agrees = None
    if mine is not None and theirs is not None:
        one, other = mine.float().cpu(), theirs.float().cpu()
        kl, far = kl_divergence(one, other), largest(other, one)
        if one.isnan().any() or other.isnan().any():
            kl = float("inf")
        agrees = int(one.argmax()) == int(other.argmax())
    keys, values = row_differences(a, b, num_tokens) if has_rows else (no_layers(a), no_layers(a))
    tolerances = np.array([tolerance.of_row(layer.index) for layer in a.geometry.attention_layers])
    is_beyond = bool((np.fmax(keys, values) > tolerances).any()) or (far is not None and far > tolerance.logit)
    (a_ms, a_bytes), (b_ms, b_bytes) = a.cost(num_tokens), b.cost(num_tokens)
    return ComparedStep(
        step=a.step_with(num_tokens) or 0,
        num_tokens=num_tokens,
        kl=kl,
        max_abs_logit_diff=far,
        top1_agrees=agrees,
        top=(top_of(mine, text_of), top_of(theirs, text_of)),
        keys=keys,
        values=values,
        attention=attention_distance(a, b, num_tokens) if has_rows else no_layers(a),
        is_beyond_rounding=None if divergence is not None else is_beyond,
        ms=(a_ms, b_ms),
        kv_bytes=(a_bytes, b_bytes),
        divergence=divergence,
    )


def not_compared(a: ComparedRun, num_tokens: int) -> ComparedStep:
    """The `ComparedStep` for a step of side A without a second set of numbers to compare: only the rows as held now are
    compared."""
    none = no_layers(a)
    step = a.step_with(num_tokens) or 0
    return ComparedStep(
        step, num_tokens, None, None, None, ((), ()), none, none, none, None, (None, None), (None, None)
    )


def no_layers(run: ComparedRun) -> np.ndarray:
    """An array `[L]` of NaN: nothing is known of any layer."""
    return read_only_floats(np.full(len(run.geometry.attention_layers), np.nan))


def top_of(logits: torch.Tensor | None, text_of: Callable[[int], str]) -> tuple[Candidate, ...]:
    """The `NUM_TOP` most probable next tokens."""
    if logits is None:
        return ()
    chosen = choose(logits, SamplingParams(), 0, text_of)
    return chosen.candidates[:NUM_TOP]


def row_differences(a: ComparedRun, b: ComparedRun, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors of the newest row of K and of V, `[L]` each, as described in `ComparedStep`."""
    found = {tensor: no_layers(a).copy() for tensor in PARTS}
    mine, theirs = a.newest(num_tokens), b.newest(num_tokens)
    for number, layer in enumerate(a.geometry.attention_layers):
        if layer.index not in mine or layer.index not in theirs:
            continue
        for tensor, row, true in zip(PARTS, theirs[layer.index], mine[layer.index], strict=True):
            one, other = true.float().cpu(), row.float().cpu()
            size = one.square().mean(-1).sqrt().clamp(min=1e-6)
            errors = (other - one).square().mean(-1).sqrt() / size
            # NaN errors count as infinite, since NaN means that there is no such row
            found[tensor][number] = float(errors.nan_to_num(torch.inf, torch.inf).max())
    return read_only_floats(found["keys"]), read_only_floats(found["values"])


def attention_distance(a: ComparedRun, b: ComparedRun, num_tokens: int) -> np.ndarray:
    """Total variation distance of the attention rows of the newest query, `[L]`, in the head where it is largest."""
    mine, theirs = a.attention(num_tokens), b.attention(num_tokens)
    found = no_layers(a).copy()
    for number, layer in enumerate(a.geometry.attention_layers):
        if layer.index in mine and layer.index in theirs:
            one, other = aligned(mine[layer.index], theirs[layer.index])
            difference = one.nan_to_num(0.0) - other.nan_to_num(0.0)
            found[number] = float(difference.abs().sum(1).max()) / 2
    return read_only_floats(found)


def aligned(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad attention rows `[H, S]` of the same query on the left with NaN to the length of the longer one."""
    width = max(one.shape[1], other.shape[1])
    rows = [
        torch.nn.functional.pad(row.float().cpu(), (width - row.shape[1], 0), value=torch.nan) for row in (one, other)
    ]
    return rows[0], rows[1]


@torch.inference_mode()
def first_difference(
    mine: Source,
    theirs: Source,
    layers: Iterable[LayerGeometry],
    tolerance: Tolerance,
    check: Check = lambda: None,
) -> FirstDifference | None:
    """The first position, and in it the lowest layer, whose row differs by more than rounding, among the rows that both
    hold. `check` is called between layers and raises to cancel."""
    first: FirstDifference | None = None
    for layer in layers:
        check()
        for tensor in PARTS:
            held, others = mine.rows(layer.index, tensor), theirs.rows(layer.index, tensor)
            if held is None or others is None or not held.numbers.shape[1] or not others.numbers.shape[1]:
                continue
            found = difference_of_tensor(held, others, layer, tensor, tolerance.of_row(layer.index))
            if found is not None and (first is None or found.position < first.position):
                first = found
    return first


def difference_of_tensor(
    held: Rows, others: Rows, layer: LayerGeometry, tensor: Part, tolerance: float
) -> FirstDifference | None:
    """The first row of K or V of one layer that differs by more than the tolerance; None if none does."""
    rows, errors, is_held = errors_at(others, held)
    expected, there = held.numbers.float(), held.places
    is_wrong = ~(errors <= tolerance) & is_held  # NaN counts as wrong
    if not bool(is_wrong.any()):
        return None
    position = int(there.masked_fill(~is_wrong, NO_POSITION).min())
    at = is_wrong & (there == position)
    head = int(errors.masked_fill(~at, -1.0).nan_to_num(torch.inf).amax(1).argmax())
    slot = int(at[head].int().argmax())
    one, other = expected[head, slot], rows[head, slot]
    channel = int((one - other).abs().nan_to_num(torch.inf).argmax())
    return FirstDifference(
        position, layer.index, tensor, head, channel, float(one[channel]), float(other[channel]),
        float(errors[head, slot]), tolerance,
    )  # fmt: skip


# ---- the comparison that a command asks for --------------------------------------------------------------------------


def comparison_of(
    current: Session | OpenedSnapshot,
    command: StartComparison,
    load: Callable[[ModelSpec], LoadedModel],
    open_snapshot: Callable[[Path, ModelOfState | None], OpenedSnapshot],
    held: LoadedModel | None = None,
) -> Comparison:
    """Create the comparison of a sequence, or of an opened file, with the opponent that the command names.

    `load` loads another model, or the same one in another dtype; `held` is the model that was loaded before the file
    was opened. Raises `InputError` if the two cannot be compared.
    """
    against, seq_id, text_of = command.against, command.seq_id, current.text_of
    if isinstance(against, OtherStep):
        if not isinstance(current, Session):
            raise InputError(
                "An opened snapshot has the rows of one step: compare it with another snapshot, or with a run of its "
                "tokens in a cache mode or a dtype."
            )
        if against.of is not None:
            return _of_steps(current, seq_id, against.of, against.step)
        return _with_step(current, seq_id, against.step)
    mine = LiveRun(current, seq_id, f"sequence {seq_id}") if isinstance(current, Session) else FileRun(current)
    token_ids = mine.token_ids  # raises where the sequence does not exist
    if isinstance(against, OtherFile):
        if isinstance(current, Session):
            config = current.model.model.config.to_json_string(use_diff=False)
        else:
            config = current.file.manifest.config
        return _of_one_text(mine, _of_other_file(against.path, config, open_snapshot), text_of)
    if isinstance(current, Session):
        model = current.model if against.model is None else load(_on_same_device(current.model, against.model))
        sequence, gives_texts = current.sequence(seq_id), False
        prompt_ids = sequence.token_ids[: sequence.num_prompt_tokens]
    else:
        if len(token_ids) < mine.num_tokens:
            raise InputError(
                f"{current.file.path.name} does not say which tokens it was given, so no run can be given them: "
                "compare it with another snapshot."
            )
        model = _model_for(current, against.model, load, held)
        gives_texts = model.info.fingerprint == current.info.fingerprint
        prompt_ids = token_ids[: current.sequence.num_prompt_tokens]
    check_vocabularies(mine.geometry, model.info.geometry)
    follower = ComparisonFollower(model, against.cache, prompt_ids)
    return Comparison(mine, follower.run, follower.run.session.text_of if gives_texts else text_of, follower)


def _on_same_device(model: LoadedModel, spec: ModelSpec) -> ModelSpec:
    """The spec of the other model on the device and threads of `model`, unless it names others: else devices would be
    compared as well."""
    device = model.info.device if spec.device == "auto" else spec.device
    return replace(spec, device=device, num_threads=spec.num_threads or model.info.num_threads)


def _of_other_file(
    path: Path, config: str, open_snapshot: Callable[[Path, ModelOfState | None], OpenedSnapshot]
) -> FileRun:
    """The contents of a file. A state file of llama.cpp without a model beside it is taken for one of A's model, whose
    `config` that is: it does not say of which it is."""
    return FileRun(open_snapshot(path, model_beside(path) or (json.loads(config) if config else None)), is_own=True)


def _model_for(
    opened: OpenedSnapshot,
    wanted: ModelSpec | None,
    load: Callable[[ModelSpec], LoadedModel],
    held: LoadedModel | None,
) -> LoadedModel:
    """The model that is given the tokens of a file: the loaded one if it is the file's model and no other is asked for,
    else the named one. Raises `InputError` if that has the name of the file's model but other weights."""
    file = opened.info
    if held is not None and held.info.fingerprint == file.fingerprint:
        info = held.info
        if wanted is None or (wanted.source == info.source and wanted.dtype in ("auto", info.dtype)):
            return held
    if wanted is None:
        raise InputError(
            f"The model of this snapshot, {file.name}, is not at hand: name its folder, or compare with another "
            "snapshot."
        )
    loaded = load(wanted)
    info = loaded.info
    # the fingerprint of random weights depends on their dtype
    is_told_apart = file.fingerprint and not (info.random_weights and info.dtype != file.dtype)
    if is_told_apart and info.name == file.name and info.fingerprint != file.fingerprint:
        raise InputError(
            f"{opened.file.path.name} was made with other weights or another config than {file.name} has here: name "
            "the folder of that model, or compare with another snapshot."
        )
    return loaded


def _of_one_text(
    mine: ComparedRun, other: ComparedRun, text_of: Callable[[int], str], *, are_branches: bool = False
) -> Comparison:
    """A comparison of two that begin with the same token; the other one is closed if they do not."""
    try:
        comparison = Comparison(mine, other, text_of, are_branches=are_branches)
        comparison.check_common()
    except BaseException:
        other.close()
        raise
    return comparison


def _of_steps(session: Session, seq_id: int, one: int, other: int) -> Comparison:
    """A comparison of two steps of any branches; neither needs to be the live one."""
    if one == other:
        raise InputError(f"Step {one} is the same as itself: choose two steps.")
    mine = run_at(session, seq_id, one)
    try:
        return _of_one_text(mine, run_at(session, seq_id, other), session.text_of, are_branches=True)
    except BaseException:
        mine.close()
        raise


def _with_step(session: Session, seq_id: int, step: int) -> Comparison:
    session.sequence(seq_id)  # raises where it does not exist
    tree = session.history.tree
    if step in tree and not tree.is_on_path(step, session.last_step):
        now, other = LiveRun(session, seq_id, "now"), run_at(session, seq_id, step)
        return _of_one_text(now, other, session.text_of, are_branches=True)
    state = session.history.path.state(seq_id, step)
    if state is None or not state.num_tokens:
        raise InputError(f"Sequence {seq_id} held no rows after step {step}: choose a later one.")
    if not session.rows_at(seq_id, state.num_tokens).is_known:
        raise InputError(f"The rows of step {step} are not known any more as they were: go to it, and fork from there.")
    past = LiveRun(session, seq_id, f"step {step}", until=state.num_tokens)
    return Comparison(LiveRun(session, seq_id, "now"), past, session.text_of, compares_with_now=True)
