"""The cache wall: a small picture of K or V for every layer and kv head; a click selects it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QColor,
    QContextMenuEvent,
    QFontMetricsF,
    QImage,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QRegion,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QFrame, QScrollArea, QToolButton, QWidget

from app.draw.colormap import ColorScale, Pixels, larger, packed
from app.draw.edited import EditedRows, touches
from app.draw.format import brief, brief_times, times
from app.draw.grid import source_cells, whole_steps
from app.kit.heatmap import edits_shown, words_at
from app.kit.map_view import LensMenu
from app.kit.painting import CLICK_SLOP, argb, color_scale, ghost_hatch, loud_color, pixels_image
from app.kit.provenance import (
    LINE,
    STORED_NOW,
    PositionSpan,
    Provenance,
    layer_rows_words,
    picture_source,
    residual_starts,
    selected_run,
    shown_record,
    span_of_run,
    suspended_step,
    tensor_name,
    token_name,
)
from app.kit.reader import BOOKMARKS, EDITS, SELECTION, STATUS, STEPS, pictures
from app.kit.theme import Theme, current_theme, font_fixed, font_text
from app.kit.view import View
from app.kit.widgets import connect_all, plain_tip, prose, set_steady_text
from app.kit.words import paint_ribbon, tip_lines
from app.models import Models
from app.models.pictures import WALL
from app.models.places import geometry_of, head_of, heads_shared, layer_label, layer_words, num_source
from app.panels.wall import draw
from app.panels.wall.draw import Margins, RowLabel, SmallPicture, WallLayout, WallRow
from engine.counted import counted
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.spec.edit import Rows
from engine.spec.lenses import LENSES, TABLE, Lens
from engine.wire.pictures import StatePicture, WallPicture


def area_between(
    picture: WallPicture, first: SmallPicture, position: int | None, last: SmallPicture, other: int | None
) -> Rows | None:
    """The rows between two places, both included: the tokens between them inside one small picture, or all tokens of
    the layers and heads from one small picture to another."""
    layers, heads = sorted((first.layer, last.layer)), sorted((first.kv_head, last.kv_head))
    if first != last:
        chosen = tuple(layer for layer in picture.layers if layers[0] <= layer <= layers[1])
        is_all = heads == [0, max(picture.heads) - 1]
        return Rows(0, picture.num_tokens, chosen, None if is_all else tuple(range(heads[0], heads[1] + 1)))
    if position is None or other is None:
        return None
    start, stop = min(position, other), max(position, other) + picture.tokens_per_column
    return Rows(start, min(stop, picture.num_tokens), (first.layer,), (first.kv_head,))


def state_at(picture: WallPicture, small: SmallPicture) -> StatePicture | None:
    """The state that a small picture shows; None if it shows rows."""
    mine = [state for state in picture.states if state.layer == small.layer]
    number = small.kv_head - num_heads(picture, small.layer)
    return mine[number] if 0 <= number < len(mine) else None


def num_heads(picture: WallPicture, layer: int) -> int:
    """How many heads of a layer have rows; its states are numbered after them."""
    return picture.heads[picture.layers.index(layer)] if layer in picture.layers else 0


def is_beside_rows(picture: WallPicture | None, small: SmallPicture) -> bool:
    """Whether a small picture shows the state of a layer that also has rows: it is not a head that can be selected."""
    return picture is not None and small.layer in picture.layers and small.kv_head >= num_heads(picture, small.layer)


def state_words(state: StatePicture) -> str:
    """`state, fixed size · recurrence [1, 128, 8] float32 · max 3.21`."""
    return f"state, fixed size · {state.name} {list(state.shape)} {state.dtype} · max {brief(state.largest)}"


def paint_states(pixels: Pixels, layout: WallLayout, picture: WallPicture, scale: ColorScale) -> None:
    """Paint the states into their small pictures, each with a colour range of its own."""
    for small in layout.pictures if picture.states else ():
        if (state := state_at(picture, small)) is not None:
            values = larger(state.low, state.high) / (state.largest or 1.0)
            columns, rows = (source_cells(n, m) for n, m in zip(values.shape, (small.width, small.height), strict=True))
            pixels[small.y : small.y + small.height, small.x : small.x + small.width] = np.take(
                packed(scale.table), scale.index(values[columns][:, rows].T, 1.0)
            )


_OUTLINE = 3  # pixels around a small picture for its outline and its ticks
_TWO_LINES = 21  # from this height of a small picture on, a layer's largest value is written below its name
_NOTE_GAP = 6  # pixels between a note and the block beside it
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


class WallMarks(Struct, frozen=True):
    """(layer, kv head) of small pictures with NaN or Inf, and of those with values far beyond the colour range; and for
    each layer, its largest value as a multiple of the range."""

    alarms: frozenset[tuple[int, int]] = frozenset()
    far: frozenset[tuple[int, int]] = frozenset()
    times_range: Mapping[int, float] = field(default_factory=dict)

    @property
    def words(self) -> tuple[tuple[int, str, bool], ...]:
        """What the labels say: layer, multiple of the range, and whether that is far beyond."""
        return tuple((layer, brief_times(ratio), ratio > draw.FAR) for layer, ratio in self.times_range.items())


class WallState(Struct, frozen=True):
    """A picture (None: only the frames), the layout of its small pictures, the selection (layer, head, positions), the
    selected area (None if it covers all heads of all layers), the edited rows, and the (layer, kv head) of
    bookmarks."""

    picture: WallPicture | None
    layout: WallLayout | None
    selected: tuple[int, int, PositionSpan | None]
    area: Rows | None = None
    edited: tuple[EditedRows, ...] = ()
    noted: tuple[tuple[int, int], ...] = ()


class WallCanvas(QWidget):
    """Works in device pixels, so that the painter never resamples a small picture.

    Signals: `picked(small, position or None)`, a click; `dragged(small, position or None, small, position or None)`,
    from one place to another; `menu_wanted(small or None, point on the screen)`; `pointed(small or None, position or
    None)`, the place under the mouse; `name_pointed(layer or None, head or None)`, the name of one beside or above the
    small pictures is under the mouse; `arranged()`, small pictures have another size.
    """

    picked = Signal(object, object)
    dragged = Signal(object, object, object, object)
    menu_wanted = Signal(object, object)
    pointed = Signal(object, object)
    name_pointed = Signal(object, object)
    arranged = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.rows: tuple[WallRow, ...] = ()
        self._room = QSize(0, 0)
        self.layout_now: WallLayout | None = None
        self.image = QImage()
        self.pictures_region = QRegion()
        self.state = WallState(None, None, (0, 0, None))
        self._drawn_in: Theme | None = None
        self._pressed: QPointF | None = None
        self.marks = WallMarks()
        self.setMouseTracking(True)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setMinimumSize(40, 20)

    # ---- what is shown -------------------------------------------------------------------------------------------

    def set_rows(self, rows: tuple[WallRow, ...]) -> None:
        if rows != self.rows:
            self.rows = rows
            self._arrange()

    def set_room(self, room: QSize) -> None:
        """Set the size to fill; the canvas becomes higher if small pictures would be too small otherwise."""
        if room != self._room:
            self._room = room
            self._arrange()

    def show_state(self, state: WallState) -> None:
        """Show the small pictures with what is selected, edited and noted. They are painted again only if they are
        others, and the labels beside them only if their texts changed."""
        old, self.state = self.state, state
        is_gone = state.picture is None and not self.image.isNull()
        if is_gone or replace(old, picture=None, layout=None) != replace(state, picture=None, layout=None):
            self.update()
        if state.picture is None:
            self.image, self.marks = QImage(), WallMarks()
        elif state.layout is not None and (
            state.picture is not old.picture or current_theme() is not self._drawn_in or self.image.isNull()
        ):
            self._draw(state.picture, state.layout, old)

    def _draw(self, picture: WallPicture, layout: WallLayout, old: WallState) -> None:
        values, absent = draw.cell_values(picture, self.rows)
        theme, ratio = current_theme(), self.devicePixelRatioF()
        scale, limits = color_scale(theme, is_signed=draw.is_signed(picture)), draw.layer_limits(picture)
        far, hatch = argb(theme.text), ghost_hatch(theme, ratio)
        pixels = draw.paint(layout, picture, values, absent, limits, scale, hatch, far)
        paint_states(pixels, layout, picture, color_scale(theme, is_signed=True))
        labels = self.marks.words, head_name(old.picture), self._drawn_in
        self.marks = WallMarks(*draw.marked_heads(picture, values, absent), draw.times_range(picture))
        are_painted = not self.image.isNull() and labels == (self.marks.words, head_name(picture), theme)
        self.image, self._drawn_in = pixels_image(pixels, ratio), theme
        self.update(self.pictures_region if are_painted else QRegion(self.rect()))

    def selected_rect(self) -> QRectF:
        """The rectangle of the selected small picture, to scroll to it."""
        small = self.layout_now.picture_of(*self.state.selected[:2]) if self.layout_now else None
        return self._rect(small) if small else QRectF()

    def _arrange(self) -> None:
        ratio = self.devicePixelRatioF()
        if not self.rows or self._room.isEmpty():
            self.layout_now = None
            return
        # 3 pixels less, for the outline of the last small picture
        width, height = int((self._room.width() - 3) * ratio), int((self._room.height() - 3) * ratio)
        self.layout_now = draw.arrange(self.rows, width, height, self._margins(ratio))
        self.setFixedSize(self._room.width(), max(self._room.height(), int(self.layout_now.height / ratio) + 3))
        self.image = QImage()
        self.pictures_region = self._region_of(self.layout_now)
        self.update()
        self.arranged.emit()

    def _region_of(self, layout: WallLayout) -> QRegion:
        """The region of the small pictures with outlines and ticks, without labels: one rectangle per column."""
        columns: dict[int, QRectF] = {}
        for small in layout.pictures:
            columns[small.x] = columns.get(small.x, QRectF()).united(self._rect(small))
        region = QRegion()
        for column in columns.values():
            region += column.adjusted(-_OUTLINE, -_OUTLINE, _OUTLINE, _OUTLINE).toAlignedRect()
        return region

    def _margins(self, ratio: float) -> Margins:
        metrics = QFontMetricsF(font_fixed(10.5))
        widest = max(*(metrics.horizontalAdvance(row.label) for row in self.rows), metrics.horizontalAdvance("9.9×"))
        sizes = (widest + 9, 17, 4 if len(self.rows) < 40 else 2, 30, 13)
        left, top, gap, block_gap, note = (round(size * ratio) for size in sizes)
        return Margins(left, top, gap, block_gap, note)

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        if (layout := self.layout_now) is None:
            return
        painter, picture = QPainter(self), None if self.image.isNull() else self.state.picture
        if picture is None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(current_theme().color("signed_middle"))
            painter.drawRects([self._rect(small) for small in layout.pictures])
        else:
            painter.drawImage(QPointF(0, 0), self.image)
        has_notes = any(label.note for label in layout.labels)  # notes are inside the small pictures' region
        if has_notes or not event.region().subtracted(self.pictures_region).isEmpty():
            self._paint_header(painter, layout)
            self._paint_labels(painter, layout)
        if picture is not None:
            self._paint_by_hand(painter, layout, picture)
            self._paint_residual(painter, layout, picture)
            self._paint_columns(painter, layout, picture)
        self._paint_selected(painter, layout)
        self._paint_alarms(painter, layout)

    def _paint_header(self, painter: QPainter, layout: WallLayout) -> None:
        font = font_text(11)
        painter.setFont(font)
        ratio, name = self.devicePixelRatioF(), head_name(self.state.picture)
        is_roomy = layout.picture_width / ratio > QFontMetricsF(font).horizontalAdvance(f"{name} {0}")
        for head, x, width in layout.header:
            painter.setPen(current_theme().color("text" if head == self.state.selected[1] else "muted"))
            text = f"{name} {head}" if head == 0 and is_roomy else str(head)
            painter.drawText(QRectF(x / ratio, 0, width / ratio, 14), int(_LEFT), text)

    def _paint_labels(self, painter: QPainter, layout: WallLayout) -> None:
        font = font_fixed(10.5)
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        ratio = self.devicePixelRatioF()
        last: dict[int, float] = {}
        # the selected layer is always named; other names are left out where they would touch
        kept = {label.x: _middle(label) / ratio for label in layout.labels if not self._is_not_selected(label)}
        for label in layout.labels:
            middle = _middle(label) / ratio
            near = min(abs(middle - last.get(label.x, -99.0)), abs(middle - kept.get(label.x, -99.0)))
            if near < 11 and self._is_not_selected(label):
                continue
            place = QRectF(label.x / ratio, middle - 8, layout.pictures[0].x / ratio - 7 if layout.pictures else 60, 16)
            right = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            is_of_rows = label.first_head == 0 and not label.is_beside_rows
            times_range = self.marks.times_range.get(label.layer, 0.0) if is_of_rows else 0.0
            role = "warning" if times_range > draw.FAR else "muted"
            if times_range and label.height / ratio >= _TWO_LINES:
                place.translate(0, -5.5)
                painter.setPen(current_theme().color(role))
                painter.drawText(place.translated(0, 11), int(_LEFT), brief_times(times_range))
            is_plain = role == "muted" and not self._is_not_selected(label)
            painter.setPen(current_theme().color("text" if is_plain else role))
            text = label.name if label.first_head == 0 else str(label.first_head)
            painter.drawText(place, int(_LEFT) if label.first_head == 0 else right, text)
            last[label.x] = middle
            if label.note:
                self._paint_note(painter, layout, label, metrics, ratio)

    def _is_not_selected(self, label: RowLabel) -> bool:
        return label.layer != self.state.selected[0]

    def _paint_note(
        self, painter: QPainter, layout: WallLayout, label: RowLabel, metrics: QFontMetricsF, ratio: float
    ) -> None:
        left = label.x / ratio + (metrics.horizontalAdvance("L000 ") if label.name else 0)
        beside = (other.x / ratio for other in layout.labels if other.x > label.x)
        painter.save()
        painter.setFont(font_text(11))
        room = min(beside, default=float(self.width())) - left - _NOTE_GAP
        text = painter.fontMetrics().elidedText(label.note, Qt.TextElideMode.ElideRight, int(room))
        painter.drawText(QPointF(left, (label.y + label.height / 2) / ratio + metrics.capHeight() / 2), text)
        painter.restore()

    def _paint_selected(self, painter: QPainter, layout: WallLayout) -> None:
        painter.setBrush(Qt.BrushStyle.NoBrush)
        small = layout.picture_of(*self.state.selected[:2])
        if small is not None:
            rect = self._rect(small)
            painter.setPen(QPen(current_theme().color("panel"), 1))
            painter.drawRect(rect.adjusted(-0.5, -0.5, -0.5, -0.5))
            painter.setPen(QPen(current_theme().color("selected"), 1.6))
            painter.drawRect(rect.adjusted(-1.5, -1.5, 1.0, 1.0))

    def _paint_by_hand(self, painter: QPainter, layout: WallLayout, picture: WallPicture) -> None:
        """Paint a line below the edited tokens of each small picture, a hatch over masked ones, the outline of the
        area, and a ribbon for a bookmark."""
        state, theme = self.state, current_theme()
        is_marked = state.edited or state.noted or state.area is not None
        for small in [small for small in layout.pictures if not is_beside_rows(picture, small)] if is_marked else ():
            if (small.layer, small.kv_head) in state.noted:
                painter.setRenderHint(QPainter.RenderHint.Antialiasing)
                corner = self._rect(small).topRight()
                paint_ribbon(painter, corner.x() - 2, corner.y() - 1)
                painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
            for one in state.edited:
                tensor = "" if one.is_hidden else picture.request.lens
                is_here = touches(one.rows, small.layer, small.kv_head, tensor)
                place = self._place_of_rows(small, picture, one.rows) if is_here else None
                if place is not None and one.is_hidden:
                    painter.fillRect(place, QBrush(theme.color("edited", 170), Qt.BrushStyle.BDiagPattern))
                if place is not None:
                    foot = QRectF(place.left(), place.bottom() - 1, place.width(), 2)
                    painter.fillRect(foot, theme.color("edited"))
            if state.area is not None and touches(state.area, small.layer, small.kv_head):
                place = self._place_of_rows(small, picture, state.area) or QRectF()
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.setPen(QPen(theme.color("selected"), 1))
                painter.drawRect(place.adjusted(-0.5, -0.5, -0.5, -0.5))

    def _paint_residual(self, painter: QPainter, layout: WallLayout, picture: WallPicture) -> None:
        """A hairline in each small picture where the rows that the codec leaves exact begin."""
        starts = residual_starts(picture)
        painter.setPen(QPen(current_theme().color("text", 170), 1))
        for small in layout.pictures if starts else ():
            start = starts.get(small.layer)
            place = None if start is None else self._place(small, picture, (start, start + 1))
            if place is not None:
                left = round(place.left())
                painter.drawLine(QPointF(left, place.top()), QPointF(left, place.bottom() - 1))

    def _paint_columns(self, painter: QPainter, layout: WallLayout, picture: WallPicture) -> None:
        """Mark the selected tokens: a frame in the selected small picture, a tick above each of the others, where
        frames would distract from what a step changed."""
        layer, kv_head, run = self.state.selected
        ticks: list[QRectF] = []
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(current_theme().color("selected"), 1))
        for small in layout.pictures if run is not None else ():
            place = self._place(small, picture, run)
            if place is None:
                continue
            if (small.layer, small.kv_head) == (layer, kv_head):
                painter.drawRect(place.adjusted(-0.5, 0.5, -0.5, -0.5))
            else:
                ticks.append(QRectF(place.left(), place.top() - 2, place.width(), 2))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_theme().color("selected"))
        painter.drawRects(ticks)

    def _place(self, small: SmallPicture, picture: WallPicture, run: PositionSpan | None) -> QRectF | None:
        """The rectangle of some positions in a small picture; None if none of them is in it. A state has no tokens."""
        span = span_of_run(partial(draw.column_span, small, picture), run)
        if span is None or state_at(picture, small) is not None:
            return None
        ratio, rect = self.devicePixelRatioF(), self._rect(small)
        left, right = span[0] / ratio, span[1] / ratio
        return QRectF(left, rect.top(), max(right - left, 2.0), rect.height())

    def _place_of_rows(self, small: SmallPicture, picture: WallPicture, rows: Rows) -> QRectF | None:
        last = min(rows.stop, picture.num_tokens)
        return self._place(small, picture, (rows.start, last)) if rows.start < last else None

    def _paint_alarms(self, painter: QPainter, layout: WallLayout) -> None:
        """Mark small pictures: a loud right corner for NaN or Inf, a warm left corner for values far beyond the range.
        Without marks a few such numbers would not be seen, because cells pool many."""
        painter.setPen(Qt.PenStyle.NoPen)
        marked = self.marks.alarms | self.marks.far
        for small in layout.pictures if marked else ():
            place = small.layer, small.kv_head
            if place in self.marks.alarms:
                painter.setBrush(QColor(loud_color(current_theme())))
                corner = self._rect(small).topRight()
                painter.drawPolygon([corner, corner - QPointF(8, 0), corner + QPointF(0, 8)])
            if place in self.marks.far:
                painter.setBrush(current_theme().color("warning"))
                corner = self._rect(small).topLeft()
                painter.drawPolygon([corner, corner + QPointF(8, 0), corner + QPointF(0, 8)])

    def _rect(self, small: SmallPicture) -> QRectF:
        ratio = self.devicePixelRatioF()
        return QRectF(small.x / ratio, small.y / ratio, small.width / ratio, small.height / ratio)

    # ---- mouse ---------------------------------------------------------------------------------------------------

    def _at(self, pixel: QPointF) -> tuple[SmallPicture | None, int | None]:
        if self.layout_now is None:
            return None, None
        point = pixel * self.devicePixelRatioF()
        small, picture = self.layout_now.hit(point.x(), point.y()), self.state.picture
        if small is None or picture is None or small.layer not in picture.layers:
            return small, None
        return small, draw.position_at(small, picture, point.x())

    def _name_at(self, pixel: QPointF) -> tuple[int | None, int | None]:
        """The layer, or the head, whose name is at a point."""
        layout, point = self.layout_now, pixel * self.devicePixelRatioF()
        if layout is None or not layout.pictures:
            return None, None
        if point.y() < layout.pictures[0].y:
            heads = (head for head, x, width in layout.header if x <= point.x() < x + width)
            return None, next(heads, None)
        width = layout.pictures[0].x - layout.labels[0].x
        layers = (
            label.layer
            for label in layout.labels
            if label.x <= point.x() < label.x + width and label.y <= point.y() < label.y + label.height
        )
        return next(layers, None), None

    def mousePressEvent(self, event: QMouseEvent) -> None:
        small, position = self._at(event.position())
        if small is not None and event.button() == Qt.MouseButton.LeftButton:
            self._pressed = event.position()
            self.picked.emit(small, position)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        small, position = self._at(event.position())
        self.pointed.emit(small, position)
        if small is None:
            self.name_pointed.emit(*self._name_at(event.position()))
        if self._pressed is None or small is None:
            return
        if (event.position() - self._pressed).manhattanLength() > CLICK_SLOP:
            self.dragged.emit(*self._at(self._pressed), small, position)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._pressed = None

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        self.menu_wanted.emit(self._at(QPointF(event.pos()))[0], event.globalPos())

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.pointed.emit(None, None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.update()


def head_name(picture: WallPicture | None) -> str:
    """What a column is one of."""
    if picture is None:
        return "kv head"
    return LENSES[picture.request.lens].head_word if picture.layers else "part"  # of a state


def _middle(label: RowLabel) -> float:
    return label.y + label.height / 2


# ---- rows: one for every layer of the model, with titles above the groups of an encoder-decoder ----------------------

GROUP = -1  # layer number of a row that is the title of a group


def wall_rows(models: Models, picture: WallPicture | None) -> tuple[WallRow, ...]:
    """Every layer of the model: with small pictures where the picture has some, else with the reason."""
    geometry = geometry_of(models)
    if geometry is None:
        if picture is None:
            return ()
        return tuple(WallRow(layer, heads) for layer, heads in zip(picture.layers, picture.heads, strict=True))
    lens = LENSES[picture.request.lens if picture is not None else models.selection.now.lens]
    held = dict(zip(picture.layers, picture.heads, strict=True)) if picture is not None else None
    counts = Counter(state.layer for state in picture.states) if picture is not None else Counter[int]()
    rows = [row for layer in geometry.layers for row in layer_rows(layer, held, lens, counts[layer.index])]
    if not geometry.has_encoder:
        return tuple(rows)
    return tuple(grouped(rows, geometry, num_source(models)))


def layer_rows(layer: LayerGeometry, held: dict[int, int] | None, lens: Lens, num_states: int) -> Iterator[WallRow]:
    """A layer's row for K or V, and its row for a recurrent state: the state alone, or below if it has both."""
    num_rows = (held or {}).get(layer.index, 0)
    if num_rows or not num_states:
        yield _row(layer, held, lens)
    if num_states:
        yield WallRow(layer.index, num_states, name=f"L{layer.index} state", first_head=num_rows)


