"""What the engine answers: frozen messages of numbers, strings, tuples and read-only arrays.

Shapes: L attention layers, H query heads, H_kv key/value heads, T tokens fed in the step, D head_dim.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import field

from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, LayerCoding
from engine.spec.sampling import SamplingParams
from engine.wire.commands import (
    AttentionRequest,
    CheckParity,
    HeadRequest,
    MapDamage,
    MeasureRegret,
    OutliersRequest,
    RowRequest,
    SliceRequest,
    Sweep,
    TableRequest,
    WallRequest,
    WhatIf,
)
from engine.wire.evictions import Eviction
from engine.wire.message import Part, Reply, Variant
from engine.wire.page_events import PageEvent
from engine.wire.page_map import PageMap, PoolStep
from engine.wire.prefix_match import WhyNotReused

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

Phase = Literal["prefill", "decode"]
StopReason = Literal["end of text", "context full", "cache full", "stopped"]
SequenceState = Literal["waiting", "prefill", "decode", "finished"]
Provenance = Literal["live cache", "dequantised", "recomputed", "recorded", "as stored now", "predicted"]


class Candidate(Part, frozen=True):
    """One of the top choices for the next token. `sampled_prob` is after temperature and filters."""

    token_id: int
    text: str
    logprob: float
    prob: float
    sampled_prob: float


class RowStats(Part, frozen=True, eq=False):
    """The new rows of K and V as the step wrote them, measured on the engine's device.

    Norms are `[L, H_kv, T]` (L2 over head_dim); extremes `[L, H_kv]` over all new rows. What becomes of a row later,
    coded when its turn comes or by a change of mode, is not in them: `RowSlice` has the norms of the row as stored.
    """

    layers: tuple[int, ...]
    key_norm: Floats
    value_norm: Floats
    key_min: Floats
    key_max: Floats
    value_min: Floats
    value_max: Floats


class NonFinite(Part, frozen=True):
    """Where a NaN or an infinity was written or produced. Layer None: the logits."""

    tensor: Literal["keys", "values", "logits"]
    layer: int | None
    kv_head: int | None
    position: int
    count: int


class AttentionSummary(Part, frozen=True, eq=False):
    """The newest query's attention, `[L, H]` each: mass on position 0, on the last 16 positions, entropy in nats."""

    layers: tuple[int, ...]
    first_mass: Floats
    recent_mass: Floats
    entropy: Floats


class SequenceStep(Part, frozen=True, eq=False):
    """What one step did to one sequence: tokens `first_position … num_tokens` were fed, `sampled` was chosen next."""

    seq_id: int
    phase: Phase
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    first_position: int
    num_tokens: int
    num_prompt_tokens: int
    surprisal: tuple[float | None, ...]
    sampled: int | None
    sampled_text: str
    forced: bool
    candidates: tuple[Candidate, ...]
    entropy: float | None
    stop: StopReason | None
    rows: RowStats | None
    attention: AttentionSummary | None
    stored_bytes: int
    hit_tokens: int = 0


class Timings(Part, frozen=True):
    """Milliseconds of one step. `prepare_ms` is the cache's own work: room, and rows coded and dropped; `observe_ms` is
    what looking cost: the newest attention row, statistics, candidates, this record."""

    prepare_ms: float
    forward_ms: float
    sample_ms: float
    observe_ms: float

    @property
    def total_ms(self) -> float:
        return self.prepare_ms + self.forward_ms + self.sample_ms + self.observe_ms


class ByteGap(Part, frozen=True):
    """Bytes that are not numbers of tokens, by name. `part` says which sum they are in; transient ones are in none:
    they live as long as the layer's attention."""

    name: str
    num_bytes: int
    part: Literal["stored", "reserved", "transient", "looking"]


class LayerBytes(Part, frozen=True):
    """One layer's cache: predicted by formula, stored in rows that hold tokens, reserved in storage.

    `gaps` name what else there is: scales and an exact residual within what is stored; room, padding and page slack
    within what is reserved beyond it; a dequantised copy that only attention sees.
    """

    layer: int
    kind: str
    predicted: int
    stored: int
    reserved: int
    gaps: tuple[ByteGap, ...] = ()


class CacheBytes(Part, frozen=True):
    """All layers, all sequences. `looking` is held for pictures only; `allocator` is None where none can be asked."""

    layers: tuple[LayerBytes, ...]
    looking: int
    process: int
    allocator: int | None

    @property
    def predicted(self) -> int:
        return sum(layer.predicted for layer in self.layers)

    @property
    def stored(self) -> int:
        return sum(layer.stored for layer in self.layers)

    @property
    def reserved(self) -> int:
        return sum(layer.reserved for layer in self.layers)


