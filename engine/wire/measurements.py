"""Measurements and their results: on the live cache (what-if, parity, damage, regret) and on caches of their own
(sweep, bench)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, LayerCoding, Part
from engine.spec.grid import SweepMode, SweepText, TextKind
from engine.wire.message import Answer, Command, Event, Facts, Nested, Variant
from engine.wire.records import Candidate, Floats, Ints, Provenance


class WhatIf(Command, frozen=True):
    """Compute the next token if the live rows were kept as the mode `cache` keeps them. The live cache is not changed;
    where it has evicted rows, it is compared with exact ones, computed from the tokens by one prefill."""

    facts: ClassVar[Facts] = Facts(
        "trying another cache", effect="measures", newest=type, ends_trial=True, is_quiet=True
    )

    seq_id: int
    cache: CacheSpec


class CheckParity(Command, frozen=True):
    """Compare the logits and rows of a sequence's steps with another way of computing them: in the cache mode
    `against`, which is given the same tokens, or (None) without any cache, with the model's own attention."""

    facts: ClassVar[Facts] = Facts("comparing with another cache", answers="one", effect="measures")

    seq_id: int
    against: CacheSpec | None = None


class MapDamage(Command, frozen=True):
    """Measure what a codec does to the rows held now; with `budget_bytes`, also suggest the bits of each layer. Where
    the live cache has evicted rows, exact ones are computed from the tokens by one prefill."""

    facts: ClassVar[Facts] = Facts("measuring what the codec does", answers="one", effect="measures")

    seq_id: int
    codec: CodecSpec
    max_columns: int = 512
    budget_bytes: int | None = None


class MeasureRegret(Command, frozen=True):
    """Measure what removing each page of `page_size` rows does to the next token, with the score that the rule of
    `cache` gives the page. Where the live cache has evicted rows, exact ones are computed from the tokens by one
    prefill."""

    facts: ClassVar[Facts] = Facts("removing rows, one after the other", answers="one", effect="measures")

    seq_id: int
    cache: CacheSpec
    page_size: int = 1


class Sweep(Command, frozen=True):
    """Run every mode on every text for `num_steps` steps (for a recalled fact, as many as it has tokens). Answers come
    text by text, in the order of the modes. `done` are the names of modes and texts whose rows are known already. The
    live session is not touched."""

    facts: ClassVar[Facts] = Facts("a sweep", effect="measures")

    texts: tuple[SweepText, ...]
    num_steps: int
    modes: tuple[SweepMode, ...]
    done: tuple[tuple[str, str], ...] = ()

    @property
    def num_rows(self) -> int:
        """The number of rows of the whole sweep, known ones included."""
        return len(self.texts) * len(self.modes)


class Bench(Command, frozen=True):
    """Measure the speed of cache modes against each other: each at every context and batch, for `num_steps` decode
    steps. The live session is not touched. `caches` are pairs of name and spec."""

    facts: ClassVar[Facts] = Facts("a benchmark", effect="measures")

    caches: tuple[tuple[str, CacheSpec], ...]
    contexts: tuple[int, ...]
    num_steps: int
    batches: tuple[int, ...] = (1,)


class Shift(Nested, frozen=True):
    """Probability and rank (0: most probable) of one token in the whole vocabulary, before and after."""

    token_id: int
    text: str
    prob_before: float
    prob_after: float
    rank_before: int
    rank_after: int


class WhatIfAnswer(Answer, frozen=True, eq=False):
    """The distribution of the next token with the rows as they are (`before`) and as another cache mode would keep them
    (`after`).

    `kl` is in nats; `kept_ratio` is the share of rows that is kept; bytes are of K and V of the sequence without its
    newest token. `shifts` has every token listed in `before` or `after`, ordered by rank before. `is_estimate`:
    computed from the rows of the live cache; a second answer, for which the other mode ran from the start, follows.
    `is_rebuilt`: the rows were computed from the tokens, because the live cache does not hold them all.
    """

    request: WhatIf
    step: int
    kl: float
    max_abs_logit_diff: float
    top1_changed: bool
    before: tuple[Candidate, ...]
    after: tuple[Candidate, ...]
    kept_ratio: float
    exact_bytes: int
    kv_bytes: int
    took_ms: float
    note: str
    shifts: tuple[Shift, ...] = ()
    is_estimate: bool = False
    is_rebuilt: bool = False


