"""Runs of other shapes than the one of `rich`: an encoder-decoder, layers that keep a state or nothing, a run of more
steps than a panel has pixels, and a moment that was gone back to, with what came after it left behind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from app.draw.grid import rows_of
from app.kit.provenance import STORED_NOW
from app.models import Models
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.spec.codec import Part
from engine.wire.pictures import HeadRequest, Magnitudes, StatePicture, WallPicture, WallRequest
from engine.wire.records import LayerBytes, RowStats, StepRecord
from tests.app import samples
from tests.app.rich import give_pictures, rich_models, wall

SOURCE, DECODED = 6, 4  # tokens that the encoder read, and steps after the first
MANY = 2_500  # steps of the long run
KEPT = [0, 4, 5]  # the layers of the hybrid that have rows
STATE = {1: 512, 2: 0, 3: 0}  # bytes of the state of the others
_HEADS = samples.KV_HEADS

HYBRID = CacheGeometry(
    "Hybrid", "hybrid",
    (
        LayerGeometry(0, "full", _HEADS, 32, 32, 8), LayerGeometry(1, "linear", 2, 32, 32, 8, state_elements=128),
        LayerGeometry(2, "shared", _HEADS, 32, 32, 8, shares_with=0), LayerGeometry(3, "none", 0, 0, 0, 0),
        LayerGeometry(4, "sliding", _HEADS, 32, 32, 8, window=4),
        LayerGeometry(5, "full", _HEADS, 32, 32, 8, state_elements=64),
    ),
    max_length=samples.CONTEXT,
)  # fmt: skip
CROSSED = CacheGeometry(
    "Crossed", "crossed",
    tuple(LayerGeometry(n, "cross" if n > 2 else "full", _HEADS, 32, 32, 8) for n in range(samples.LAYERS)),
    max_length=samples.CONTEXT,
)  # fmt: skip


def encoder_models() -> Models:
    """Six tokens of a source, and five of a decoder."""
    models = Models()
    models.timeline.append([_first(), *map(_decoded, range(1, DECODED + 1))])
    shape = samples.model_info(shape=CROSSED)
    models.status.set(samples.status(DECODED, num_tokens=SOURCE + 1 + DECODED, model=shape))
    models.selection.update(layer=4, kv_head=1, position=SOURCE + 2)
    models.timeline.announce()
    return models


def _first() -> StepRecord:
    record = samples.step_record(0, SOURCE + 1)
    return replace(record, timings=replace(record.timings, encoder_ms=0.75))


def _decoded(step: int) -> StepRecord:
    return samples.step_record(step, SOURCE + 1)


def compute_encoder(models: Models) -> None:
    give_pictures(models)
    if (piece := models.pictures.wall) is not None:
        low, high = samples.wall_picture(piece.request).low.copy(), samples.wall_picture(piece.request).high.copy()
        for picture in (low, high):
            picture[:3, :, :SOURCE] = picture[3:, :, SOURCE:] = np.nan
        held = np.array([[SOURCE, piece.num_tokens]] * 3 + [[0, SOURCE]] * (len(piece.layers) - 3))
        models.pictures.put(replace(samples.wall_picture(piece.request), low=low, high=high, held=held))


def hybrid_models() -> Models:
    """Layers with rows, with a state, with both and with neither."""
    models = Models()
    models.timeline.append(list(map(_hybrid_step, range(8))))
    shape = samples.model_info(shape=HYBRID)
    models.status.set(samples.status(7, num_tokens=samples.PROMPT + 7, model=shape))
    models.selection.update(layer=5, kv_head=1, position=6)
    models.timeline.announce()
    return models


def _hybrid_step(step: int) -> StepRecord:
    record = samples.step_record(step)
    part = record.sequences[0]
    assert part.rows is not None
    rows = RowStats(tuple(KEPT), part.rows.key_norm[KEPT], part.rows.value_norm[KEPT])
    states = (LayerBytes(n, HYBRID.layers[n].kind, size, size, size) for n, size in STATE.items())
    layers = sorted((*(record.num_bytes.layers[n] for n in KEPT), *states), key=lambda layer: layer.layer)
    held = replace(record.num_bytes, layers=tuple(layers))
    return replace(record, sequences=(replace(part, rows=rows),), num_bytes=held)


def _state(layer: int, name: str, columns: int, rows: int) -> StatePicture:
    cells = np.linspace(-1, 2, columns * rows, dtype=np.float32).reshape(columns, rows) * (layer + 1)
    return StatePicture(layer, name, (1, columns, rows), "float32", cells, cells + 0.25, float(cells.max()))


def compute_hybrid(models: Models) -> None:
    """Three layers have rows, two have a state; of the head of a layer without rows its state is shown."""
    give_pictures(models)
    now, wanted = models.selection.now, models.viewport.now
    if (piece := models.pictures.wall) is not None and len(piece.layers) == samples.LAYERS:
        models.pictures.put(_with_states(piece))
    if (row := models.pictures.row) is not None and len(row.layers) == samples.LAYERS:
        keys, values = (tuple(part[n] for n in KEPT) for part in (row.keys, row.values))
        models.pictures.put(replace(samples.row_picture(row.request), layers=tuple(KEPT), keys=keys, values=values))
    if wanted.head_columns is not None and now.layer == 1:
        count = models.timeline.num_tokens(now.seq_id, now.step)
        start, stop = rows_of(wanted.head_range, count)
        tensor: Part = now.lens
        request = HeadRequest(now.seq_id, count, tensor, 1, now.kv_head, start, stop, wanted.head_columns)
        models.pictures.put(replace(samples.head_picture(request), state_shape=(1, 16, 8), tensor_label="recurrence"))


def _with_states(piece: WallPicture) -> WallPicture:
    limits = samples.magnitudes()
    parts = Magnitudes(limits.limit[KEPT], limits.largest[KEPT], limits.clipped[KEPT])
    whole = samples.wall_picture(piece.request)
    states = (_state(1, "convolution", 3, 8), _state(1, "recurrence", 16, 8), _state(5, "recurrence", 8, 4))
    return replace(
        whole, layers=tuple(KEPT), heads=(_HEADS,) * 3, low=whole.low[KEPT], high=whole.high[KEPT], magnitudes=parts,
        states=states,
    )  # fmt: skip


def long_models() -> Models:
    """More steps than pixels; the last but a few is viewed."""
    models = Models()
    models.timeline.append(samples.story(MANY))
    models.status.set(samples.status(MANY, num_tokens=samples.PROMPT + MANY))
    models.selection.update(step=MANY - 40, layer=2, kv_head=3, position=1_200)
    models.timeline.announce()
    return models


def left_models() -> Models:
    """The rich run gone back to its sixth step: two steps and an edit are left behind."""
    models = rich_models()
    models.history.go_to(6)
    models.timeline.go_to(6)
    status = models.status.now
    assert status is not None
    infos = (replace(status.sequences[0], num_tokens=samples.PROMPT + 4), *status.sequences[1:])
    models.status.set(replace(status, step=6, sequences=infos))
    models.timeline.announce()
    return models


def gone_models() -> Models:
    """Looked at is a step before rows were dropped, and of its pictures only what is stored now can be told."""
    models = rich_models()
    models.selection.update(step=8, layer=1, kv_head=0, position=5, channel=3)
    return models


def compute_gone(models: Models) -> None:
    give_pictures(models)
    now, pictures = models.selection.now, models.pictures
    count = models.timeline.num_tokens(now.seq_id, now.step)
    request = WallRequest(now.seq_id, count, count - 1, now.lens, now.change, 40, 40)
    piece = pictures.wall or wall(request)
    assert piece.holders is not None
    holders = piece.holders.copy()
    holders[:, 5] = 20, 6
    pictures.put(replace(piece, provenance=STORED_NOW, holders=holders))
    if (tile := pictures.head) is not None:
        pictures.put(replace(tile, provenance=STORED_NOW))
    if (row := pictures.row) is not None:
        written = tuple(keys + np.float32(0.25 * (layer % 2)) for layer, keys in enumerate(row.keys))
        gone = tuple((0,) if layer == 1 else () for layer in row.layers)
        pictures.put(replace(row, provenance=STORED_NOW, evicted=gone, written_keys=written, written_values=row.values))


Run = tuple[Callable[[], Models], Callable[[Models], None]]
OTHER_RUNS: dict[str, Run] = {
    "an encoder-decoder": (encoder_models, compute_encoder),
    "layers with a state": (hybrid_models, compute_hybrid),
    "many steps": (long_models, give_pictures),
    "left behind": (left_models, give_pictures),
    "gone by now": (gone_models, compute_gone),
}  # fmt: skip
