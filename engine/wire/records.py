"""What happened: the changes made to a session between two steps, each a message that suffices to repeat it, and the
record of a step with its parts, frozen messages of numbers, strings, tuples and read-only arrays.

Shapes: L attention layers, H query heads, H_kv key/value heads, T tokens computed in the step, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace

from engine.spec.cache import CacheSpec
from engine.spec.edit import Edit, ReplaceTokens
from engine.spec.sampling import Chat, SamplingParams
from engine.spec.terms import Term
from engine.wire.message import Count, Event, Nested, Variant
from engine.wire.pages import PageEvent, PageMap, PoolStep

Tokens = Annotated[tuple[Count, ...], Meta(min_length=1)]


class SequenceAdded(Variant, frozen=True):
    """A prompt was accepted as a new sequence; `chat` is the conversation that its tokens were rendered from."""

    seq_id: Count
    token_ids: Tokens
    sampling: SamplingParams
    chat: Chat | None = None


class SequenceForked(Variant, frozen=True):
    """Sequence `seq_id` was forked from the state that `parent` had after `step`, which may be on another branch (None:
    from its state at that time). With `num_tokens` it has only so many of the parent's first tokens, with their
    rows."""

    seq_id: Count
    parent: Count
    step: int | None
    num_tokens: Count | None = None


class PromptAppended(Variant, frozen=True):
    """Tokens were appended to a sequence as a continuation of its prompt; `chat` is the conversation that all its
    tokens were rendered from."""

    seq_id: Count
    token_ids: Tokens
    sampling: SamplingParams
    chat: Chat | None = None


class SequenceRemoved(Variant, frozen=True):
    """A sequence was ended and its rows were freed."""

    seq_id: Count


class SequenceStopped(Variant, frozen=True):
    """A sequence was stopped; its rows stay."""

    seq_id: Count


class TokensForced(Variant, frozen=True):
    """These tokens are computed next instead of sampled ones; the first replaces the token that was chosen already."""

    seq_id: Count
    token_ids: Tokens


class SamplingChanged(Variant, frozen=True):
    """The sampling parameters of a sequence were changed, for all tokens from here on."""

    seq_id: Count
    sampling: SamplingParams


class ModeChanged(Variant, frozen=True):
    """All sequences were moved into another cache mode."""

    cache: CacheSpec


class EditMade(Variant, frozen=True):
    """An edit by hand was made."""

    edit: Edit


Change = (
    SequenceAdded
    | SequenceForked
    | PromptAppended
    | SequenceRemoved
    | SequenceStopped
    | TokensForced
    | SamplingChanged
    | ModeChanged
    | EditMade
)


def replacing_tokens(changes: Iterable[Change]) -> tuple[int, ...]:
    """The ids of all tokens that edits among the changes put into sequences, in order."""
    edits = (change.edit for change in changes if isinstance(change, EditMade))
    return tuple(token_id for edit in edits if isinstance(edit, ReplaceTokens) for token_id in edit.token_ids)


# ---- the record of a step --------------------------------------------------------------------------------------------

NUM_QUANTILES = 17


class Survivors(Nested, frozen=True, eq=False):
    """The rows that were kept: `on_merit` of them because of their scores, `protected` whatever their scores (sinks,
    the latest).

    `quantiles` are those of the scores of the rows kept on merit, ascending: all scores if they are 17 or fewer, else
    17 evenly spaced ones; empty if only protected rows were kept.
    """

    on_merit: int = 0
    protected: int = 0
    quantiles: np.ndarray[tuple[Any, ...], np.dtype[np.float32]] = field(
        default_factory=lambda: np.zeros(0, np.float32)
    )


class Eviction(Nested, frozen=True, eq=False):
    """Rows that one step evicted from one layer: `positions` `[E]`, ascending, and their `scores` `[E]`.

    `kv_head` None: all heads evicted the same rows. Rows with lower scores are evicted first; `lowest_kept` is the
    lowest score of a row that was kept on merit, None if only protected rows were kept. `rule` names the reason in
    words.
    """

    seq_id: int
    layer: int
    kv_head: int | None
    positions: np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
    scores: np.ndarray[tuple[Any, ...], np.dtype[np.float32]]
    lowest_kept: float | None
    rule: str
    survivors: Survivors = field(default_factory=Survivors)

    @property
    def num_rows(self) -> int:
        """Number of evicted rows, of this head or of each head."""
        return len(self.positions)

    def score_of(self, position: int) -> float | None:
        """The score of an evicted position; None if it is not among the evicted ones."""
        place = int(np.searchsorted(self.positions, position))
        if place == len(self.positions) or self.positions[place] != position:
            return None
        return float(self.scores[place])


# not NDArray: what stands behind that name, which the decoder of messages reads, differs between versions of numpy
Floats = np.ndarray[tuple[Any, ...], np.dtype[np.float32]]
Ints = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]

Phase = Literal["prefill", "decode"]
StopReason = Literal[
    "end of text", "stop string", "length", "context full", "cache full", "stopped", "non-finite logits"
]
SequencePhase = Literal["waiting", "prefill", "decode", "finished"]
Provenance = Literal[
    "live cache", "kept", "dequantised", "recomputed", "recorded", "as stored now", "predicted", "difference"
]


class Candidate(Nested, frozen=True):
    """One of the most probable next tokens. `sampled_prob` is its probability after temperature and filters."""

    token_id: int
    text: str
    logprob: float
    prob: float
    sampled_prob: float


class RowStats(Nested, frozen=True, eq=False):
    """Statistics of the new rows of K and V as the step wrote them, measured on the engine's device.

    Norms are `[L, H_kv, T]` (L2 over head_dim). Later changes of a row, by a codec that waits or a change of the mode,
    are not included: `RowPicture` has the norms of the row as it is stored.
    """

    layers: tuple[int, ...]
    key_norm: Floats
    value_norm: Floats

    @property
    def num_rows(self) -> int:
        return int(self.key_norm.shape[2])

    @property
    def nbytes(self) -> int:
        return self.key_norm.nbytes + self.value_norm.nbytes

    def of(self, row: int) -> RowStats:
        """The statistics of one row, counted from the first; a negative number counts from behind the last."""
        at = row % self.num_rows
        norms = (read_only(norm[:, :, at : at + 1]) for norm in (self.key_norm, self.value_norm))
        return RowStats(self.layers, *norms)


class NonFinite(Nested, frozen=True):
    """Where NaN or infinity was computed, and how many. `layer` None: in the logits."""

    tensor: Literal["keys", "values", "logits"]
    layer: int | None
    kv_head: int | None
    position: int
    count: int


class AttentionSummary(Nested, frozen=True, eq=False):
    """Attention of the newest query, `[L, H]` each: the mass on position 0, and on the last 16 positions. Other sums
    need the whole row, which `AttentionPicture` shows."""

    layers: tuple[int, ...]
    first_mass: Floats
    recent_mass: Floats


class SequenceStep(Nested, frozen=True, eq=False):
    """What one step did to one sequence: it computed the tokens `first_position … num_tokens`, and chose `sampled` as
    the next one. `surprisal` is None where unknown; for a long prompt until `PromptSurprisal` follows. `stop` says why
    the sequence ended. `rows` are the statistics of its last rows: in a file and in the engine those of all new ones,
    in what a window is told that of the newest. `norm_ratio` is the largest ratio of a new row's norm to the median of
    its head over up to 64 rows before."""

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
    candidates: tuple[Candidate, ...] = ()
    entropy: float | None = None
    stop: StopReason | None = None
    rows: RowStats | None = None
    attention: AttentionSummary | None = None
    stored_bytes: int = 0
    hit_tokens: int = 0
    norm_ratio: float | None = None


def has_chosen(part: SequenceStep) -> bool:
    """Whether the model chose a next token. If the logits were not finite, none was chosen and `sampled` is 0."""
    is_number = part.entropy is None or not math.isnan(part.entropy)
    return part.sampled is not None and part.stop != "non-finite logits" and is_number


class LayerTimes(Nested, frozen=True):
    """Milliseconds that each layer spent in a forward pass that was timed on request: on attention, on adding new rows
    to the cache, on dequantising, on gathering rows. `products_ms` is the time that the matrix products with the
    model's weights take for one token, measured separately; the rest of a forward pass is overhead."""

    layers: tuple[int, ...]
    attention_ms: tuple[float, ...]
    cache_ms: tuple[float, ...]
    dequantise_ms: tuple[float, ...]
    copies_ms: tuple[float, ...]
    products_ms: float

    @property
    def in_cache_ms(self) -> float:
        """The time that depends on the cache mode, without attention."""
        return sum(map(sum, (self.cache_ms, self.dequantise_ms, self.copies_ms)))


