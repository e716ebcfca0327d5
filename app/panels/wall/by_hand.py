"""Marks on the wall's thumbnails for the selected area, for edits and for bookmarks; they never cover the numbers."""

from __future__ import annotations

from functools import partial

from msgspec import Struct
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QBrush, QPainter, QPen

from app.draw.edited import EditedRows, touches
from app.kit.bookmark_places import paint_ribbon
from app.kit.provenance import span_of_run
from app.kit.theme import current_theme
from app.panels.wall import draw
from app.panels.wall.draw import Thumbnail, WallLayout
from app.panels.wall.states import is_beside_rows
from engine.spec.edit import Rows
from engine.wire.slices import WallSlice


class WallEdits(Struct, frozen=True):
    """The selected area (None if it covers all heads of all layers), the edited rows, and the (layer, kv head) of
    bookmarks."""

    area: Rows | None = None
    edited: tuple[EditedRows, ...] = ()
    noted: tuple[tuple[int, int], ...] = ()


def area_between(
    piece: WallSlice, first: Thumbnail, position: int | None, last: Thumbnail, other: int | None
) -> Rows | None:
    """The rows between two places, both included: the tokens between them inside one thumbnail, or all tokens of the
    layers and heads from one thumbnail to another."""
    layers, heads = sorted((first.layer, last.layer)), sorted((first.kv_head, last.kv_head))
    if first != last:
        chosen = tuple(layer for layer in piece.layers if layers[0] <= layer <= layers[1])
        is_all = heads == [0, max(piece.heads) - 1]
        return Rows(0, piece.num_tokens, chosen, None if is_all else tuple(range(heads[0], heads[1] + 1)))
    if position is None or other is None:
        return None
    start, stop = min(position, other), max(position, other) + piece.tokens_per_column
    return Rows(start, min(stop, piece.num_tokens), (first.layer,), (first.kv_head,))


def paint_by_hand(painter: QPainter, layout: WallLayout, piece: WallSlice, marks: WallEdits, ratio: float) -> None:
    """Paint a line below the edited tokens of each thumbnail, a hatch over masked ones, and the outline of the area."""
    is_marked = marks.edited or marks.noted or marks.area is not None
    for tile in [tile for tile in layout.tiles if not is_beside_rows(piece, tile)] if is_marked else ():
        if (tile.layer, tile.kv_head) in marks.noted:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            paint_ribbon(painter, (tile.x + layout.tile_width) / ratio - 2, tile.y / ratio - 1)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        for one in marks.edited:
            tensor = "" if one.is_hidden else piece.request.lens
            if touches(one.rows, tile.layer, tile.kv_head, tensor):
                _paint_edited(painter, _place(tile, piece, one.rows, ratio), is_hidden=one.is_hidden)
        if marks.area is not None and touches(marks.area, tile.layer, tile.kv_head):
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(current_theme().color("selected"), 1))
            painter.drawRect(_place(tile, piece, marks.area, ratio).adjusted(-0.5, -0.5, -0.5, -0.5))


def _paint_edited(painter: QPainter, place: QRectF, *, is_hidden: bool) -> None:
    if place.isEmpty():
        return
    if is_hidden:
        painter.fillRect(place, QBrush(current_theme().color("edited", 170), Qt.BrushStyle.BDiagPattern))
    painter.fillRect(QRectF(place.left(), place.bottom() - 1, place.width(), 2), current_theme().color("edited"))


def _place(tile: Thumbnail, piece: WallSlice, rows: Rows, ratio: float) -> QRectF:
    """The rectangle of some tokens in a thumbnail; empty if none of them is in the picture."""
    last = min(rows.stop, piece.num_tokens)
    span = span_of_run(partial(draw.column_span, tile, piece), (rows.start, last)) if rows.start < last else None
    if span is None:
        return QRectF()
    left, right = span[0] / ratio, span[1] / ratio
    return QRectF(left, tile.y / ratio, max(right - left, 2.0), tile.height / ratio)
