"""Wire records for tests of the window, made with numpy alone: a small model that tells a story."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec, cache_named
from engine.spec.sampling import SamplingParams
from engine.spec.terms import Term
from engine.wire.comparison import ComparedSide, ComparedStep, ComparisonStarted, Opponent, OtherRun
from engine.wire.pictures import (
    Attended,
    AttentionPicture,
    AttentionRequest,
    HeadPicture,
    HeadRequest,
    Magnitudes,
    Outlier,
    OutliersPicture,
    OutliersRequest,
    RowPicture,
    RowRequest,
    WallPicture,
    WallRequest,
)
from engine.wire.records import (
    AttentionSummary,
    ByteGap,
    CacheBytes,
    Candidate,
    LayerBytes,
    RowStats,
    SequenceStep,
    StepRecord,
    Timings,
)
from engine.wire.status import EngineStatus, ModelInfo, SequenceInfo

S = TypeVar("S", bound=Struct)

LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 6, 8, 4, 32, 1024
ROW_BYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
WORDS = [
    "Once", " upon", " a", " time", ",", " there", " was", " a", " little", " g", "ir", "l", " named", " Lily",
    ".", " She", " lo", "ved", " to", " play", ".", " One", " day", ",", " she", " saw", " a", " big", ",",
    " red", " ball", ".", '\n', ' "', "Can", " I", " play", '?"', " she", " asked", ".", " Her", " mom",
    " said", ",", ' "', "Yes", '."', "é�", "<b>",
]  # fmt: skip
PROMPT = 4


def geometry(
    layers: int = LAYERS, kv_heads: int = KV_HEADS, head_dim: int = HEAD_DIM, heads: int = HEADS
) -> CacheGeometry:
    return CacheGeometry.uniform(layers, kv_heads, head_dim, num_heads=heads, max_length=CONTEXT)


def model_info(name: str = "Tales", *, random_weights: bool = False, shape: CacheGeometry | None = None) -> ModelInfo:
    return ModelInfo(
        name=name, source="bundled", architecture="Llama", geometry=shape or geometry(), dtype="float32", device="cpu",
        num_threads=2, num_parameters=5_500_000, weight_bytes=11_000_000, random_weights=random_weights,
        has_tokenizer=True, captures_attention=True, fingerprint=f"sha256:{name}", note="",
    )  # fmt: skip


def status(
    step: int | None = None,
    *,
    num_tokens: int = 0,
    running: bool = False,
    model: ModelInfo | None = None,
    cache: CacheSpec | None = None,
    **more: object,
) -> EngineStatus:
    """The engine at rest on the sample model; with tokens, one decoding sequence."""
    sequences = (SequenceInfo(0, "decode", num_tokens, PROMPT, 11, None),) if num_tokens else ()
    return EngineStatus(
        model=model or model_info(),
        cache=cache or CacheSpec(),
        sampling=SamplingParams(),
        sequences=sequences,
        step=step,
        running=running,
        work=more.get("work"),  # type: ignore[arg-type]
    )


def word(position: int) -> str:
    return WORDS[position % len(WORDS)]


def candidates(step: int, count: int = 8) -> tuple[Candidate, ...]:
    rng = np.random.default_rng(1000 + step)
    probs = np.sort(rng.dirichlet(np.full(count, 0.45)))[::-1] * 0.97
    return tuple(
        Candidate(100 + i + step, word(step + 5 * i), math.log(max(p, 1e-9)), float(p), float(p))
        for i, p in enumerate(probs)
    )


def row_stats(num_new: int, seed: int, layers: int = LAYERS, kv_heads: int = KV_HEADS) -> RowStats:
    rng = np.random.default_rng(seed)
    shape = (layers, kv_heads, num_new)
    key = (4 + 2 * rng.random(shape)).astype(np.float32)
    value = (1 + rng.random(shape)).astype(np.float32)
    return _read_only(RowStats(tuple(range(layers)), key, value))


def attention_summary(seed: int) -> AttentionSummary:
    rng = np.random.default_rng(seed)
    shape = (LAYERS, HEADS)
    weights = (rng.random(shape).astype(np.float32) * most for most in (0.6, 0.4))
    return _read_only(AttentionSummary(tuple(range(LAYERS)), *weights))


def cache_bytes(num_tokens: int, reserved_tokens: int | None = None) -> CacheBytes:
    row = ROW_BYTES // LAYERS
    reserved = reserved_tokens if reserved_tokens is not None else max(64, 1 << num_tokens.bit_length())
    stored = num_tokens * row
    room = (ByteGap("room to grow", reserved * row - stored, "reserved"),) if reserved > num_tokens else ()
    layers = tuple(LayerBytes(i, "full", stored, stored, reserved * row, room) for i in range(LAYERS))
    terms = (Term("", "K and V", 2, LAYERS, KV_HEADS, HEAD_DIM, num_tokens, 4),)
    return CacheBytes(layers, looking=48_000, process=412_000_000, allocator=None, terms=terms)


def step_record(step: int, num_prompt: int = PROMPT, *, seq_id: int = 0, cache: CacheSpec | None = None) -> StepRecord:
    """Step 0 computes the prompt, every later one a token: after step s the cache holds `num_prompt + s` tokens."""
    return replace(_step_record(step, num_prompt, seq_id), cache=cache or CacheSpec())


@lru_cache(maxsize=4096)
def _step_record(step: int, num_prompt: int, seq_id: int) -> StepRecord:
    """Made once for all windows that take the step: nobody may write into it."""
    is_prefill = step == 0
    first = 0 if is_prefill else num_prompt + step - 1
    last = num_prompt + step
    positions = range(first, last)
    rng = np.random.default_rng(step)
    surprisal = tuple(None if p == 0 else float(rng.gamma(1.4, 1.2)) for p in positions)
    choices = candidates(step)
    part = SequenceStep(
        seq_id=seq_id,
        phase="prefill" if is_prefill else "decode",
        token_ids=tuple(100 + p for p in positions),
        texts=tuple(word(p) for p in positions),
        first_position=first,
        num_tokens=last,
        num_prompt_tokens=num_prompt,
        surprisal=surprisal,
        sampled=choices[0].token_id,
        sampled_text=word(last),
        forced=False,
        candidates=choices,
        entropy=1.8 + math.sin(step),
        stop=None,
        rows=row_stats(last - first, step),
        attention=attention_summary(step),
        stored_bytes=last * ROW_BYTES,
    )
    forward = 6.0 + 1.5 * math.sin(step / 5) + float(rng.random())
    return StepRecord(
        step=step,
        phase=part.phase,
        cache=CacheSpec(),
        dtype="float32",
        random_weights=False,
        sequences=(part,),
        timings=Timings(0.4 + 0.2 * float(rng.random()), forward, 0.5, 0.15),
        num_bytes=cache_bytes(last),
        non_finite=(),
        wall_time=1_700_000_000.0 + step * 0.01,
    )


def prompt_tokens() -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ids and texts of the prompt that every story begins with."""
    part = step_record(0).sequences[0]
    return part.token_ids, part.texts