class Timings(Nested, frozen=True):
    """Milliseconds of one step.

    `prepare_ms` is the cache's own work: making room, coding and evicting rows. `observe_ms` is the cost of measuring:
    the newest attention row, statistics, candidates, this record. `encoder_ms` is the encoder's pass over the source,
    in the first step of a sequence. `gap_ms` is the time since the previous step, if the two were consecutive.
    `wall_ms` is the host's measurement of step and gap together, since on a GPU the other parts are measured on the
    device. `compile_ms` is the time of torch.compile, which serves many later steps; no other number includes it.
    """

    prepare_ms: float
    forward_ms: float
    sample_ms: float
    observe_ms: float
    encoder_ms: float = 0.0
    gap_ms: float = 0.0
    wall_ms: float = 0.0
    layers: LayerTimes | None = None
    compile_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.prepare_ms + self.encoder_ms + self.forward_ms + self.sample_ms + self.observe_ms


NO_TIMES = Timings(0.0, 0.0, 0.0, 0.0)


class ByteGap(Nested, frozen=True):
    """Bytes that are not K and V of tokens, by name. `part` is the sum that includes them; `transient` ones, which
    exist only during a layer's attention, are in none."""

    name: str
    num_bytes: int
    part: Literal["stored", "reserved", "transient", "looking"]


