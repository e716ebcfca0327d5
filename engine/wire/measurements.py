"""What was measured on a cache in use: what-if, parity, damage, regret; and on caches beside it: sweep, bench."""

from __future__ import annotations

from typing import Literal

from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, LayerCoding
from engine.spec.texts import TextKind
from engine.wire.measuring import Bench, CheckParity, MapDamage, MeasureRegret, Sweep, WhatIf
from engine.wire.message import EventMessage, Part, Variant
from engine.wire.records import Candidate, Floats, Ints


class Shift(Part, frozen=True):
    """One token's probability and rank (0 the most probable) among all of the vocabulary, before and after."""

    token_id: int
    text: str
    prob_before: float
    prob_after: float
    rank_before: int
    rank_after: int


class WhatIfAnswer(EventMessage, frozen=True, eq=False):
    """The next token on the rows as they are (`before`) and as another cache would keep them (`after`).

    `kl` in nats; `kept_ratio` is the part of the rows that stays; bytes are of K and V of the sequence without its
    newest token. `shifts` follow every token that is listed before or after, by their rank before. `is_estimate`: from
    the rows of the live cache alone; an answer to the same request that ran the other cache from the start follows.
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


Verdict = Literal["within rounding", "lossy, as asked", "edited by hand", "lossy and edited", "departs"]


class ParityReport(EventMessage, frozen=True, eq=False):
    """Every recorded step `[N]` against the same tokens without a cache, or in the mode that the request names.

    `tolerance` is what rounding may do to a logit in this dtype. `may_differ` is 1 where that step's mode, or the one
    compared with, is lossy, or its rows were edited by hand: `verdict` names which. `layer`, `tensor` and `position`
    name the first row of K or V, of those that both hold now, beyond rounding, in the lowest layer that has one; None:
    all rows are the same.
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
    tensor: Literal["keys", "values"] | None
    position: int | None
    took_ms: float

    @property
    def top1_agreement(self) -> float:
        return float(self.top1_agrees.mean()) if self.top1_agrees.size else 1.0


class TensorDamage(Part, frozen=True, eq=False):
    """RMS error of one tensor over the RMS of the tensor itself: by token `[L, H_kv, columns]`, by channel
    `[L, H_kv, D]`; per head the largest absolute error and the cosine, `[L, H_kv]`. NaN where a layer has less."""

    by_token: Floats
    by_channel: Floats
    max_abs: Floats
    cosine: Floats


class LayerPlanStep(Part, frozen=True):
    """One layer of a suggested plan: how it is written, what that costs alone (KL in nats) and holds (bytes)."""

    coding: LayerCoding
    kl: float
    num_bytes: int


class DamageMap(EventMessage, frozen=True, eq=False):
    """What a codec does to K and V, to the newest attention row (total variation, `[L, H]`) and to the next token: `kl`
    with every layer coded, `kl_by_layer` `[L]` with one alone. `plan` is there if a budget was given, and `plan_kl`
    is measured with all of it in place. `num_rows` were coded: all but the newest token's, which `step` had fed."""

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


class Regret(EventMessage, frozen=True, eq=False):
    """Per page, `[N]`: its first position, the KL (nats) of the next token without its rows, and the rule's score: the
    rank 0 … 1 of its rows, in the mean of layers and heads (0 goes first), had the rule watched every token before the
    newest with nothing dropped. `rank_correlation` near 1: the rule keeps what matters."""

    request: MeasureRegret
    step: int
    positions: Ints
    kl: Floats
    scores: Floats
    rank_correlation: float
    took_ms: float


class SweepRow(Variant, frozen=True):
    """One mode on one text: `num_steps` tokens after `num_prompt_tokens`, of a `kind` (see `SweepText`).

    `kv_bytes` are stored at the end; `mean_kl` (nats) and `top1_agreement` compare each step with the uncached forward;
    `perplexity` is of those tokens under this mode; `recall` is the part of a fact's tokens that it tells, None where
    none is asked for.
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
    """A mode that this model cannot have, or not on this text, and why."""

    cache: str
    unavailable: str
    text: str = ""


class Swept(EventMessage, frozen=True):
    """One row of a sweep, as soon as it is there; `is_last` ends it. A cancelled sweep ends without."""

    request: Sweep
    row: SweepRow | Unavailable
    is_last: bool


class BenchRow(Variant, frozen=True):
    """One mode in one place: `batch` sequences of `context` tokens each, decoding `num_steps` more in `num_turns` turns
    that modes took one after the other.

    `tok_per_s` counts the tokens of all sequences and is the median of the turns, `spread` the difference of their
    quartiles; `ttft_ms` passes until every sequence has its first token. `overhead_ratio` is the part of a step that is
    not spent in the model's forward. `ratio` is its speed over that of `base`, the first mode that ran to the end, in
    the median of turns taken together, with its own spread. Bytes are those in the end, of all sequences.
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
    """A mode that cannot be measured in one place, and why."""

    cache: str
    context: int
    batch: int
    unavailable: str


class Benched(EventMessage, frozen=True):
    """One row of a bench, as soon as it is there; `is_last` ends it. A cancelled bench ends without."""

    request: Bench
    row: BenchRow | BenchRefused
    is_last: bool


Measured = WhatIfAnswer | ParityReport | DamageMap | Regret | Swept | Benched
