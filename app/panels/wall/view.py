"""The cache wall: a thumbnail of K or V for every layer and kv head; a click selects it."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import QPoint, QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QToolButton

from app.draw.edited import touches
from app.draw.format import times
from app.draw.grid import whole_steps
from app.kit.heatmap import edits_shown, words_at
from app.kit.map_view import LensMenu
from app.kit.painting import argb, color_scale, ghost_hatch, pixels_image
from app.kit.provenance import (
    LINE,
    STORED_NOW,
    PositionSpan,
    Provenance,
    layer_rows_words,
    parts_words,
    picture_source,
    residual_starts,
    selected_run,
    shown_record,
    suspended_step,
    tensor_name,
    token_name,
)
from app.kit.reader import BOOKMARKS, EDITS, SELECTION, STATUS, STEPS, pictures
from app.kit.theme import current_theme
from app.kit.view import View
from app.kit.widgets import connect_all, plain_tip, prose, steady
from app.kit.words import tip_lines
from app.models import Models
from app.models.pictures import WALL
from app.models.places import geometry_of, head_of, heads_shared, layer_label, layer_words
from app.panels.wall import canvas, draw
from app.panels.wall import magnitudes as sizes
from app.panels.wall.canvas import WallCanvas, WallEdits, WallMarks, area_between
from app.panels.wall.draw import Thumbnail, WallLayout, WallRow
from app.panels.wall.rows import wall_rows
from engine.counted import counted
from engine.spec.edit import Rows
from engine.spec.lenses import LENSES, TABLE
from engine.wire.pictures import WallPicture

_COLUMN_STEP = 16
_CHOICES = {"K": ("keys", False), "V": ("values", False), "dK": ("keys", True), "dV": ("values", True)}


class _SizedArea(QScrollArea):
    """A scroll area that emits `resized()`: the panel's own resize event comes before its layout has placed the
    area."""

    resized = Signal()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.resized.emit()


class WallState(Struct, frozen=True):
    """A picture (None: only the frames), the layout of its thumbnails, the selection (layer, head, positions), and the
    selected area, edits and bookmarks."""

    picture: WallPicture | None
    layout: WallLayout | None
    selected: tuple[int, int, PositionSpan | None]
    by_hand: WallEdits


CELL_TIP = (
    "A cell is the number of the largest magnitude among the tokens and channels it covers, coloured by the range of "
    "its layer."
)


class WallView(View[WallState]):
    """A click on a thumbnail selects its layer, kv head and token; a drag selects the tokens inside one, or several
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
        self._drawn: tuple[object, ...] = ()
        self._pointed = ""
        self.canvas = WallCanvas()
        self.canvas.setAccessibleName("Thumbnails of every layer and kv head")
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
            (models.selection.changed, self._scroll_to_selected),  # connected last, so that it is shown before
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

    def _on_picked(self, tile: Thumbnail, position: int | None) -> None:
        picture = self._models.pictures.wall
        shared = self._shared(tile.layer)
        place: dict[str, int] = {"layer": tile.layer, "kv_head": tile.kv_head // shared}
        if shared > 1:
            self._models.viewport.update(query_head=tile.kv_head)
        if canvas.is_beside_rows(picture, tile):
            return
        if position is not None and (picture is None or canvas.state_at(picture, tile) is None):
            place["position"] = position
        self._models.selection.update(**place)

    def _on_dragged(self, first: Thumbnail, position: int | None, last: Thumbnail, other: int | None) -> None:
        picture = self._models.pictures.wall
        if picture is None or canvas.is_beside_rows(picture, first) or canvas.is_beside_rows(picture, last):
            return
        area = area_between(picture, first, position, last, other)
        if area is not None:
            self._models.selection.update(position=area.start, area=area)

    def _on_menu_wanted(self, tile: Thumbnail | None, place: QPoint) -> None:
        """Open the menu for the thumbnail under the mouse, or for the selected area if that contains it."""
        picture, area = self._models.pictures.wall, self._models.selection.now.area
        is_part = tile is not None and area is not None and touches(area, tile.layer, tile.kv_head)
        if tile is not None and picture is not None and not is_part and not canvas.is_beside_rows(picture, tile):
            kv_head = tile.kv_head // self._shared(tile.layer)
            rows = Rows(0, picture.num_tokens, (tile.layer,), (kv_head,))
            self._models.selection.update(layer=tile.layer, kv_head=kv_head, position=0, area=rows)
        self.menu_wanted.emit(place)

    def _on_pointed(self, tile: Thumbnail | None, position: int | None) -> None:
        text, state = "", None
        if tile is not None and (shown := self._models.pictures.wall) is not None:
            state = canvas.state_at(shown, tile)
        if tile is not None:
            text = f"{layer_words(self._models, tile.layer)} · {LENSES[self._lens].head_word} {tile.kv_head}"
        if state is not None:
            text, position = f"{layer_words(self._models, state.layer)} · {canvas.state_words(state)}", None
        if position is not None:
            text += f" · token {position} {token_name(self._models, self._shown_seq_id, position)}"
        if text != self._pointed:
            self._pointed = text
            picture = self.state.picture if self.state is not None else None
            edited = self._edited_words(tile, position)
            more = sizes.magnitude_words(picture, tile.layer) if picture is not None and tile is not None else ""
            rows = layer_rows_words(picture, tile.layer) if picture is not None and tile is not None else ""
            found = None if tile is None else self._models.bookmarks.on_heads(self._shown_seq_id)
            notes = () if tile is None or found is None else tip_lines(found.get((tile.layer, tile.kv_head)))
            self.canvas.setToolTip(plain_tip("\n".join(line for line in (text, more, rows, edited, *notes) if line)))
            self.set_detail(self._words(picture), tip=CELL_TIP)

    def _on_name_pointed(self, layer: int | None, head: int | None) -> None:
        """Say in a tooltip what the name of a layer or head, and the number below it, stand for."""
        picture = self._models.pictures.wall
        if layer is not None:
            lines = [layer_words(self._models, layer).capitalize()]
            if picture is not None:
                lines += [sizes.magnitude_words(picture, layer), layer_rows_words(picture, layer)]
            if picture is not None and layer in sizes.times_range(picture):
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

    def _edited_words(self, tile: Thumbnail | None, position: int | None) -> str:
        if tile is None or position is None:
            return ""
        kv_head = tile.kv_head // self._shared(tile.layer)
        return words_at(self._models, position, tile.layer, kv_head, self._lens, seq_id=self._shown_seq_id)

    @property
    def _shown_seq_id(self) -> int:
        """The sequence that the picture shows, which for a while may not be the selected one."""
        shown = self._models.pictures.wall
        return self._models.selection.now.seq_id if shown is None else shown.request.seq_id

    def _scroll_to_selected(self) -> None:
        rect = self.canvas.selected_rect()
        if not rect.isEmpty():
            center = rect.center()
            self.scroller.ensureVisible(round(center.x()), round(center.y()), 0, round(rect.height() / 2) + 4)

    # ---- showing -------------------------------------------------------------------------------------------------

    def want(self, *, is_visible: bool) -> None:
        size = None
        if is_visible:
            self.canvas.set_rows(self.rows(self._models.pictures.wall))
            layout = self.canvas.layout_now
            if layout is not None:
                # in steps, so that dragging a splitter does not request a hundred pictures
                size = (whole_steps(layout.tile_width, _COLUMN_STEP), layout.tile_height)
        self._models.viewport.update(wall_size=size)

    def refresh(self) -> None:
        super().refresh()
        now, picture = self._models.selection.now, self._models.pictures.wall
        shown = (now.lens, now.change) if picture is None else (picture.request.lens, picture.request.change)
        self.set_choice(next((k for k, place in _CHOICES.items() if place == shown), ""))  # of the picture shown
        self._lenses.show_lens(shown[0])

    def read(self) -> WallState | str:
        picture, now = self._models.pictures.wall, self._models.selection.now
        if shown_record(self._models) is None:
            what, draft = "Every layer and head of the cache appears here with the first step", self._models.draft
            why_not = f"{what}, once the prompt can be sent. {prose(draft.warning)}"
            return why_not if draft.warning else f"{what}: {draft.how_to_begin}."
        if picture is None and (why_not := self._models.status.why_no_rows):
            return why_not
        if picture is None and not self.rows(picture):
            return "The cache is on its way."
        if picture is not None and not (picture.low.size or picture.states):
            return picture.note or "The cache holds no K and V now."
        area = None if now.area is None or (now.area.layers, now.area.kv_heads) == (None, None) else now.area
        seq_id = self._shown_seq_id
        bookmarks = tuple(self._models.bookmarks.on_heads(seq_id))
        by_hand = WallEdits(area, edits_shown(self._models, seq_id), bookmarks)
        run = selected_run(self._models) if area is None else None
        head = head_of(self._models, self._lens, now.layer, now.kv_head)
        return WallState(picture, self.canvas.layout_now, (now.layer, head, run), by_hand)

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.largest.hide()
        self._drawn = ()

    def show_state(self, state: WallState) -> None:
        self.canvas.set_marks(state.selected, state.by_hand)
        self._name_largest(state.picture)
        self.set_detail(self._words(state.picture), tip=CELL_TIP)
        key = (state.picture, state.layout, current_theme())
        is_blank = self.canvas.image.isNull()  # another arrangement has discarded the picture
        if state.picture is not None and state.layout is not None and (key != self._drawn or is_blank):
            self._draw(state.picture, state.layout)
        self._drawn = key

    def _draw(self, picture: WallPicture, layout: WallLayout) -> None:
        values, absent = draw.cell_values(picture, self.rows(picture))
        theme, ratio = current_theme(), self.canvas.devicePixelRatioF()
        scale = color_scale(theme, is_signed=sizes.is_signed(picture))
        limits, far, hatch = sizes.layer_limits(picture), argb(theme.text), ghost_hatch(theme, ratio)
        pixels = draw.paint(layout, picture, values, absent, limits, scale, hatch, far)
        canvas.paint(pixels, layout, picture, color_scale(theme, is_signed=True))
        image = pixels_image(pixels, ratio)
        marks = WallMarks(*sizes.marked_tiles(picture, values, absent), sizes.times_range(picture))
        self.canvas.show_picture(image, picture, marks)

    def describe(self, state: WallState) -> None:
        if (picture := state.picture) is not None:
            words = (
                (
                    layer_label(self._models, layer),
                    sizes.magnitude_words(picture, layer),
                    layer_rows_words(picture, layer),
                )
                for layer in picture.layers
            )
            layers = (f"{name}: {found}" + f" · {rows}" * bool(rows) for name, found, rows in words)
            self.canvas.setAccessibleDescription("\n".join(layers))

    def _name_largest(self, picture: WallPicture | None) -> None:
        """Show the value that is farthest beyond its layer's range: `max V L17 4.1× ▾`."""
        found = sizes.farthest(picture) if picture is not None else None
        self.largest.setVisible(found is not None)
        if found is None:
            return
        layer, tensor, ratio = found
        text = f"max {tensor} {layer_label(self._models, layer)} {times(ratio)} ▾"
        if text != self.largest.text():
            self.largest.setText(text)
            name = layer_words(self._models, layer)
            self.largest.setAccessibleName(f"Largest value: {tensor} of {name}, {times(ratio)} its range")
            hint = self.largest.sizeHint()
            self.largest.setFixedSize(steady(self.largest.width(), hint.width()), hint.height())

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
        request, now = picture.request, self._models.selection.now
        shown, wanted = tensor_name(request.lens, change=request.change), tensor_name(now.lens, change=now.change)
        return picture_source(
            self._models, picture.provenance, picture.dtype, request.seq_id, request.num_tokens, shown, wanted,
            parts=parts_words(self._models, picture),
        )  # fmt: skip

    def rows(self, picture: WallPicture | None) -> tuple[WallRow, ...]:
        return wall_rows(self._models, picture)

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