Verdict = Literal["within rounding", "lossy, as asked", "edited by hand", "lossy and edited", "departs"]


class ParityReport(Answer, frozen=True, eq=False):
    """Every recorded step `[N]` compared with the same tokens without a cache, or in the cache mode that the request
    names.

    `tolerance` is the largest logit difference that rounding explains in this dtype. `may_differ` is 1 for steps whose
    mode, or the one compared with, is lossy, or whose rows were edited by hand; `verdict` says which. `layer`, `tensor`
    and `position` name the first row beyond rounding in the lowest layer that has one, among the rows that both hold
    now; None if all are equal. `is_edited`: the edits by hand were made in the comparison run as well, which then keeps
    its rows.
    """

    request: CheckParity
    cache: CacheSpec
    dtype: str
    steps: Ints
    positions: Ints
    max_abs_logit_diff: Floats
    kl: Floats
    top1_agrees: Ints
    may_differ: Ints
    tolerance: float
    verdict: Verdict
    layer: int | None
    tensor: Part | None
    position: int | None
    took_ms: float
    is_edited: bool = False

    @property
    def top1_agreement(self) -> float:
        return float(self.top1_agrees.mean()) if self.top1_agrees.size else 1.0


class TensorDamage(Nested, frozen=True, eq=False):
    """RMS error of a coded tensor relative to the RMS of the tensor: by token `[L, H_kv, columns]` and by channel `[L,
    H_kv, D]`; and the largest absolute error per head `[L, H_kv]`. Layers with fewer heads or channels are padded with
    NaN."""

    by_token: Floats
    by_channel: Floats
    max_abs: Floats


class LayerPlanStep(Nested, frozen=True):
    """One layer of a suggested plan: its coding, the KL (nats) if only this layer is coded, and its bytes."""

    coding: LayerCoding
    kl: float
    num_bytes: int


class DamageMap(Answer, frozen=True, eq=False):
    """What a codec does to K and V, to the newest attention row (total variation, `[L, H]`) and to the next token: `kl`
    with all layers coded, `kl_by_layer` `[L]` with only one. `plan` is given if the request has a budget; `plan_kl` is
    measured with the whole plan applied. `num_rows` rows were coded: all except that of the newest token, which `step`
    computed. `is_rebuilt`: they were computed from the tokens, because the live cache does not hold them all."""

    request: MapDamage
    layers: tuple[int, ...]
    keys: TensorDamage
    values: TensorDamage
    tokens_per_column: int
    attention: Floats
    kl: float
    kl_by_layer: Floats
    exact_bytes: int
    kv_bytes: int
    plan: tuple[LayerPlanStep, ...]
    plan_codec: CodecSpec | None
    plan_kl: float | None
    plan_bytes: int | None
    took_ms: float
    step: int = 0
    num_rows: int = 0
    is_rebuilt: bool = False


class Regret(Answer, frozen=True, eq=False):
    """For each page `[N]`: its first position, the KL (nats) of the next token if its rows are removed, and the rule's
    score: the rank 0 … 1 of its rows (0: evicted first), averaged over layers and heads, if the rule had seen every
    token before the newest and evicted nothing. `rank_correlation` near 1 means that the rule keeps the rows that
    matter. `is_rebuilt`: the rows were computed from the tokens, because the live cache does not hold them all."""

    request: MeasureRegret
    step: int
    positions: Ints
    kl: Floats
    scores: Floats
    rank_correlation: float
    took_ms: float
    is_rebuilt: bool = False


class SweepRow(Variant, frozen=True):
    """One mode on one text of that `kind` (see `SweepText`): `num_steps` tokens after `num_prompt_tokens`.

    `kv_bytes` are stored at the end; `mean_kl` (nats) and `top1_agreement` compare each step with the forward pass
    without a cache; `perplexity` is that of the tokens under this mode; `recall` is the share of the fact's tokens that
    it predicts, None if the text has no fact.
    """

    cache: str
    kv_bytes: int
    tok_per_s: float
    mean_kl: float
    top1_agreement: float
    perplexity: float
    max_abs_logit_diff: float
    lossless: bool
    text: str = ""
    kind: TextKind = "greedy"
    recall: float | None = None
    num_prompt_tokens: int = 0
    num_steps: int = 0