class StepRecord(Variant, frozen=True, eq=False):
    """One unit of work, complete in itself: it can be drawn alone.

    Paged layouts add what happened to pages, in order, and of every pool what a map of it needs; `page_maps` are those
    maps, which the engine does not send: whoever reads folds them from record to record (`PageMaps`). `preempted` are
    the sequences that gave their pages up for others, `waiting` those that found no room yet. `evictions` are the rows
    that the cache's rule dropped after the forward, with their scores.
    """

    step: int
    phase: Phase
    cache: CacheSpec
    dtype: str
    random_weights: bool
    sequences: tuple[SequenceStep, ...]
    timings: Timings
    num_bytes: CacheBytes
    non_finite: tuple[NonFinite, ...]
    wall_time: float
    page_events: tuple[PageEvent, ...] = ()
    pools: tuple[PoolStep, ...] = ()
    page_maps: tuple[PageMap, ...] = ()
    preempted: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    evictions: tuple[Eviction, ...] = ()

    def of(self, seq_id: int) -> SequenceStep | None:
        """What the step did to that sequence."""
        return next((s for s in self.sequences if s.seq_id == seq_id), None)


# ---- slices: the present, reduced for the screen ----------------------------------------------------------------


class Magnitudes(Part, frozen=True, eq=False):
    """Of one tensor, layer by layer `[L]`, over all rows of all kv heads, however few of them a picture shows: the
    `limit` that colours span, the `largest` finite magnitude, and which part of the numbers is beyond the limit,
    `clipped`."""

    limit: Floats
    largest: Floats
    clipped: Floats


class WallSlice(Reply, frozen=True, eq=False):
    """Extremes per thumbnail cell, `[L, H_kv, columns, rows]`; None where a layer keeps no K and V.

    `heads[i]` is the number of kv heads of layer `layers[i]`; unused heads are NaN. `absent` `[L, H_kv, columns]`
    counts the positions of a column whose rows were dropped; a column with none left is NaN. None: nothing was dropped.
    `holders` `[2, num_tokens]`: how many kv heads, and how many layers, hold each position; None: all of them.
    `magnitudes` of K or V of the same layers, whichever the picture or its change is of, `other_magnitudes` of the
    other one; None where nobody looks.
    """

    request: WallRequest
    provenance: Provenance
    dtype: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    low: Floats
    high: Floats
    first_position: int
    num_tokens: int
    tokens_per_column: int
    dims_per_row: int
    note: str
    took_ms: float
    absent: Ints | None = None
    holders: Ints | None = None
    magnitudes: Magnitudes | None = None
    other_magnitudes: Magnitudes | None = None


class HeadSlice(Reply, frozen=True, eq=False):
    """One head, `[columns, D]`: lowest and highest value of each cell (equal where a column is one token).

    `positions` are the absolute positions of the columns' first tokens; the histogram covers the finite values of the
    tile; `limit` is the 99.5th percentile of their magnitudes. `absent` `[columns]` counts the positions of a column
    whose rows this head has dropped: one with none left is NaN, which is no non-finite value. None: all are held.
    `magnitudes` are those of its layer, `[1]`.
    """

    request: HeadRequest
    provenance: Provenance
    dtype: str
    low: Floats
    high: Floats
    positions: Ints
    tokens_per_column: int
    counts: Ints
    edges: Floats
    limit: float
    lowest: float
    highest: float
    num_nan: int
    num_inf: int
    query_heads: tuple[int, ...]
    tensor_label: str
    note: str
    took_ms: float
    absent: Ints | None = None
    magnitudes: Magnitudes | None = None


class AttentionSlice(Reply, frozen=True, eq=False):
    """Weights of one step's newest query, `[H, columns]`, the largest of each column; rows may sum to less than one
    where a model has sink logits. `absent` `[H, columns]` counts the positions of a column whose rows had been dropped
    before the query looked: one with none left is NaN, which is no non-finite weight. None: all were there.
    `top_positions` and `top_weights` `[H, N]` are the positions of the whole row that received most, most first; fewer
    than `N` where a head has fewer rows: their weight is NaN."""

    request: AttentionRequest
    provenance: Provenance
    weights: Floats
    positions: Ints
    tokens_per_column: int
    group_size: int
    query_position: int
    note: str
    took_ms: float
    absent: Ints | None = None
    top_positions: Ints | None = None
    top_weights: Floats | None = None