def _row(layer: LayerGeometry, held: dict[int, int] | None, lens: Lens) -> WallRow:
    num_heads = layer.num_heads if lens.heads == "query" else layer.num_kv_heads
    num_heads = num_heads if held is None else held.get(layer.index, 0)
    if layer.kind in ("linear", "shared", "none") and layer.index not in (held or {}):
        return WallRow(layer.index, 0, _why_empty(layer, is_asked=held is not None))
    if not num_heads:
        return WallRow(layer.index, 0, "holds no K and V now" if lens.part is not None else "no attention is known")
    dims = 1 if lens.values == 1 else layer.key_dim if lens.part == "keys" else layer.value_dim
    return WallRow(layer.index, num_heads, "", dims or None)


def _why_empty(layer: LayerGeometry, *, is_asked: bool) -> str:
    if layer.kind == "linear" and is_asked:
        return "recurrent state, kept of the live step alone: go to this step to see it"
    if layer.kind == "linear":
        return "recurrent state of constant size, no K and V"
    if layer.kind == "shared":
        return f"reads the K and V of layer {layer.shares_with}"
    return "no attention, no K and V"


def grouped(rows: list[WallRow], geometry: CacheGeometry, num_source: int) -> Iterator[WallRow]:
    """The layers of an encoder-decoder in two groups with titles; the encoder read `num_source` tokens."""
    titles = {
        False: "self-attention · a row more with every token of the decoder",
        True: f"cross-attention · {counted(num_source, 'row')} of what the encoder read, written once" if num_source
        else "cross-attention · rows of what the encoder reads, written once",
    }  # fmt: skip
    for row in rows:
        is_cross = geometry.layers[row.layer].kind == "cross"
        if row.layer in (0, geometry.num_blocks):
            yield WallRow(GROUP - is_cross, 0, titles[is_cross], name="")
        yield replace(row, name=geometry.layer_label(row.layer))


