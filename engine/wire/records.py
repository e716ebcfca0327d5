"""What the engine answers: frozen messages of numbers, strings, tuples and read-only arrays.

Shapes: L attention layers, H query heads, H_kv key/value heads, T tokens fed in the step, D head_dim.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from engine.spec.cache import CacheSpec
from engine.wire.changes import Change
from engine.wire.evictions import Eviction
from engine.wire.message import EventMessage, Part
from engine.wire.page_events import PageEvent
from engine.wire.page_map import PageMap, PoolStep

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

Phase = Literal["prefill", "decode"]
StopReason = Literal[
    "end of text", "stop string", "length", "context full", "cache full", "stopped", "non-finite logits"
]
SequenceState = Literal["waiting", "prefill", "decode", "finished"]
Provenance = Literal[
    "live cache", "kept", "dequantised", "recomputed", "recorded", "as stored now", "predicted", "difference"
]


class Candidate(Part, frozen=True):
    """One of the top choices for the next token. `sampled_prob` is after temperature and filters."""

    token_id: int
    text: str
    logprob: float
    prob: float
    sampled_prob: float


class RowStats(Part, frozen=True, eq=False):
    """The new rows of K and V as the step wrote them, measured on the engine's device.

    Norms are `[L, H_kv, T]` (L2 over head_dim). What becomes of a row later, coded when its turn comes or by a change
    of mode, is not in them: `RowSlice` has the norms of the row as stored.
    """

    layers: tuple[int, ...]
    key_norm: Floats
    value_norm: Floats


class NonFinite(Part, frozen=True):
    """Where a NaN or an infinity was written or produced. Layer None: the logits."""

    tensor: Literal["keys", "values", "logits"]
    layer: int | None
    kv_head: int | None
    position: int
    count: int


class AttentionSummary(Part, frozen=True, eq=False):
    """The newest query's attention, `[L, H]` each: mass on position 0, and on the last 16 positions. What has to be
    computed from the whole row is in the pictures of it."""

    layers: tuple[int, ...]
    first_mass: Floats
    recent_mass: Floats


class SequenceStep(Part, frozen=True, eq=False):
    """What one step did to one sequence: tokens `first_position … num_tokens` were fed, `sampled` was chosen next.
    `surprisal` is None where there is none, and of a long prompt until `PromptSurprisal` tells it; `stop` says why
    nothing follows."""

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


def has_chosen(part: SequenceStep) -> bool:
    """Whether the model chose a token to follow; where its logits were no numbers `sampled` is 0, and none was."""
    is_number = part.entropy is None or not math.isnan(part.entropy)
    return part.sampled is not None and part.stop != "non-finite logits" and is_number


class LayerTimes(Part, frozen=True):
    """Milliseconds that each of some layers spent inside a forward, which was timed on request: on attention, on taking
    new rows into the cache, on dequantising, on gathering rows. `products_ms` is what the matrix products of the
    model's weights take by themselves for one token, measured apart: what is left of a forward is overhead."""

    layers: tuple[int, ...]
    attention_ms: tuple[float, ...]
    cache_ms: tuple[float, ...]
    dequantise_ms: tuple[float, ...]
    copies_ms: tuple[float, ...]
    products_ms: float

    @property
    def in_cache_ms(self) -> float:
        """All that a cache mode changes of a forward, but attention."""
        return sum(map(sum, (self.cache_ms, self.dequantise_ms, self.copies_ms)))


class Timings(Part, frozen=True):
    """Milliseconds of one step. `prepare_ms` is the cache's own work: room, and rows coded and dropped; `observe_ms` is
    what looking cost: the newest attention row, statistics, candidates, this record; `encoder_ms` is the run of an
    encoder over the source, which belongs to the first step of a sequence. `gap_ms` is what lay between the step before
    and this one, where one followed the other, and `wall_ms` what the host's clock says of both together: on a GPU the
    parts are measured there. `compile_ms` is what torch.compile took meanwhile, once for many steps: it is in none of
    the others."""

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


class ByteGap(Part, frozen=True):
    """Bytes that are not numbers of tokens, by name. `part` says which sum they are in; transient ones are in none:
    they live as long as the layer's attention."""

    name: str
    num_bytes: int
    part: Literal["stored", "reserved", "transient", "looking"]


class LayerBytes(Part, frozen=True):
    """One layer's cache: predicted by formula, stored in rows that hold tokens, reserved in storage.

    `gaps` name what else there is: scales and an exact residual within what is stored; room, padding and page slack
    within what is reserved beyond it; a dequantised copy that only attention sees. `device` is where it stands, in a
    model whose layers stand on several; empty in others.
    """

    layer: int
    kind: str
    predicted: int
    stored: int
    reserved: int
    gaps: tuple[ByteGap, ...] = ()
    device: str = ""


class CacheBytes(Part, frozen=True):
    """All layers, all sequences. `looking` is held for pictures only, `kept` of it for moments to go back to;
    `allocator` is None where none can be asked. `weights` are the model's; `peak` is the most that the allocator, or
    where there is none the process, held since the step before; `device` is in use there by all programs. None: nobody
    can tell."""

    layers: tuple[LayerBytes, ...]
    looking: int
    process: int
    allocator: int | None
    weights: int = 0
    kept: int = 0
    peak: int | None = None
    device: int | None = None

    @property
    def predicted(self) -> int:
        return sum(layer.predicted for layer in self.layers)

    @property
    def stored(self) -> int:
        return sum(layer.stored for layer in self.layers)

    @property
    def reserved(self) -> int:
        return sum(layer.reserved for layer in self.layers)


class StepRecord(EventMessage, frozen=True, eq=False):
    """One unit of work, complete in itself: it can be drawn alone.

    Paged layouts add what happened to pages, in order, and of every pool what a map of it needs; `page_maps` are those
    maps, which the engine does not send: whoever reads folds them from record to record (`PageMaps`). `preempted` are
    the sequences that gave their pages up for others, `waiting` those that found no room yet. `evictions` are the rows
    that the cache's rule dropped after the forward, with their scores.

    `parent` is the node of the history tree that the step was taken from (None: the root), after `changes`; `checksums`
    of the rows of K and V that it wrote, one a layer with rows, as they were computed. `runner` names what computed its
    forwards, several joined by +; empty where that is not known.
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
    parent: int | None = None
    changes: tuple[Change, ...] = ()
    checksums: tuple[int, ...] = ()
    runner: str = ""
    # files name fields by their place: a later one is keyword-only, behind `reply_to`, which is None in a file

    def of(self, seq_id: int) -> SequenceStep | None:
        """What the step did to that sequence."""
        return next((s for s in self.sequences if s.seq_id == seq_id), None)

    def with_surprisal(self, seq_id: int, first_position: int, values: tuple[float, ...]) -> StepRecord:
        """The record that knows these surprisals of a sequence's tokens, as far as the step fed them."""
        part = self.of(seq_id)
        if part is None:
            return self
        known = dict(enumerate(values, first_position - part.first_position))
        surprisal = tuple(known.get(offset, old) for offset, old in enumerate(part.surprisal))
        filled = replace(part, surprisal=surprisal)
        return replace(self, sequences=tuple(filled if each is part else each for each in self.sequences))
