"""Marks of edits made by hand: boxes in pictures, symbols on the timeline, and words about a place."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QPainter, QPen, QPolygonF

from app.draw.edited import EditedRows, MarkKind, at, edit_name, edited_rows, runs, touches
from app.draw.format import thousands
from app.kit.heatmap_marks import Box
from app.kit.theme import current_theme
from app.models import Models
from engine.spec.edit import Rows

_MOST = 3  # edits of one place that are named; earlier ones are only counted


def edits_shown(models: Models, seq_id: int | None = None) -> tuple[EditedRows, ...]:
    """The rows of a sequence (None: the selected one) that were edited up to the step shown; for a fork, also those
    edited in its ancestors before it was forked."""
    now = models.selection.now
    made = {
        one.step: one.edit
        for of, tip in models.timeline.lineage(now.seq_id if seq_id is None else seq_id, now.step)
        for one in models.edits.on_path(tip)
        if one.edit.seq_id == of
    }
    return edited_rows(sorted(made.items(), key=lambda one: one[0]))


def is_of(rows: Rows, layer: int, kv_head: int, tensor: str) -> bool:
    """Whether these rows include some of that head."""
    return touches(rows, layer, kv_head, tensor)


def head_boxes(
    models: Models, seq_id: int, layer: int, kv_head: int, tensor: str, num_channels: int
) -> tuple[Box, ...]:
    """The edited boxes of one head, positions × channels; rows masked from attention whichever tensor is shown."""
    found = []
    for one in edits_shown(models, seq_id):
        if touches(one.rows, layer, kv_head, "" if one.is_hidden else tensor):
            channels = one.rows.channels
            for first, last in [(0, num_channels)] if channels is None else runs(channels):
                found.append(Box(one.rows.start, one.rows.stop, first, min(last, num_channels), one.is_hidden))
    return tuple(found)


def words_at(
    models: Models,
    position: int,
    layer: int | None = None,
    kv_head: int | None = None,
    tensor: str = "",
    channel: int | None = None,
    seq_id: int | None = None,
) -> str:
    """`edited: zero at step 12, mask at step 14`: the edits that affected a place of a sequence (None: the selected
    one); empty if there are none."""
    found = [
        one for one in at(edits_shown(models, seq_id), position, channel) if touches(one.rows, layer, kv_head, tensor)
    ]
    words = [f"{edit_name(one.edit).lower()} at step {thousands(one.step)}" for one in found[-_MOST:]]
    more = f", and {len(found) - _MOST} before" if len(found) > _MOST else ""
    return f"edited: {', '.join(words)}{more}" if words else ""


def since_words(models: Models) -> str:
    """`edited by hand since step 12`; empty if there is no edit on the path to the step shown."""
    edits = models.edits.on_path(models.selection.now.step)
    return f"edited by hand since step {thousands(edits[0].step)}" if edits else ""


_ROLES = {"edit": "edited", "mode": "page_shared", "branch": "selected"}


def paint_mark(painter: QPainter, at: QPointF, kind: MarkKind) -> None:
    """Paint the symbol of a node at its point on the line; the triangle of a branch is below it."""
    theme = current_theme()
    painter.setPen(QPen(theme.color("panel"), 1))
    painter.setBrush(theme.color(_ROLES.get(kind, "muted")))
    x, y = at.x(), at.y()
    if kind == "mode":
        painter.drawRect(QRectF(x - 3.5, y - 3.5, 7, 7))
    elif kind == "edit":
        painter.drawPolygon(QPolygonF([QPointF(x, y - 5), QPointF(x + 5, y), QPointF(x, y + 5), QPointF(x - 5, y)]))
    elif kind == "branch":
        painter.drawPolygon(QPolygonF([QPointF(x - 4, y + 9), QPointF(x + 4, y + 9), QPointF(x, y + 3)]))
    else:
        painter.drawEllipse(at, 2.5, 2.5)
