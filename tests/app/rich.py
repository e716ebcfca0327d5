"""A run in which everything differs: two sequences with prompts, lengths and tokens of their own, layers with different
numbers of heads and bytes, rows that were dropped, an edit, a branch, notes, stops, NaNs. Made without the engine."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from app.draw.grid import rows_of
from app.models import Models
from engine.spec.bookmark import Bookmark, OnHead, OnStep, OnToken
from engine.spec.cache import cache_preset, tuned
from engine.spec.codec import Part
from engine.spec.condition import Breakpoint
from engine.spec.edit import Rows, Scale, Zero
from engine.spec.sampling import SamplingParams
from engine.wire.breakpoints import BreakpointState
from engine.wire.events import NodeAdded
from engine.wire.measurements import EditMeasured, KeptRows
from engine.wire.pictures import (
    AttentionRequest,
    HeadPicture,
    HeadRequest,
    OutliersRequest,
    RowRequest,
    WallPicture,
    WallRequest,
)
from engine.wire.records import (
    ByteGap,
    CacheBytes,
    Candidate,
    EditMade,
    Eviction,
    LayerBytes,
    LayerTimes,
    NonFinite,
    StepRecord,
    Survivors,
    TokensForced,
)
from engine.wire.status import CaptureState, EngineStatus, SequenceInfo
from engine.wire.tree import KeptStateBytes, Node
from tests.app import samples

SPEC = tuned(cache_preset("h2o").spec, budget=20, sinks=2)
LONG = 9  # tokens in the prompt of the second sequence; the first has samples.PROMPT
HEADS = (4, 4, 2, 4, 4, 3)  # kv heads of the layers, as the wall tells them
LEFT, LIVE = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 6, 8, 9, 10)  # the steps of the branch that was left, and of the live one
EDIT = 7  # the node of the edit, between steps 6 and 8
OTHER_EDIT = 11  # of the second sequence, on the branch that was left


def candidates(step: int, count: int = 8) -> tuple[Candidate, ...]:
    """Candidates whose probabilities before and after temperature and top-p differ; the last one is never drawn."""
    found = samples.candidates(step, count)
    sharp = [one.prob**2 for one in found[:-1]]
    drawn = [*(one / sum(sharp) for one in sharp), 0.0]
    return tuple(replace(one, sampled_prob=prob) for one, prob in zip(found, drawn, strict=True))


def record(step: int, place: int, parent: int | None) -> StepRecord:
    """The record of a step, given its place on its path."""
    own = samples.step_record(place)
    other = samples.step_record(place + 50, LONG, seq_id=1).sequences[0]
    first = 0 if place == 0 else LONG + place - 1
    new = range(first, LONG + place)
    other = replace(
        other, phase=own.phase, token_ids=tuple(700 + n for n in new), texts=tuple(f" other{n}" for n in new),
        surprisal=tuple(0.5 + 0.1 * n for n in new), first_position=first, num_tokens=LONG + place,
        rows=samples.row_stats(len(new), 90 + place), sampled_text=f" other{LONG + place}", sampled=703,
    )  # fmt: skip
    first_part = replace(own.sequences[0], candidates=candidates(place))
    other = replace(other, candidates=candidates(place + 50, 5))
    found = replace(
        own, step=step, parent=parent, cache=SPEC, dtype="bfloat16", num_bytes=num_bytes(place), runner="transformers",
        sequences=(first_part, other), wall_time=1_700_000_000.0 + 0.05 * step,
        timings=replace(own.timings, gap_ms=0.25 + 0.1 * place, wall_ms=0.3),
    )  # fmt: skip
    return _with_events(found, step)


def _with_events(found: StepRecord, step: int) -> StepRecord:
    if step == 8:  # this token was forced, and is not the most probable one
        part = replace(found.sequences[0], forced=True, sampled=found.sequences[0].candidates[2].token_id)
        found = replace(found, sequences=(part, found.sequences[1]), changes=(TokensForced(0, (part.sampled or 0,)),))
    if step == 9:
        found = replace(found, non_finite=(NonFinite("keys", 2, 1, 10, 3), NonFinite("logits", None, None, 10, 1)))
        found = replace(found, evictions=tuple(eviction(layer, head) for layer in (1, 3) for head in (0, 2)))
    if step == 10:
        parts = [tuple(part * (n + 1) for n in range(6)) for part in (0.5, 0.2, 0.1, 0.05)]
        times = LayerTimes(tuple(range(6)), parts[0], parts[1], parts[2], parts[3], 2.5)
        found = replace(found, timings=replace(found.timings, layers=times, encoder_ms=0.75))
    return found


def edit_measured() -> EditMeasured:
    """The third token became the first, another came anew, and rows behind stand apart, but for a hole in layer 2."""
    before, after = candidates(4, 4), candidates(4, 6)
    after = (replace(after[2], prob=0.6), replace(after[0], prob=0.3), *after[4:])
    keys = np.array([[0, 0, 0], [0.1, 0.2, 0.3], [0.5, np.nan, 0.7], [np.nan] * 3], np.float32)
    kept = KeptRows((0, 1, 2, 4), 3, keys, keys[::-1] * 3)
    return EditMeasured(EDIT, 0, 0.25, before, after, 1.5, 20.0, kept, entropy=0.5)


def eviction(layer: int, kv_head: int) -> Eviction:
    positions = np.array([2 + kv_head, 5 + kv_head], np.int64)
    scores = np.array([0.25, 0.5], np.float32) + layer
    kept = Survivors(4, 3, np.linspace(layer + 0.6, layer + 2, 4, dtype=np.float32))
    return Eviction(0, layer, kv_head, positions, scores, layer + 0.6, "least attention received", kept)


def num_bytes(place: int) -> CacheBytes:
    def layer(n: int) -> LayerBytes:
        stored = 1000 * (n + 1) + 10 * place
        gaps = (
            ByteGap("room to grow", 300 + n, "reserved"), ByteGap("scales", 20 + n, "stored"),
            ByteGap("dequantised copy", 500 + n, "transient"), ByteGap("scores", 70 + n, "looking"),
        )  # fmt: skip
        return LayerBytes(n, "sliding" if n == 2 else "full", stored - 20 - n, stored, stored + 300 + n, gaps)

    return CacheBytes(
        tuple(map(layer, range(6))), 48_000 + place, 412_000_000, 61_000_000, 11_000_000, 1_300, 70_000_000, 90_000_000
    )


def status() -> EngineStatus:
    infos = (
        SequenceInfo(
            0, "decode", samples.PROMPT + 7, samples.PROMPT, 3, None, sampling=SamplingParams(temperature=0.7)
        ),
        SequenceInfo(1, "finished", LONG + 7, LONG, 5, "stop string", num_preemptions=2),
        SequenceInfo(2, "waiting", 0, 33, None, None, num_preemptions=1),
    )
    stops = (
        BreakpointState(Breakpoint(1, "entropy > 2")),
        BreakpointState(Breakpoint(2, "step = 90", False)),
        BreakpointState(Breakpoint(3, "surprisal > 4"), "never here"),
    )
    base = samples.status(10, cache=SPEC)
    assert base.model is not None
    model = replace(base.model, note="a note of the model", templates=("default", "tools"))
    capture = CaptureState("everything", costs_ms=(("off", 0.125), ("everything", 0.75)))
    kept = (KeptStateBytes(5, 2_000, 3_000), KeptStateBytes(OTHER_EDIT, 700, 5_000))
    return replace(
        base, model=model, sequences=infos, breakpoints=stops, capture=capture, kept=kept, kept_bytes=8_000,
        kept_limit=1 << 28,
        sampling=SamplingParams(temperature=0.7, top_p=0.9, seed=7),
    )  # fmt: skip


def rich_models() -> Models:
    models = Models()
    models.status.set_engine("thread")
    steps = [record(step, place, step - 1 if step else None) for place, step in enumerate(LEFT)]
    models.timeline.append(steps)
    for step, place, parent in ((6, 4, 3), (8, 5, EDIT), (9, 6, 8), (10, 7, 9)):
        if step == 6:
            models.history.go_to(3)
            models.timeline.go_to(3)
        if step == 8:
            made = EditMade(Zero(0, Rows(1, 3, (2, 3), (1,))))
            models.history.add(NodeAdded(Node(EDIT, 6, (made,), SPEC), True, "written", 0.25))
        models.timeline.append([record(step, place, parent)])
    other = EditMade(Scale(1, Rows(4, 9, (0, 5), (0, 2), (1, 3), "keys"), 0.5))
    models.history.add(NodeAdded(Node(OTHER_EDIT, 5, (other,), SPEC), False, "written"))
    models.edits.take(edit_measured())
    models.history.rename(4, "the other way")
    models.status.set(status())
    models.breakpoints.set(one.breakpoint for one in status().breakpoints)
    for target, text in (
        (OnStep(6), "a moment"), (OnToken(8, 0, 8), "a token"), (OnHead(9, 0, 3, 1), "a head\nof two lines"),
        (OnStep(4), "left behind"), (OnToken(2, 1, 10), ""),
    ):  # fmt: skip
        models.bookmarks.put(Bookmark(target, text))
    models.selection.update(layer=3, kv_head=1, position=6)
    models.timeline.announce()
    return models


# ---- what the engine answers ---------------------------------------------------------------------------------------


def wall(request: WallRequest) -> WallPicture:
    """Heads that a layer has not are NaN, dropped rows too; V of layer 4 is far beyond its range."""
    piece = samples.wall_picture(request)
    low, high = piece.low.copy(), piece.high.copy()
    for layer, heads in enumerate(HEADS):
        low[layer, heads:], high[layer, heads:] = np.nan, np.nan
    absent = np.zeros(low.shape[:3], np.int64)
    holders = np.stack([np.full(request.num_tokens, sum(HEADS)), np.full(request.num_tokens, 6)])
    if request.seq_id == 0 and request.num_tokens > 9:
        absent[3, 1, 5] = absent[1, 0, 2] = 1
        low[3, 1, 5], high[3, 1, 5], low[1, 0, 2], high[1, 0, 2] = (np.nan,) * 4
        holders[:, 5], holders[:, 2], holders[0, 7] = (20, 6), (0, 0), 17
    magnitudes = samples.magnitudes()
    other = replace(magnitudes, largest=magnitudes.limit * np.array([1, 2, 1, 1, 7, 1], np.float32))
    return replace(
        piece, heads=HEADS, low=low, high=high, absent=absent, holders=holders, other_magnitudes=other,
        note="a note of the wall",
    )  # fmt: skip


def head(request: HeadRequest) -> HeadPicture:
    """A dropped row, two NaN and one infinity."""
    piece = samples.head_picture(request)
    low, high = piece.low.copy(), piece.high.copy()
    absent = np.zeros(len(low), np.int64)
    if len(low) > 7:
        low[5] = high[5] = np.nan
        absent[5] = 1
        low[7, :2], high[7, :2], low[7, 3], high[7, 3] = np.nan, np.nan, np.inf, np.inf
    return replace(piece, low=low, high=high, absent=absent, num_nan=2, num_inf=1, note="a note of the head")


def give_pictures(models: Models) -> None:
    """Answer what the views asked for, as the engine would."""
    now, wanted = models.selection.now, models.viewport.now
    found = models.timeline.newest_of(now.seq_id, now.step)
    if found is None:
        return
    count = models.timeline.num_tokens(now.seq_id, now.step)
    tensor: Part = now.lens
    if wanted.wall_size is not None:
        models.pictures.put(wall(WallRequest(now.seq_id, count, count - 1, tensor, now.change, *wanted.wall_size)))
    if wanted.head_columns is not None:
        start, stop = rows_of(wanted.head_range, count)
        models.pictures.put(
            head(HeadRequest(now.seq_id, count, tensor, now.layer, now.kv_head, start, stop, wanted.head_columns))
        )
    if wanted.attention_columns is not None:
        start, stop = rows_of(wanted.attention_range, count)
        request = AttentionRequest(now.seq_id, found.step, now.layer, wanted.attention_columns, start, stop)
        models.pictures.put(samples.attention_picture(request, count))
    if wanted.wants_row:
        position = count - 1 if now.position is None else now.position
        models.pictures.put(
            replace(samples.row_picture(RowRequest(now.seq_id, count, position)), note="a note of the row")
        )
    if wanted.wants_outliers:
        models.pictures.put(samples.outliers_picture(OutliersRequest(now.seq_id, count, found.step)))
