"""The rich run beside another one: every step, layer, head and channel of both sides differs."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from app.draw.grid import rows_of
from app.models import Models
from app.models.comparison import SIDES, ComparedPictures
from engine.spec.cache import cache_named
from engine.wire.comparison import ComparedSide, ComparedStep, ComparisonStarted, FirstDifference, OtherRun
from engine.wire.pictures import AttentionRequest, HeadRequest, Picture, PictureRequest, Side, WallRequest
from tests.app import samples
from tests.app.rich import LIVE, head, rich_models, wall

COMPARED = ComparisonStarted(
    0, OtherRun(cache_named("kivi-2")),
    ComparedSide("sequence 0", "Tales", "H2O", "bfloat16", is_lossy=True, moves=True, edited_from=9),
    ComparedSide("the same tokens in KIVI-2", "Tales", "KIVI-2", "float32", is_lossy=True, moves=True),
    tuple(range(samples.LAYERS)), (), "", 1e-3,
)  # fmt: skip
FIRST = FirstDifference(5, 2, "values", 1, 9, 0.5, 0.75, 0.125, 0.001)


def compared_models() -> Models:
    models = rich_models()
    steps = []
    for place, step in enumerate(LIVE):
        one = samples.compared_step(place)
        layers = np.linspace(0.01, 0.09, samples.LAYERS, dtype=np.float32) * (place + 1)
        steps.append(
            replace(
                one,
                step=step,
                kl=0.01 * place**2,
                keys=layers,
                values=layers[::-1] * 2,
                attention=np.roll(layers, 2) / 2,
                is_beyond_rounding=place > 2,
                ms=(3.0 + place, 7.5 - place / 2),
                kv_bytes=(4096 + 100 * place, 1024 + 10 * place),
            )
        )
    models.comparison.start(replace(COMPARED, steps=tuple(steps)))
    models.comparison.scan(11, FIRST)
    models.selection.update(channel=3)
    return models


def next_compared(models: Models) -> ComparedStep:
    """The last step that was compared, a token later, and farther apart."""
    last = models.comparison.steps[-1]
    return replace(last, step=last.step + 1, num_tokens=last.num_tokens + 1, kl=(last.kl or 0) + 0.25, ms=(2.0, 9.5))


def give_compared(models: Models) -> None:
    """The pictures of both sides that are wanted now; B is brighter, and upside down in its rows."""
    now, wanted = models.selection.now, models.viewport.now.compared
    count = models.timeline.num_tokens(0, now.step)
    if wanted is None or not count:
        return
    request: PictureRequest
    if wanted.kind == "wall":
        request = WallRequest(0, count, count - 1, now.lens, False, wanted.columns, wanted.rows)
    elif wanted.kind == "head":
        start, stop = rows_of(models.viewport.now.head_range, count)
        request = HeadRequest(0, count, now.lens, now.layer, now.kv_head, start, stop, wanted.columns)
    else:
        start, stop = rows_of(models.viewport.now.attention_range, count)
        found = models.timeline.newest_of(0, now.step)
        assert found is not None
        request = AttentionRequest(0, found.step, now.layer, wanted.columns, start, stop)
    models.comparison.put(ComparedPictures(*(_piece(request, side, count) for side in SIDES)))


def _piece(request: PictureRequest, side: Side, count: int) -> Picture:
    provenance = "difference" if side == "difference" else "live cache"
    if isinstance(request, AttentionRequest):
        row = samples.attention_picture(request, count)
        other = row.weights[::-1]
        weights = {"a": row.weights, "b": other, "difference": row.weights - other}[side]
        return replace(row, weights=weights, provenance=provenance)
    piece = wall(request) if isinstance(request, WallRequest) else head(request)  # type: ignore[arg-type]
    low, high = (part[..., ::-1] + np.float32(0.5) for part in (piece.low, piece.high))
    if side == "difference":
        low, high = piece.low - low, piece.high - high
    elif side == "a":
        low, high = piece.low, piece.high
    return replace(piece, low=low, high=high, provenance=provenance)