class RowSlice(Reply, frozen=True, eq=False):
    """K and V of one position: for every attention layer that holds it `[H_kv, D]`, as attention reads them. A head
    that has dropped the row is NaN; `dropped` names those heads, layer by layer (empty: no head of any has)."""

    request: RowRequest
    provenance: Provenance
    dtype: str
    layers: tuple[int, ...]
    keys: tuple[Floats, ...]
    values: tuple[Floats, ...]
    note: str
    took_ms: float
    dropped: tuple[tuple[int, ...], ...] = ()

    @property
    def key_norms(self) -> tuple[Floats, ...]:
        """L2 norms `[H_kv]` of K as stored, layer by layer; NaN in heads that have dropped the row."""
        return tuple(np.linalg.norm(keys, axis=-1) for keys in self.keys)

    @property
    def value_norms(self) -> tuple[Floats, ...]:
        """L2 norms `[H_kv]` of V as stored, layer by layer; NaN in heads that have dropped the row."""
        return tuple(np.linalg.norm(values, axis=-1) for values in self.values)


class TableSlice(Reply, frozen=True, eq=False):
    """A sequence's page table, logical order -> page_id, one array per pool (0: a page that left the window or was
    dropped)."""

    request: TableRequest
    page_size: int
    tables: tuple[Ints, ...]
    num_tokens: int
    note: str


class Outlier(Part, frozen=True):
    """The largest number of one channel: where it stands, and how many times the range of its layer it is."""

    layer: int
    kv_head: int
    channel: int
    position: int
    value: float
    ratio: float


class Attended(Part, frozen=True):
    """A position and its weight in the mean of all layers and heads; `head` of `layer`, which reads `kv_head`, gave it
    the most of all, `most`."""

    position: int
    weight: float
    layer: int
    head: int
    kv_head: int
    most: float


class OutliersSlice(Reply, frozen=True, eq=False):
    """The channels of K and of V farthest beyond the range of their layer, and the tokens attended to most."""

    request: OutliersRequest
    provenance: Provenance
    keys: tuple[Outlier, ...]
    values: tuple[Outlier, ...]
    attended: tuple[Attended, ...]
    note: str
    took_ms: float


Slice = WallSlice | HeadSlice | AttentionSlice | RowSlice | TableSlice | OutliersSlice


class WallUpdate(Reply, frozen=True, eq=False):
    """What became of a watched wall since it was last sent: its columns from `first_column` on, `[L, H_kv, C, rows]`,
    in place of those that it had from there on; all others stay, and so does everything that is not named here."""

    request: WallRequest
    first_column: int
    low: Floats
    high: Floats
    magnitudes: Magnitudes | None
    other_magnitudes: Magnitudes | None
    took_ms: float


class HeadUpdate(Reply, frozen=True, eq=False):
    """What became of a watched head since it was last sent: its columns from `first_column` on, `[C, D]`, in place of
    those that it had from there on, and what is said of the whole tile."""

    request: HeadRequest
    first_column: int
    low: Floats
    high: Floats
    counts: Ints
    edges: Floats
    limit: float
    lowest: float
    highest: float
    num_nan: int
    num_inf: int
    magnitudes: Magnitudes | None
    took_ms: float


class Unchanged(Reply, frozen=True):
    """A watched picture that steps have not altered: it is that of this request too."""

    request: SliceRequest


SliceUpdate = WallUpdate | HeadUpdate | Unchanged


# ---- the truth: what a cache mode changes ------------------------------------------------------------------------


class Shift(Part, frozen=True):
    """One token's probability and rank (0 the most probable) among all of the vocabulary, before and after."""

    token_id: int
    text: str
    prob_before: float
    prob_after: float
    rank_before: int
    rank_after: int


class WhatIfAnswer(Reply, frozen=True, eq=False):
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