def layer_lines(picture: WallPicture | None, layer: int) -> list[str]:
    """What is known of the numbers of a layer, and of its rows."""
    if picture is None:
        return []
    return [words for words in (draw.magnitude_words(picture, layer), layer_rows_words(picture, layer)) if words]


# ---- the panel -------------------------------------------------------------------------------------------------------


_COLUMN_STEP = 16
_CHOICES = {"K": ("keys", False), "V": ("values", False), "dK": ("keys", True), "dV": ("values", True)}


class _SizedArea(QScrollArea):
    """A scroll area that emits `resized()`: the panel's own resize event comes before its layout has placed the
    area."""

    resized = Signal()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.resized.emit()


FORMER = "former picture"
CELL_TIP = (
    "A cell is the number of the largest magnitude among the tokens and channels it covers, coloured by the range of "
    "its layer."
)


class WallView(View[WallState]):
    """A click on a small picture selects its layer, kv head and token; a drag selects the tokens inside one, or several
    whole ones. Signals: `outliers_wanted()`, show the list of the largest values; `menu_wanted(point on the screen)`,
    for the selection."""

    name = "wall"
    follows = (SELECTION, STATUS, STEPS, EDITS, BOOKMARKS, pictures(WALL))
    choices = (
        ("K", "K", "Keys"),
        ("V", "V", "Values"),
        ("dK", "ΔK", "What the step changed in the keys"),
        ("dV", "ΔV", "What the step changed in the values"),
    )

    outliers_wanted = Signal()
    menu_wanted = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._pointed = ""
        self.canvas = WallCanvas()
        self.canvas.setAccessibleName("Small pictures of every layer and kv head")
        self.scroller = _SizedArea()
        self.scroller.setFrameShape(QFrame.Shape.NoFrame)
        self.scroller.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.scroller.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.scroller.viewport().setAutoFillBackground(False)
        self.scroller.setWidget(self.canvas)
        self.canvas.setAutoFillBackground(False)
        self.largest = QToolButton()
        self.largest.setToolTip("The largest value against its layer's range: open the list of the largest")
        self.largest.hide()
        self._lenses = LensMenu(models, (lens for lens in TABLE if lens.is_of_every_head))
        self.add_to_strip(self._lenses)
        self.add_to_strip(self.largest)
        self.set_body(self.scroller)
        self.follow(models)
        connect_all(
            (self.scroller.resized, self._fill),
            (self.largest.clicked, self.outliers_wanted),
            (self.canvas.picked, self._on_picked),
            (self.canvas.dragged, self._on_dragged),
            (self.canvas.menu_wanted, self._on_menu_wanted),
            (self.canvas.pointed, self._on_pointed),
            (self.canvas.name_pointed, self._on_name_pointed),
            (self.canvas.arranged, self.show_again),
            (models.selection.changed, self._on_selected),  # connected last, so that it is shown before
        )

    # ---- intents -------------------------------------------------------------------------------------------------

    def choose(self, choice: str) -> None:
        tensor, change = _CHOICES[choice]
        self._models.selection.update(lens=tensor, change=change)

    @property
    def _lens(self) -> str:
        """The lens of the picture, which for a while may not be the selected one."""
        shown = self._models.pictures.wall
        return self._models.selection.now.lens if shown is None else shown.request.lens

    def _shared(self, layer: int) -> int:
        return heads_shared(self._models, self._lens, layer)

    def _on_picked(self, small: SmallPicture, position: int | None) -> None:
        picture = self._models.pictures.wall
        shared = self._shared(small.layer)
        place: dict[str, int] = {"layer": small.layer, "kv_head": small.kv_head // shared}
        if shared > 1:
            self._models.viewport.update(query_head=small.kv_head)
        if is_beside_rows(picture, small):
            return
        if position is not None and (picture is None or state_at(picture, small) is None):
            place["position"] = position
        self._models.selection.update(**place)

    def _on_dragged(self, first: SmallPicture, position: int | None, last: SmallPicture, other: int | None) -> None:
        picture = self._models.pictures.wall
        if picture is None or is_beside_rows(picture, first) or is_beside_rows(picture, last):
            return
        area = area_between(picture, first, position, last, other)
        if area is not None:
            self._models.selection.update(position=area.start, area=area)

    def _on_menu_wanted(self, small: SmallPicture | None, place: QPoint) -> None:
        """Open the menu for the small picture under the mouse, or for the selected area if that contains it."""
        picture, area = self._models.pictures.wall, self._models.selection.now.area
        is_part = small is not None and area is not None and touches(area, small.layer, small.kv_head)
        if small is not None and picture is not None and not is_part and not is_beside_rows(picture, small):
            kv_head = small.kv_head // self._shared(small.layer)
            rows = Rows(0, picture.num_tokens, (small.layer,), (kv_head,))
            self._models.selection.update(layer=small.layer, kv_head=kv_head, position=0, area=rows)
        self.menu_wanted.emit(place)

    def _on_pointed(self, small: SmallPicture | None, position: int | None) -> None:
        text = ""
        if small is not None:
            text = f"{layer_words(self._models, small.layer)} · {LENSES[self._lens].head_word} {small.kv_head}"
            shown = self._models.pictures.wall
            if shown is not None and (state := state_at(shown, small)) is not None:
                text, position = f"{layer_words(self._models, state.layer)} · {state_words(state)}", None
            elif position is not None:
                text += f" · token {position} {token_name(self._models, self._shown_seq_id, position)}"
        if text == self._pointed:
            return
        self._pointed = text
        picture = self.state.picture if self.state is not None else None
        lines = [text]
        if small is not None:
            layer, kv_head, seq_id = small.layer, small.kv_head // self._shared(small.layer), self._shown_seq_id
            lines += layer_lines(picture, layer)
            if position is not None:
                lines.append(words_at(self._models, position, layer, kv_head, self._lens, seq_id=seq_id))
            lines += tip_lines(self._models.bookmarks.on_heads(seq_id).get((layer, small.kv_head)))
        self.canvas.setToolTip(plain_tip("\n".join(filter(None, lines))))
        self.set_detail(self._words(picture), tip=CELL_TIP)

    def _on_name_pointed(self, layer: int | None, head: int | None) -> None:
        """Say in a tooltip what the name of a layer or head, and the number below it, stand for."""
        picture = self._models.pictures.wall
        if layer is not None:
            lines = [layer_words(self._models, layer).capitalize(), *layer_lines(picture, layer)]
            if picture is not None and layer in draw.times_range(picture):
                lines.append("Below the name: its largest value as a multiple of its colour range.")
        elif head is not None and (picture is None or picture.layers):
            name = LENSES[self._lens].head_word.capitalize()
            lines = [f"{name} {head} of each layer", self._shared_by_name(head)]
        else:
            lines = []
        self.canvas.setToolTip(plain_tip("\n".join(filter(None, lines))))

    def _shared_by_name(self, head: int) -> str:
        """How a head goes with those of the other kind, where that is the same in all layers."""
        geometry = geometry_of(self._models)
        layers = geometry.attention_layers if geometry is not None else ()
        each = {layer.num_heads // max(1, layer.num_kv_heads) for layer in layers}
        if len(each) != 1:
            return ""
        count = each.pop()
        if LENSES[self._lens].heads == "query":
            return f"Its queries read the rows of kv head {head // max(1, count)}."
        first, last = head * count, (head + 1) * count - 1
        return f"Its rows are read by {f'query head {first}' if first == last else f'query heads {first} to {last}'}."

    @property
    def _shown_seq_id(self) -> int:
        """The sequence that the picture shows, which for a while may not be the selected one."""
        shown = self._models.pictures.wall
        return self._models.selection.now.seq_id if shown is None else shown.request.seq_id

    def _on_selected(self) -> None:
        self._models.refreshes.ask(self._scroll_to_selected)

    def _scroll_to_selected(self) -> None:
        rect = self.canvas.selected_rect()
        if not rect.isEmpty():
            center = rect.center()
            self.scroller.ensureVisible(round(center.x()), round(center.y()), 0, round(rect.height() / 2) + 4)

    # ---- showing -------------------------------------------------------------------------------------------------

    def want(self, *, is_visible: bool) -> None:
        size = None
        if is_visible:
            self.canvas.set_rows(wall_rows(self._models, self._models.pictures.wall))
            layout = self.canvas.layout_now
            if layout is not None:
                # in steps, so that dragging a splitter does not request a hundred pictures
                size = (whole_steps(layout.picture_width, _COLUMN_STEP), layout.picture_height)
        self._models.viewport.update(wall_size=size)

    def refresh(self) -> None:
        super().refresh()
        now, picture = self._models.selection.now, self._models.pictures.wall
        shown = (now.lens, now.change) if picture is None else (picture.request.lens, picture.request.change)
        self.segments.set_choice(next((name for name, place in _CHOICES.items() if place == shown), ""))
        self._lenses.show_lens(shown[0])

    def read(self) -> WallState | str:
        picture, now = self._models.pictures.wall, self._models.selection.now
        if shown_record(self._models) is None:
            what, draft = "Every layer and head of the cache appears here with the first step", self._models.draft
            why_not = f"{what}, once the prompt can be sent. {prose(draft.warning)}"
            return why_not if draft.warning else f"{what}: {self.how_to_begin}."
        if picture is None and (why_not := self._models.status.why_no_rows):
            return why_not
        if picture is None and not wall_rows(self._models, picture):
            return "The cache is on its way."
        if picture is not None and not (picture.low.size or picture.states):
            return picture.note or "The cache holds no K and V now."
        if picture is None and self.state is not None:
            picture = self.state.picture  # of the branch before, until the first of this one is there
        area = None if now.area is None or (now.area.layers, now.area.kv_heads) == (None, None) else now.area
        seq_id = self._shown_seq_id
        run = selected_run(self._models) if area is None else None
        head = head_of(self._models, self._lens, now.layer, now.kv_head)
        return WallState(
            picture, self.canvas.layout_now, (now.layer, head, run), area, edits_shown(self._models, seq_id),
            tuple(self._models.bookmarks.on_heads(seq_id)),
        )  # fmt: skip

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.largest.hide()

    def show_state(self, state: WallState) -> None:
        self.canvas.show_state(state)
        self._name_largest(state.picture)
        self.set_detail(self._words(state.picture), tip=CELL_TIP)

    def describe(self, state: WallState) -> None:
        if (picture := state.picture) is not None:
            lines = (
                f"{layer_label(self._models, layer)}: {' · '.join(layer_lines(picture, layer))}"
                for layer in picture.layers
            )
            self.canvas.setAccessibleDescription("\n".join(lines))

    def _name_largest(self, picture: WallPicture | None) -> None:
        """Show the value that is farthest beyond its layer's range: `max V L17 4.1× ▾`."""
        found = draw.farthest(picture) if picture is not None else None
        self.largest.setVisible(found is not None)
        if found is None:
            return
        layer, tensor, ratio = found
        text = f"max {tensor} {layer_label(self._models, layer)} {times(ratio)} ▾"
        name = layer_words(self._models, layer)
        self.largest.setAccessibleName(f"Largest value: {tensor} of {name}, {times(ratio)} its range")
        set_steady_text(self.largest, text)

    def _words(self, picture: WallPicture | None) -> str:
        """The place under the cursor, else what a cell of the picture stands for."""
        if picture is None:
            return ""
        words = [
            self._pointed
            or ("colours per layer" if picture.layers else "states of fixed size, colours of each its own")
        ]
        cell = []
        if picture.tokens_per_column > 1:
            cell.append(counted(picture.tokens_per_column, "token"))
        if picture.dims_per_row > 1:
            cell.append(counted(picture.dims_per_row, "channel"))
        if cell and not self._pointed:
            words.append("a cell: largest of {}".format(" × ".join(cell)))
        if picture.absent is not None and not self._pointed:
            is_now = picture.provenance == STORED_NOW
            is_half = suspended_step(self._models, picture.request.seq_id, picture.num_tokens) is not None
            gone = (
                "rows evicted by now" if is_now else "rows evicted, or not written yet" if is_half else "evicted rows"
            )
            words.append(f"hatched: {gone}")
        if not self._pointed and residual_starts(picture):
            words.append(LINE)
        if picture.note:
            words.append(picture.note)
        return " · ".join(words)

    def provenance(self, state: WallState) -> Provenance | None:
        if (picture := state.picture) is None:
            return None
        if self._models.pictures.wall is None:
            return Provenance(
                FORMER, "past", f"{FORMER}: it stays until the first of what is viewed now is there", "former"
            )
        request, now = picture.request, self._models.selection.now
        shown, wanted = tensor_name(request.lens, change=request.change), tensor_name(now.lens, change=now.change)
        return picture_source(self._models, picture, shown, wanted)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._fill()

    def _fill(self) -> None:
        """Give the canvas the panel's size, less the width of the scroll bar if it needs one."""
        room = self.scroller.maximumViewportSize()
        self.canvas.set_room(room)
        if self.canvas.height() > room.height():
            bar = self.scroller.verticalScrollBar().sizeHint().width()
            self.canvas.set_room(QSize(room.width() - bar, room.height()))
        self.refresh()