def story(num_steps: int, num_prompt: int = PROMPT) -> list[StepRecord]:
    """A prefill and `num_steps` decode steps."""
    return [step_record(step, num_prompt) for step in range(num_steps + 1)]


# ---- slices ------------------------------------------------------------------------------------------------------


def _field(columns: int, rows: int, seed: int) -> np.ndarray:
    """Signed data with the stripes of real keys: some channels large and constant, most small and varied."""
    rng = np.random.default_rng(seed)
    channel = rng.normal(0, 1.0, rows) * (rng.random(rows) < 0.35) * 2.5
    drift = np.cumsum(rng.normal(0, 0.12, (columns, rows)), axis=0)
    return (channel[None] + drift + rng.normal(0, 0.6, (columns, rows))).astype(np.float32)


def _read_only(piece: S) -> S:
    """The same with arrays that nobody can write into: the tests of a process share it."""
    for part in astuple(piece):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
        elif isinstance(part, Struct):
            _read_only(part)
    return piece


def wall_picture(request: WallRequest) -> WallPicture:
    per_column = max(1, math.ceil(request.num_tokens / max(1, request.max_columns)))
    per_row = max(1, math.ceil(HEAD_DIM / max(1, request.max_rows)))
    columns, rows = math.ceil(request.num_tokens / per_column), math.ceil(HEAD_DIM / per_row)
    salt = (7 if request.lens == "values" else 0) + (31 if request.change else 0)
    low, high = _wall(columns, rows, salt)
    return WallPicture(
        request, "live cache", "float32", tuple(range(LAYERS)), (KV_HEADS,) * LAYERS, low, high,
        request.num_tokens, per_column, per_row, "", 1.5, magnitudes=magnitudes(),
    )  # fmt: skip


