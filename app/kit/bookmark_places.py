"""The places that can be bookmarked, their descriptions, and the ribbon that marks a bookmark in pictures."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QPainter, QPen, QPolygonF

from app.draw.format import shortened, thousands, token_label, visible
from app.kit.theme import current_theme
from app.models import Models
from app.models.loaded import geometry_of
from engine.spec.bookmark import Bookmark, BookmarkTarget, OnHead, OnPage, OnStep, OnToken

STEP, TOKEN, PAGE, HEAD = "step", "token", "page", "head"
MARK_WIDTH, MARK_HEIGHT = 6.0, 9.0
_MOST_CHARS, _TIP_CHARS = 16, 300


def places(models: Models) -> dict[str, BookmarkTarget]:
    """The step shown, and the token, page and head that are selected in it, by kind."""
    now, record = models.selection.now, models.timeline.at(models.selection.now.step)
    if record is None:
        return {}
    found: dict[str, BookmarkTarget] = {STEP: OnStep(record.step)}
    token = models.timeline.token(now.seq_id, now.position) if now.position is not None else None
    if token is not None:
        found[TOKEN] = OnToken(token.step, now.seq_id, token.position)
    if now.page is not None and record.page_maps:
        found[PAGE] = OnPage(record.step, now.pool, now.page)
    geometry = geometry_of(models)
    layers = geometry.layers if geometry is not None else ()
    if now.layer < len(layers) and now.kv_head < layers[now.layer].num_kv_heads:
        found[HEAD] = OnHead(record.step, now.seq_id, now.layer, now.kv_head)
    return found


def place_words(models: Models, target: BookmarkTarget) -> str:
    """Describe a place, without its step."""
    match target:
        case OnToken(seq_id=seq_id, position=position):
            token = models.timeline.token(seq_id, position)
            name = f" {token_label(token.text, _MOST_CHARS)}" if token is not None and token.step == target.step else ""
            return f"token {thousands(position)}{name}" + (f", sequence {seq_id}" if seq_id else "")
        case OnPage(pool=pool, page_id=page_id):
            return f"page {thousands(page_id)}" + (f" of pool {pool}" if pool else "")
        case OnHead(seq_id=seq_id, layer=layer, kv_head=kv_head):
            return f"layer {layer}, kv head {kv_head}" + (f", sequence {seq_id}" if seq_id else "")
        case _:
            return "the step itself"


def note_line(text: str, max_chars: int = _TIP_CHARS) -> str:
    """A note on one line, with invisible characters escaped."""
    return shortened(" ".join(visible_words(line) for line in text.split("\n") if line.strip()), max_chars)


def visible_words(text: str) -> str:
    """Escape invisible characters, but keep spaces."""
    return " ".join(visible(word) if word else "" for word in text.split(" "))


def tip_lines(*found: Bookmark | None) -> tuple[str, ...]:
    """The lines of a tool tip about the bookmarks of a place."""
    return tuple(
        f"bookmark of step {thousands(one.target.step)}" + (f": {note_line(one.text)}" if one.text.strip() else "")
        for one in found
        if one is not None
    )


def paint_ribbon(painter: QPainter, right: float, top: float, scale: float = 1.0) -> None:
    """Paint a bookmark's ribbon with its upper right corner at (right, top). It has the text colour in every picture:
    the other colours have meanings."""
    width, height = MARK_WIDTH * scale, MARK_HEIGHT * scale
    left, foot = right - width, top + height
    corners = ((left, top), (right, top), (right, foot), ((left + right) / 2, foot - 0.35 * height), (left, foot))
    theme = current_theme()
    painter.save()
    painter.setPen(QPen(theme.color("panel"), 1))
    painter.setBrush(theme.color("text"))
    painter.setOpacity(1.0)
    painter.drawPolygon(QPolygonF([QPointF(x, y) for x, y in corners]), Qt.FillRule.OddEvenFill)
    painter.restore()