class ParityReport(Reply, frozen=True, eq=False):
    """Every recorded step `[N]` against the same tokens without a cache, or in the mode that the request names.

    `tolerance` is what rounding may do to a logit in this dtype. `may_differ` is 1 where that step's mode, or the one
    compared with, is lossy. `layer`, `tensor` and `position` name the first row of K or V, of those that both hold now,
    beyond rounding, in the lowest layer that has one; None: all rows are the same.
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
    verdict: Literal["within rounding", "lossy, as asked", "departs"]
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


class DamageMap(Reply, frozen=True, eq=False):
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


class Regret(Reply, frozen=True, eq=False):
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
    """One mode on the tokens that the exact model chose after a prompt.

    `kv_bytes` are stored at the end; `mean_kl` (nats) and `top1_agreement` compare each step with the uncached forward;
    `perplexity` is of those tokens under this mode.
    """

    cache: str
    kv_bytes: int
    tok_per_s: float
    mean_kl: float
    top1_agreement: float
    perplexity: float
    max_abs_logit_diff: float
    lossless: bool


class Unavailable(Variant, frozen=True):
    """A mode that this model cannot have, and why."""

    cache: str
    unavailable: str


class Swept(Reply, frozen=True):
    """One row of a sweep, as soon as it is there; `is_last` ends it. A cancelled sweep ends without."""

    request: Sweep
    row: SweepRow | Unavailable
    is_last: bool


# ---- events ------------------------------------------------------------------------------------------------------


class ModelInfo(Part, frozen=True):
    """The loaded model. `fingerprint` identifies its weights and config. `goes_beyond_context`: with a cache that keeps
    a window, it can be fed more tokens than its context has."""

    name: str
    source: str
    architecture: str
    geometry: CacheGeometry
    dtype: str
    device: str
    num_threads: int
    num_parameters: int
    weight_bytes: int
    random_weights: bool
    has_tokenizer: bool
    captures_attention: bool
    fingerprint: str
    note: str
    goes_beyond_context: bool = False


class SequenceInfo(Part, frozen=True):
    """Where a sequence stands. The page numbers are 0 outside paged layouts; `why_not_reused` explains the part of its
    prompt that was computed although others may have had it before: a reason found at admission, or in words.
    `sampling` is how its tokens are chosen."""

    seq_id: int
    state: SequenceState
    num_tokens: int
    num_prompt_tokens: int
    sampled: int | None
    stop: StopReason | None
    num_pages: int = 0
    num_shared_pages: int = 0
    hit_tokens: int = 0
    num_preemptions: int = 0
    why_not_reused: WhyNotReused | str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)


class Work(Part, frozen=True):
    """Something that takes a while: what, how far (None: unknown), and whether it can be cancelled. `reply_to` is
    the id of the command that is being worked on."""

    label: str
    done: int
    total: int | None
    can_cancel: bool = True
    reply_to: int | None = None


class EngineStatus(Part, frozen=True):
    """All of the engine's state that is not history. `step` is the newest step done, None before the first; `sampling`
    is what the next prompt takes that brings none of its own."""

    model: ModelInfo | None
    cache: CacheSpec
    sampling: SamplingParams
    sequences: tuple[SequenceInfo, ...]
    step: int | None
    running: bool
    work: Work | None


class StateChanged(Variant, frozen=True):
    status: EngineStatus


class Restarted(Reply, frozen=True):
    """History begins anew: a new run or another model."""


class Submitted(Reply, frozen=True):
    """A prompt was taken as a sequence of these tokens. The status that has it was told before."""

    seq_id: int
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]


class Forked(Reply, frozen=True):
    """Sequence `child` begins with the `num_tokens` tokens that `parent` had after `step` (None: nothing was stepped
    yet), those included that have no rows in the cache: it may wait for room, or its prompt not be read to its end.
    What the records up to that step, their attention and their logits say of the parent, they say of the child. The
    status that has it was told before; `how` says how its cache was made."""

    parent: int
    child: int
    step: int | None
    num_tokens: int
    how: str


class Rewound(Reply, frozen=True):
    """The steps after `step` are undone (None: all of them). `how` says how the cache went back."""

    step: int | None
    how: str
    took_ms: float


class CacheChanged(Reply, frozen=True):
    """The live sequences now live in another cache: how they came there, in how long, with how many bytes."""

    cache: CacheSpec
    how: str
    took_ms: float
    num_bytes: CacheBytes


class Tokenized(Reply, frozen=True):
    """The tokens of a text."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]


class Exported(Reply, frozen=True):
    path: Path
    num_bytes: int
    took_ms: float


class LocalModel(Part, frozen=True):
    """A model that is on this computer. `bytes_per_token` is what one token of K and V costs in its own dtype."""

    name: str
    source: str
    architecture: str
    size_bytes: int
    bytes_per_token: int | None


class ModelsFound(Reply, frozen=True):
    models: tuple[LocalModel, ...]


class Failed(Reply, frozen=True):
    """Something that was asked could not be done; everything is as it was before. `can_rebuild`: asked with `rebuild`,
    the question can be answered."""

    message: str
    can_rebuild: bool = False


class Stopped(Variant, frozen=True):
    """The engine has ended, as it was asked to."""


class EngineLost(Variant, frozen=True):
    """The engine is gone or does not answer: `cause` in a sentence without its full stop. Its client says so, not the
    engine itself. `has_ended` False: it may come back, and then goes on as before."""

    cause: str
    has_ended: bool = True


class EngineBack(Variant, frozen=True):
    """An engine that did not answer for a while does again, and goes on as before."""


Event = (
    StepRecord
    | WallSlice
    | HeadSlice
    | AttentionSlice
    | RowSlice
    | TableSlice
    | OutliersSlice
    | WallUpdate
    | HeadUpdate
    | Unchanged
    | StateChanged
    | Restarted
    | Submitted
    | Forked
    | Rewound
    | CacheChanged
    | Tokenized
    | Exported
    | ModelsFound
    | WhatIfAnswer
    | ParityReport
    | DamageMap
    | Regret
    | Swept
    | Failed
    | Stopped
    | EngineLost
    | EngineBack
)