class LayerBytes(Nested, frozen=True):
    """Bytes of one layer's cache: predicted by formula, stored in rows that hold tokens, reserved in storage.

    `gaps` name the differences: scales and an exact residual in what is stored; spare room, padding and page slack in
    what is reserved; a dequantised copy that only attention uses. `device` is the device of the layer if the model is
    on several, else empty.
    """

    layer: int
    kind: str
    predicted: int
    stored: int
    reserved: int
    gaps: tuple[ByteGap, ...] = ()
    device: str = ""


class CacheBytes(Nested, frozen=True):
    """Bytes of all layers and sequences. `looking` is held only for going back and for showing, and `kept` is the part
    of it that checkpoints take. `process` is the resident memory of the process, `allocator` what torch's allocator
    holds, `weights` the model's weights, `peak` the most that the allocator (without one, the process) held since the
    previous step, `device` what all programs use of the device. None: unknown. `terms` are the formula of the predicted
    bytes, whose sum they are; none where nothing is kept, or a file does not say. `exact` is what the same tokens would
    take if all rows were kept as they were computed; None in modes that do so."""

    layers: tuple[LayerBytes, ...]
    looking: int
    process: int
    allocator: int | None
    weights: int = 0
    kept: int = 0
    peak: int | None = None
    device: int | None = None
    terms: tuple[Term, ...] = ()
    exact: int | None = None

    @property
    def predicted(self) -> int:
        return sum(layer.predicted for layer in self.layers)

    @property
    def stored(self) -> int:
        return sum(layer.stored for layer in self.layers)

    @property
    def reserved(self) -> int:
        return sum(layer.reserved for layer in self.layers)


class StepRecord(Event, frozen=True, eq=False):
    """The record of one unit of work, which can be shown without any other record.

    Paged layouts add the page events, in order, and for each pool what a map of it needs. `page_maps` are these maps;
    the engine does not send them, the reader builds them from record to record (`PageMaps`). `preempted` are sequences
    that gave up their pages for others, `waiting` those for which there is no room yet. `evictions` are the rows that
    the cache's rule evicted after the forward pass, with their scores.

    `parent` is the node of the history tree that the step followed (None: the root), after `changes`. `checksums` are
    those of the computed rows of K and V, one for each layer with rows. `runner` names what computed the forward
    passes, several joined by +; empty if unknown.
    """

    step: int
    phase: Phase
    cache: CacheSpec
    dtype: str
    random_weights: bool
    sequences: tuple[SequenceStep, ...]
    timings: Timings = NO_TIMES
    num_bytes: CacheBytes = CacheBytes((), 0, 0, None)
    non_finite: tuple[NonFinite, ...] = ()
    wall_time: float = 0.0
    page_events: tuple[PageEvent, ...] = ()
    pools: tuple[PoolStep, ...] = ()
    page_maps: tuple[PageMap, ...] = ()
    preempted: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    parent: int | None = None
    changes: tuple[Change, ...] = ()
    checksums: tuple[int, ...] = ()
    runner: str = ""
    # Files store fields by position. A new field must be keyword-only, behind `reply_to`, which is None in files.

    def of(self, seq_id: int) -> SequenceStep | None:
        """What the step did to that sequence; None if it was not in the step."""
        return next((s for s in self.sequences if s.seq_id == seq_id), None)

    @property
    def as_told(self) -> StepRecord:
        """The record as a window is told it: of a prompt's rows, with the statistics of the newest one alone."""
        if all(part.rows is None or part.rows.num_rows <= 1 for part in self.sequences):
            return self
        parts = (replace(part, rows=part.rows and part.rows.of(-1)) for part in self.sequences)
        return replace(self, sequences=tuple(parts))

    def with_surprisal(self, seq_id: int, first_position: int, values: tuple[float, ...]) -> StepRecord:
        """The record with these surprisals, from `first_position` on, filled in for the tokens of the sequence that the
        step computed."""
        part = self.of(seq_id)
        if part is None:
            return self
        known = dict(enumerate(values, first_position - part.first_position))
        surprisal = tuple(known.get(offset, old) for offset, old in enumerate(part.surprisal))
        filled = replace(part, surprisal=surprisal)
        return replace(self, sequences=tuple(filled if each is part else each for each in self.sequences))


def read_only(array: np.ndarray[Any, Any]) -> Any:
    """A contiguous form of the array, marked as not writeable. No copy is made if it is contiguous already."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


def read_only_floats(array: np.ndarray[Any, Any]) -> Floats:
    """The array as read-only float32."""
    floats: Floats = read_only(np.asarray(array, np.float32))
    return floats


def read_only_ints(array: np.ndarray[Any, Any]) -> Ints:
    """The array as read-only int64."""
    ints: Ints = read_only(np.asarray(array, np.int64))
    return ints
