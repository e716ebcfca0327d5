"""A run of thirty steps, recorded; and the answers that an engine would give to what is shown of it."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtWidgets import QApplication

from app.draw.grid import rows_of
from app.models import Models
from engine.wire.pictures import (
    AttentionRequest,
    HeadPicture,
    HeadRequest,
    RowRequest,
    WallRequest,
)
from tests.app import samples

STEPS = 30
TOKENS = STEPS + samples.PROMPT


def recorded_models() -> Models:
    """What a window knows after the run; a token, a layer and a head are selected, none of them the first."""
    found = Models()
    found.status.set(samples.status(STEPS, num_tokens=TOKENS))
    found.timeline.append(samples.story(STEPS))
    found.selection.update(layer=3, kv_head=1, position=13)
    return found


def give_pictures(models: Models) -> None:
    """Answer what the views asked for, as the engine would."""
    now, wanted = models.selection.now, models.viewport.now
    record = models.timeline.at(now.step)
    assert record is not None
    count = record.sequences[0].num_tokens
    if wanted.wall_size is not None:
        models.pictures.put(
            samples.wall_picture(WallRequest(0, count, count - 1, now.lens, now.change, *wanted.wall_size))
        )
    if wanted.head_columns is not None:
        start, stop = rows_of(wanted.head_range, count)
        models.pictures.put(head_picture(start, stop, count, wanted.head_columns))
    if wanted.attention_columns is not None:
        start, stop = rows_of(wanted.attention_range, count)
        request = AttentionRequest(0, record.step, now.layer, wanted.attention_columns, start, stop)
        models.pictures.put(samples.attention_picture(request, count))
    if wanted.wants_row and now.position is not None:
        models.pictures.put(samples.row_picture(RowRequest(0, count, now.position)))
    QApplication.processEvents()


def head_picture(start: int = 0, stop: int = TOKENS, count: int = TOKENS, columns: int = 512) -> HeadPicture:
    piece = samples.head_picture(HeadRequest(0, count, "keys", 3, 1, start, stop, columns))
    return replace(piece, tensor_label="K")
