"""One head of one layer as a heat map: tokens across, channels down, with the exact value under the cursor."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QActionGroup, QGuiApplication
from PySide6.QtWidgets import QMenu, QToolButton

from app.draw.colormap import ColorScale
from app.draw.edited import touches
from app.draw.format import brief, exact, thousands
from app.draw.ghost import extremes
from app.draw.matrix import MatrixCell, matrix_of
from app.kit.heatmap_marks import Box, Marks, head_boxes, words_at
from app.kit.labels import plain_tip, steady
from app.kit.map_view import LensMenu, MapView
from app.kit.pictures import color_scale
from app.kit.provenance import (
    LINE,
    NARROW,
    STORED_NOW,
    PositionSpan,
    Provenance,
    eviction_words,
    parts_words,
    picture_source,
    residual_start,
    run_words,
    selected_run,
    shown_record,
    span_of_run,
    tensor_name,
)
from app.kit.range_bar import RangeBar
from app.kit.reader import EDITS, SELECTION, STATUS, STEPS, VIEWPORT, slices
from app.kit.theme import current_theme
from app.models import Models
from app.models.loaded import heads_shared, layer_words
from app.models.selection import chosen_cell
from app.models.slices import HEAD
from engine.counted import counted
from engine.spec.edit import Rows
from engine.spec.lenses import LENSES
from engine.wire.slices import HeadSlice

PER_HEAD, PER_LAYER, FIXED = "head", "layer", "fixed"
_SCOPE_WORDS = {PER_HEAD: "robust 99.5 %", PER_LAYER: "per layer", FIXED: "fixed"}
_MAX_ALARMS = 200
_TOKENS_LEFT = 92  # pixels for the names of tokens beside a picture of tokens by tokens


class Shown(Struct, frozen=True):
    """A picture with its colour range and how that is chosen; the selected positions and channel, or area; and
    edits."""

    piece: HeadSlice
    limit: float
    scope: str
    selected: PositionSpan | None
    channel: int | None
    area: Box | None
    edited: tuple[Box, ...]


class HeadView(MapView[Shown]):
    name = "head"
    kind = HEAD
    follows = (SELECTION, STATUS, STEPS, VIEWPORT, EDITS, slices(HEAD))
    abilities = frozenset(("view.reset", "view.zoom", "view.colors"))

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.bar = RangeBar()
        self._row.addWidget(self.bar)
        self._scope = PER_HEAD
        self._fixed = 1.0
        self.map.setAccessibleName("Heat map of one head: tokens by channels")
        self.readout.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._lenses = LensMenu(models)
        self.add_to_strip(self._lenses)
        self.range = self._make_range_menu()
        self.add_to_strip(self.range)
        self.bar.dragged.connect(self._on_dragged)
        self.bar.reset.connect(self.fit_colors)
        self.follow(models)

    # ---- construction --------------------------------------------------------------------------------------------

    def _make_range_menu(self) -> QToolButton:
        button = QToolButton()
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        button.setToolTip("How far the colours reach")
        menu = QMenu(button)
        self.scopes = QActionGroup(menu)
        for scope, text in (
            (PER_HEAD, "Per head: 99.5 % of this head's values"),
            (PER_LAYER, "Per layer: as on the wall"),
            (FIXED, "Fixed: keep the present range"),
        ):
            action = self.scopes.addAction(text)
            action.setData(scope)
            action.setCheckable(True)
            menu.addAction(action)
        self.scopes.triggered.connect(self._on_scope)
        button.setMenu(menu)
        return button

    # ---- intents -------------------------------------------------------------------------------------------------

    def fit_colors(self) -> None:
        """Fit the colour range to what is visible; in FIXED scope it is fitted once and stays."""
        if self._scope == FIXED:
            self._fixed = self.piece.limit if self.piece is not None else 1.0
        else:
            self._scope = PER_HEAD
        self.refresh()

    def _on_scope(self) -> None:
        action = self.scopes.checkedAction()
        if action is not None:
            self._fixed = self._limit(self.piece)
            self._scope = str(action.data())
            self.refresh()

    def _on_dragged(self, limit: float) -> None:
        self._scope, self._fixed = FIXED, limit
        self.refresh()

    def pick(self, point: QPointF) -> None:
        cell = self.cell_at(point)
        if cell is not None and not self.piece.state_shape:
            self._models.selection.update(position=cell.first, channel=cell.row)

    def _token_name(self, position: int) -> str:
        return "" if self.piece is not None and self.piece.state_shape else super()._token_name(position)

    def rows_between(self, first: MatrixCell, last: MatrixCell) -> Rows:
        piece = self.piece
        low, high = sorted((first.row, last.row))
        is_all = high - low + 1 == piece.low.shape[1]
        return Rows(
            min(first.first, last.first), max(first.last, last.last) + 1, (piece.request.layer,),
            (self._kv_head_of(piece),), None if is_all else tuple(range(low, high + 1)),
            LENSES[piece.request.lens].part or "both",
        )  # fmt: skip

    def pin(self, is_pinned: bool) -> None:
        now = self._models.selection.now
        place = (now.layer, now.kv_head, now.lens)
        if self.piece is not None:
            request = self.piece.request
            place = (request.layer, self._kv_head_of(self.piece), request.lens)
        self._models.viewport.update(head_place=place if is_pinned else None)

    # ---- showing -------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        super().refresh()
        piece = self._models.slices.head
        now = self._models.selection.now
        self._lenses.show_lens(now.lens if piece is None else piece.request.lens)
        if piece is not None and self.isVisible():  # the title is set even if there is nothing to draw
            request = piece.request
            name = layer_words(self._models, request.layer).capitalize()
            if piece.state_shape:
                self.set_title(f"{name} · {piece.tensor_label}")
                return
            self.set_title(f"{name} · {LENSES[request.lens].head_word} {request.kv_head} · {piece.tensor_label}")

    def read(self) -> Shown | str:
        """In one line why there is nothing to draw."""
        piece = self._models.slices.head
        if shown_record(self._models) is None:
            return "One head, token by channel, appears here with the first step: type a prompt and press F10."
        if piece is None:
            return self._models.status.why_no_rows or "This head is on its way."
        if piece.low.size:
            limit = self._limit(piece)
            run, area = selected_run(self._models), self._area(piece)
            if piece.state_shape:
                return Shown(piece, limit, self._scope, None, None, None, ())
            place = piece.request
            kv_head, num_channels = self._kv_head_of(piece), piece.low.shape[1]
            edited = head_boxes(self._models, place.seq_id, place.layer, kv_head, place.lens, num_channels)
            return Shown(piece, limit, self._scope, None if area else run, self._channel(piece), area, edited)
        if matrix_of(piece).asked is not None and not piece.note:
            return "These positions have left this head's window: press Home to see what it holds."
        return piece.note or "This head holds no tokens yet."

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.range.hide()

    def show_state(self, state: Shown) -> None:
        self.range.show()
        self._draw(state)
        self._show_range(self._range_text(state.piece, state.limit))
        self.label(state.piece)
        for action in self.scopes.actions():
            action.setChecked(action.data() == self._scope)

    def _show_range(self, text: str) -> None:
        if text != self.range.text():
            self.range.setText(text)
            hint = self.range.sizeHint()
            self.range.setFixedSize(steady(self.range.width(), hint.width()), hint.height())

    def _range_text(self, piece: HeadSlice, limit: float) -> str:
        reach = self._scale(piece).words(brief(limit))
        if self.width() < NARROW + 60:
            return f"{reach} ▾"
        return f"range {reach} · {_SCOPE_WORDS[self._scope]} ▾"

    def label(self, piece: HeadSlice) -> None:
        heads = ", ".join(str(head) for head in piece.query_heads)
        words = [f"serves heads {heads}"] if heads else []
        if piece.state_shape:
            words = [f"state, fixed size · {list(piece.state_shape)} {piece.dtype}"]
        if piece.absent is not None and piece.absent.any():
            evicted, matrix = int(piece.absent.sum()), matrix_of(piece)
            num_rows = matrix.stop - matrix.start
            is_now = piece.provenance == STORED_NOW
            gone = f"{counted(num_rows, 'row')} evicted by now" if is_now else f"{thousands(num_rows)} evicted"
            words.append(f"hatched: {thousands(evicted)} of {gone}")
        if self._residual(piece):
            words.append(LINE)
        if piece.num_nan or piece.num_inf:
            words.append(f"▲ {piece.num_nan} NaN, {piece.num_inf} Inf")
        self.set_detail(" · ".join([*words, piece.note] if piece.note else words))

    def provenance(self, state: Shown) -> Provenance:
        piece, now = state.piece, self._models.selection.now
        request = piece.request
        layer, kv_head, tensor = self._models.viewport.now.head_place or (now.layer, now.kv_head, now.lens)
        shown, wanted = tensor_name(request.lens), tensor_name(tensor)
        if (request.layer, self._kv_head_of(piece)) != (layer, kv_head):
            shown, wanted = f"{shown}[{request.layer}, {self._kv_head_of(piece)}]", f"{wanted}[{layer}, {kv_head}]"
        return picture_source(
            self._models, piece.provenance, piece.dtype, request.seq_id, request.num_tokens, shown, wanted,
            is_whole=self.map.is_loaded, parts=parts_words(self._models, piece),
        )  # fmt: skip

    def _draw(self, state: Shown) -> None:
        piece, limit = state.piece, state.limit
        matrix, scale = matrix_of(piece), self._scale(piece)
        is_map = self._has_tokens_down(piece)
        marks = Marks(
            left=_TOKENS_LEFT if is_map else Marks().left,
            selected=span_of_run(matrix.span_of, state.selected),
            selected_row=state.channel,
            area=state.area,
            edited=state.edited,
            x_lines=self._residual(piece),
            alarms=self._alarms(piece),
        )
        indices = np.ascontiguousarray(scale.index(matrix.shown, limit))
        names = self._row_token if is_map else None
        self.map.show_matrix(matrix, scale, indices, marks, row_name=names, has_numbers=True)
        self.bar.show_range(scale, piece, limit)
        self.tell(self.map.hover)

    def _scale(self, piece: HeadSlice) -> ColorScale:
        is_signed = bool(piece.state_shape) or LENSES[piece.request.lens].is_signed
        return color_scale(current_theme(), is_signed=is_signed)

    def _has_tokens_down(self, piece: HeadSlice) -> bool:
        """Whether the rows of a picture are tokens, too."""
        return not piece.state_shape and LENSES[piece.request.lens].values == "tokens"

    def _row_token(self, row: int) -> str:
        position = row * (self.piece.values_per_row if self.piece is not None else 1)
        return f"{self._token_name(position)} {position}"

    def _kv_head_of(self, piece: HeadSlice) -> int:
        """The kv head of a picture, which a query head shares with others."""
        return piece.request.kv_head // heads_shared(self._models, piece.request.lens, piece.request.layer)

    def _channel(self, piece: HeadSlice) -> int | None:
        """The selected channel, if the picture shows its head."""
        now, request = self._models.selection.now, piece.request
        is_here = (request.layer, self._kv_head_of(piece), request.lens) == (now.layer, now.kv_head, now.lens)
        return now.channel if is_here and now.channel is not None and now.channel < piece.low.shape[1] else None

    def _area(self, piece: HeadSlice) -> Box | None:
        """The part of the selected area in this head, as a box of positions and channels; None if there is none."""
        now, request = self._models.selection.now.area, piece.request
        if now is None or not touches(now, request.layer, self._kv_head_of(piece), request.lens):
            return None
        num_channels = piece.low.shape[1]
        channels = now.channels or (0, num_channels - 1)
        matrix = matrix_of(piece)
        return Box(
            max(now.start, matrix.start),
            min(now.stop, matrix.stop),
            min(channels),
            min(max(channels) + 1, num_channels),
        )

    def _residual(self, piece: HeadSlice) -> tuple[int, ...]:
        """Where the rows that a codec leaves exact begin, if the picture has others before them."""
        matrix = matrix_of(piece)
        start = residual_start(piece.exact_from, matrix.start, matrix.stop)
        return () if start is None else (start,)

    def _alarms(self, piece: HeadSlice) -> tuple[float, ...]:
        if not (piece.num_nan or piece.num_inf):
            return ()
        matrix = matrix_of(piece)
        bad = np.flatnonzero(~np.isfinite(matrix.shown).all(axis=0))[:_MAX_ALARMS]
        return tuple(float(matrix.start + (column + 0.5) * matrix.per_column) for column in bad)

    def _limit(self, piece: HeadSlice | None) -> float:
        """The colour range of a picture: ± this value."""
        if piece is None or self._scope == FIXED:
            return self._fixed
        if self._scope == PER_LAYER:
            return (float(piece.magnitudes.limit[0]) if piece.magnitudes is not None else 0.0) or 1.0
        return piece.limit

    def tell(self, point: QPointF | None) -> None:
        """Show the exact value under the cursor, else that of the selected cell."""
        piece = self.piece
        if point is None and piece is not None:
            point = self._chosen_point(piece)
        cell = self.cell_at(point)
        text = ""
        if piece is not None and cell is not None:
            text = f"{readout(piece, cell)}   {self._token_name(cell.first)}{self._fate(piece, cell)}"
            place = piece.request
            if parts_words(self._models, piece):
                text += f"   {run_words(piece.exact_from, cell.first, cell.last + 1)}"
            if edited := words_at(
                self._models,
                cell.first,
                place.layer,
                self._kv_head_of(piece),
                place.lens,
                cell.row,
                place.seq_id,
            ):
                text += f"   {edited}"
        self.readout.setText(text or "point at a cell for its exact value")
        self.readout.setToolTip(plain_tip(f"{text}\n{self._place_words(piece)}" if piece is not None and text else ""))
        self.readout.setEnabled(bool(text))

    def _place_words(self, piece: HeadSlice) -> str:
        """What the numbers in the brackets of a value's place are."""
        lens = LENSES[piece.request.lens]
        column = "query" if lens.columns == "queries" else "token"
        row = {"dims": "channel", "tokens": "token", 1: "0"}[lens.values]
        return f"In brackets: layer, {lens.head_word}, {column}, {row}"

    def _chosen_point(self, piece: HeadSlice) -> QPointF | None:
        now, request = self._models.selection.now, piece.request
        cell = chosen_cell(now)
        is_here = (request.layer, self._kv_head_of(piece), request.lens) == (now.layer, now.kv_head, now.lens)
        if cell is None or not (is_here or self._area(piece)) or cell[1] >= piece.low.shape[1]:
            return None
        return QPointF(cell[0] + 0.5, cell[1] + 0.5)

    def copy_value(self) -> None:
        """Copy the exact number of the selected cell."""
        piece = self.piece
        point = self._chosen_point(piece) if piece is not None else None
        cell = self.cell_at(point)
        if piece is None or cell is None or cell.is_gone:
            self.told.emit("Nothing is copied: Head shows no value of the selected cell")
            return
        place, _, value = readout(piece, cell).partition(" = ")
        QGuiApplication.clipboard().setText(value)
        self.told.emit(f"Copied the value of {place}")

    def _fate(self, piece: HeadSlice, cell: MatrixCell) -> str:
        """What happened to the evicted rows of a cell; empty if there are none."""
        if not cell.num_gone:
            return ""
        if not cell.is_gone:
            return f"   {cell.num_gone} of {counted(cell.last - cell.first + 1, 'row')} evicted"
        if cell.last > cell.first:
            return "   all evicted"
        step = self._models.selection.now.step if piece.provenance != STORED_NOW else None
        place = piece.request
        words = eviction_words(self._models, place.layer, self._kv_head_of(piece), cell.first, step, place.seq_id)
        return f"   {words}"


def readout(piece: HeadSlice, cell: MatrixCell) -> str:
    """`K[3, 1, 13, 5] = -1.8342`: layer, kv head, position, channel and the exact value in the cache; without a value
    if the row was evicted."""
    first, request = cell.row * piece.values_per_row, piece.request
    values = f"{first}…{first + piece.values_per_row - 1}" if piece.values_per_row > 1 else str(first)
    place = f"{piece.tensor_label}[{request.layer}, {request.kv_head}, {cell.span}, {values}]"
    return place if cell.is_gone else f"{place} = {extremes(cell.low, cell.high, exact)}"