class Unavailable(Variant, frozen=True):
    """A mode that this model, or this text, cannot have, and why."""

    cache: str
    unavailable: str
    text: str = ""


class Swept(Answer, frozen=True):
    """One row of a sweep, sent when it is measured; `is_last` marks the last one. A cancelled sweep sends no such
    mark."""

    request: Sweep
    row: SweepRow | Unavailable
    is_last: bool


class BenchRow(Variant, frozen=True):
    """One mode at one context and batch: `batch` sequences of `context` tokens each decoded `num_steps` more in
    `num_turns` turns, in which the modes alternate.

    `tok_per_s` counts the tokens of all sequences and is the median over turns; `spread` is their interquartile range.
    `ttft_ms` is the time until every sequence has its first token. `overhead_ratio` is the share of a step that is not
    spent in the model's forward pass. `ratio` is its speed relative to `base`, the first mode that was measured to the
    end: the median over turns, with `ratio_spread`. Bytes are those of all sequences at the end.
    """

    cache: str
    context: int
    batch: int
    tok_per_s: float
    spread: float
    ms_per_step: float
    ttft_ms: float
    kv_bytes: int
    reserved_bytes: int
    overhead_ratio: float
    base: str
    ratio: float
    ratio_spread: float
    num_steps: int
    num_turns: int
    device: str
    dtype: str


class BenchRefused(Variant, frozen=True):
    """A mode that cannot be measured at this context and batch, and why."""

    cache: str
    context: int
    batch: int
    unavailable: str


class Benched(Answer, frozen=True):
    """One row of a bench, sent when it is measured; `is_last` marks the last one. A cancelled bench sends no such
    mark."""

    request: Bench
    row: BenchRow | BenchRefused
    is_last: bool


Measured = WhatIfAnswer | ParityReport | DamageMap | Regret | Swept | Benched


LEAST_KL = 1e-8  # a smaller KL is explained by float32 rounding


def front(num_bytes: Sequence[float], damage: Sequence[float]) -> tuple[int, ...]:
    """Indices of the points that have less damage than all points with no more bytes, by ascending bytes."""
    best, found = math.inf, []
    for index in sorted(range(len(num_bytes)), key=lambda i: (num_bytes[i], damage[i])):
        if damage[index] < best:
            best = damage[index]
            found.append(index)
    return tuple(found)


def best_by_text(rows: Sequence[SweepRow | Unavailable]) -> dict[str, tuple[str, ...]]:
    """For each text the modes on the Pareto front of bytes and KL, without modes that keep nothing and recompute."""
    by_text: dict[str, list[SweepRow]] = {}
    for row in rows:
        if isinstance(row, SweepRow) and row.kv_bytes > 0:
            by_text.setdefault(row.text, []).append(row)
    return {text: tuple(some[i].cache for i in front_of(some)) for text, some in by_text.items()}


def front_of(rows: Sequence[SweepRow]) -> tuple[int, ...]:
    """Indices of the rows on the front of bytes and KL; a KL that rounding explains counts as 0."""
    kl = [row.mean_kl if row.mean_kl >= LEAST_KL else 0.0 for row in rows]
    return front([row.kv_bytes for row in rows], kl)


class KeptRows(Nested, frozen=True, eq=False):
    """How much kept rows differ from those that a re-prefill of the new tokens would give: the norm of the difference
    relative to that of the re-prefilled rows, `[L, T]` each for K and V, for `layers` and the positions from
    `first_position` on; NaN where the cache holds no row."""

    layers: tuple[int, ...]
    first_position: int
    keys: Floats
    values: Floats


class EditMeasured(Event, frozen=True, eq=False):
    """What the edit at node `step` changed in the prediction of the next token, measured by computing the newest token
    again to the edited cache.

    `before` and `after` are the top candidates before and after the edit; `entropy` is that of the distribution after
    it, in nats; `kl` is the divergence of the distribution after from the one before, None if there were no logits
    before. `took_ms` is the time of the edit, `measured_ms` that of the measurement. `kept` is given if tokens were
    replaced while the rows behind them stayed; `provenance` says what the compared rows are.
    """

    step: int
    seq_id: int
    kl: float | None
    before: tuple[Candidate, ...]
    after: tuple[Candidate, ...]
    took_ms: float
    measured_ms: float
    kept: KeptRows | None = None
    provenance: Provenance = "live cache"
    entropy: float | None = None