@lru_cache(maxsize=192)
def _wall(columns: int, rows: int, salt: int) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest of every column of every head of every layer; nobody can write into them."""
    low = np.stack(
        [np.stack([_field(columns, rows, 97 * i + h + salt) for h in range(KV_HEADS)]) for i in range(LAYERS)]
    )
    high = low + 0.1
    low.setflags(write=False)
    high.setflags(write=False)
    return low, high


def magnitudes(layers: int = LAYERS) -> Magnitudes:
    """Of each layer other numbers, so that no layer can pass for another: limits 3, 3.5, 4 …"""
    limit = (3 + 0.5 * np.arange(layers)).astype(np.float32)
    return Magnitudes(limit, limit * 1.5, np.full(layers, 0.005, np.float32))


def head_picture(request: HeadRequest) -> HeadPicture:
    return replace(_head_picture(request))


@lru_cache(maxsize=512)
def _head_picture(request: HeadRequest) -> HeadPicture:
    per_column = max(1, math.ceil((request.stop - request.start) / max(1, request.max_columns)))
    positions = np.arange(request.start, request.stop, per_column, dtype=np.int64)
    values = _field(len(positions), HEAD_DIM, 97 * request.layer + request.kv_head)
    counts, edges = np.histogram(values, bins=64)
    return _read_only(HeadPicture(
        request=request, provenance="live cache", dtype="float32", low=values,
        high=values if per_column == 1 else values + 0.1, positions=positions, tokens_per_column=per_column,
        counts=counts.astype(np.int64), edges=edges.astype(np.float32),
        limit=float(np.percentile(np.abs(values), 99.5)) if values.size else 0.0,
        lowest=float(values.min()) if values.size else 0.0, highest=float(values.max()) if values.size else 0.0,
        num_nan=0, num_inf=0, query_heads=(2 * request.kv_head, 2 * request.kv_head + 1),
        magnitudes=Magnitudes(*(part[request.layer : request.layer + 1] for part in astuple(magnitudes()))),
        tensor_label="keys after rotary embedding" if request.lens == "keys" else "values", note="", took_ms=0.6,
    ))  # fmt: skip


def attention_picture(request: AttentionRequest, num_tokens: int) -> AttentionPicture:
    return replace(_attention_picture(request, num_tokens))


@lru_cache(maxsize=1024)
def _attention_picture(request: AttentionRequest, num_tokens: int) -> AttentionPicture:
    stop = num_tokens if request.stop is None else min(request.stop, num_tokens)
    per_column = max(1, math.ceil((stop - request.start) / max(1, request.max_columns)))
    rng = np.random.default_rng(request.layer * 1000 + request.step)
    row = rng.gamma(0.25, 1.0, (HEADS, num_tokens)).astype(np.float32)
    row[:, 0] += row.sum(axis=1)  # a sink takes half and more
    row /= row.sum(axis=1, keepdims=True)
    top = np.argsort(-row, axis=1)[:, :5]
    positions = np.arange(request.start, stop, per_column, dtype=np.int64)
    weights = np.maximum.reduceat(row[:, request.start : stop], positions - request.start, axis=1)
    return _read_only(AttentionPicture(
        request, "live cache", weights, positions, per_column, HEADS // KV_HEADS, num_tokens - 1, "", 0.4,
        top_positions=top.astype(np.int64), top_weights=np.take_along_axis(row, top, 1),
        entropy=-(row * np.log(np.maximum(row, 1e-30))).sum(axis=1),
    ))  # fmt: skip


def outliers_picture(request: OutliersRequest) -> OutliersPicture:
    """A channel of V far beyond its layer's range, and ordinary ones."""
    keys = tuple(Outlier(n, n % KV_HEADS, 3 + n, 2 * n, 4.0 - 0.1 * n, 1.9 - 0.1 * n) for n in range(LAYERS))
    values = (Outlier(4, 2, 17, 9, -21.5, 5.6), *(replace(one, value=-one.value) for one in keys))
    attended = (Attended(0, 0.4, 1, 5, 2, 0.9), Attended(7, 0.1, 3, 0, 0, 0.3))
    return OutliersPicture(request, "live cache", keys, values, attended, "", 0.3)


def row_picture(request: RowRequest) -> RowPicture:
    rng = np.random.default_rng(request.position)
    tiles = tuple(rng.normal(0, 1.5, (KV_HEADS, HEAD_DIM)).astype(np.float32) for _ in range(2 * LAYERS))
    return RowPicture(
        request, "live cache", "float32", tuple(range(LAYERS)), tiles[:LAYERS], tiles[LAYERS:], "", 0.2
    )  # fmt: skip


def compared_step(step: int) -> ComparedStep:
    """A comparison after a step: farther apart with every step."""
    layers = np.linspace(0.01, 0.02, LAYERS).astype(np.float32) * (step + 1)
    return ComparedStep(
        step=step, num_tokens=PROMPT + step, kl=0.01 * step, max_abs_logit_diff=0.1 * step, top1_agrees=step % 3 != 2,
        top=(candidates(step, 5), candidates(step + 1, 5)), keys=layers, values=layers * 2, attention=layers / 2,
        is_beyond_rounding=step > 0, ms=(3.0, 4.0), kv_bytes=(4096, 1024),
    )  # fmt: skip


def comparison_started(num_steps: int = 4, against: Opponent = OtherRun(cache_named("kivi-2"))) -> ComparisonStarted:  # noqa: B008
    return ComparisonStarted(
        0, against, ComparedSide("sequence 0", "Tales", "Growing", "float32", is_lossy=False, moves=True),
        ComparedSide("the same tokens in KIVI-2", "Tales", "KIVI-2", "float32", is_lossy=True, moves=True),
        tuple(range(LAYERS)), tuple(map(compared_step, range(num_steps))), "", 1e-3,
    )  # fmt: skip
