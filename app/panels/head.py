"""One head of one layer as a heat map: tokens across, channels down, with the exact value under the cursor."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QGuiApplication, QResizeEvent

from app.draw.colormap import ColorScale
from app.draw.format import brief, exact, thousands
from app.draw.ghost import extremes
from app.draw.matrix import MatrixCell, matrix_of
from app.kit.heatmap import Marks, words_at
from app.kit.map_view import ChoiceMenu, LensMenu, MapState, MapView, RangeBar, check
from app.kit.painting import color_scale
from app.kit.provenance import (
    LINE,
    STORED_NOW,
    Provenance,
    eviction_words,
    parts_words,
    picture_source,
    residual_start,
    run_words,
    shown_record,
    tensor_name,
)
from app.kit.reader import EDITS, SELECTION, STATUS, STEPS, VIEWPORT, pictures
from app.kit.theme import current_theme
from app.kit.widgets import plain_tip, set_steady_text
from app.models import Models
from app.models.pictures import HEAD
from app.models.places import layer_words
from app.models.selection import chosen_cell
from engine.counted import counted
from engine.spec.lenses import LENSES
from engine.wire.pictures import HeadPicture

PER_HEAD, PER_LAYER, FIXED = "head", "layer", "fixed"
_SCOPE_WORDS = {PER_HEAD: "robust 99.5 %", PER_LAYER: "per layer", FIXED: "fixed"}
_MAX_ALARMS = 200
_ROOM_FOR_RANGE = 680  # least width for the words of the colour range; more than the strip needs with them
_TOKENS_LEFT = 92  # pixels for the names of tokens beside a picture of tokens by tokens


class HeadState(MapState, frozen=True):
    """With its colour range and how that is chosen, and the selected channel."""

    limit: float
    scope: str
    channel: int | None


class HeadView(MapView[HeadState]):
    name = "head"
    kind = HEAD
    follows = (SELECTION, STATUS, STEPS, VIEWPORT, EDITS, pictures(HEAD))
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

    def _make_range_menu(self) -> ChoiceMenu:
        button = ChoiceMenu()
        button.setToolTip("How far the colours reach")
        self.scopes = button.add_choices(
            (
                (PER_HEAD, "Per head: 99.5 % of this head's values", ""),
                (PER_LAYER, "Per layer: as on the wall", ""),
                (FIXED, "Fixed: keep the present range", ""),
            ),
            self._on_scope,
        )
        return button

    # ---- intents -------------------------------------------------------------------------------------------------

    def fit_colors(self) -> None:
        """Fit the colour range to what is visible; in FIXED scope it is fitted once and stays."""
        if self._scope == FIXED:
            self._fixed = self.picture.limit if self.picture is not None else 1.0
        else:
            self._scope = PER_HEAD
        self.refresh()

    def _on_scope(self) -> None:
        action = self.scopes.checkedAction()
        if action is not None:
            self._fixed = self._limit(self.picture)
            self._scope = str(action.data())
            self.refresh()

    def _on_dragged(self, limit: float) -> None:
        self._scope, self._fixed = FIXED, limit
        self.refresh()

    def pick(self, point: QPointF) -> None:
        cell = self.cell_at(point)
        if cell is not None and not self.picture.state_shape:
            self._models.selection.update(position=cell.first, channel=cell.row)

    def _token_name(self, position: int) -> str:
        return "" if self.picture is not None and self.picture.state_shape else super()._token_name(position)

    def pin(self, is_pinned: bool) -> None:
        now = self._models.selection.now
        place = (now.layer, now.kv_head, now.lens)
        if self.picture is not None:
            request = self.picture.request
            place = (request.layer, self._kv_head_of(self.picture), request.lens)
        self._models.viewport.update(head_place=place if is_pinned else None)

    # ---- showing -------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        super().refresh()
        picture = self._models.pictures.head
        now = self._models.selection.now
        self._lenses.show_lens(now.lens if picture is None else picture.request.lens)
        if picture is not None and self.isVisible():  # the title is set even if there is nothing to draw
            request = picture.request
            name = layer_words(self._models, request.layer).capitalize()
            if picture.state_shape:
                self.set_title(f"{name} · {picture.tensor_label}")
                return
            self.set_title(f"{name} · {LENSES[request.lens].head_word} {request.kv_head} · {picture.tensor_label}")

    def read(self) -> HeadState | str:
        """In one line why there is nothing to draw."""
        picture = self._models.pictures.head
        if shown_record(self._models) is None:
            return f"One head, token by channel, appears here with the first step: {self.how_to_begin}."
        if picture is None:
            return self._models.status.why_no_rows or "This head is on its way."
        if picture.low.size:
            marked = (None, None, ()) if picture.state_shape else self.marked(picture)
            return HeadState(picture, *marked, self._limit(picture), self._scope, self._channel(picture))
        if matrix_of(picture).asked is not None and not picture.note:
            return "These positions have left this head's window: press Home to see what it holds."
        return picture.note or "This head holds no tokens yet."

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.range.hide()

    def show_state(self, state: HeadState) -> None:
        self.range.show()
        self._draw(state)
        set_steady_text(self.range, self._range_text(state.picture, state.limit))
        self.label(state.picture)
        check(self.scopes, self._scope)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.state is not None:
            set_steady_text(self.range, self._range_text(self.state.picture, self.state.limit))

    def _range_text(self, picture: HeadPicture, limit: float) -> str:
        reach = self._scale(picture).words(brief(limit))
        if self.width() < _ROOM_FOR_RANGE:
            return f"{reach} ▾"
        return f"range {reach} · {_SCOPE_WORDS[self._scope]} ▾"

    def label(self, picture: HeadPicture) -> None:
        heads = ", ".join(str(head) for head in picture.query_heads)
        words = [f"serves heads {heads}"] if heads else []
        if picture.state_shape:
            words = [f"state, fixed size · {list(picture.state_shape)} {picture.dtype}"]
        if picture.absent is not None and picture.absent.any():
            evicted, matrix = int(picture.absent.sum()), matrix_of(picture)
            num_rows = matrix.stop - matrix.start
            is_now = picture.provenance == STORED_NOW
            gone = f"{counted(num_rows, 'row')} evicted by now" if is_now else f"{thousands(num_rows)} evicted"
            words.append(f"hatched: {thousands(evicted)} of {gone}")
        if self._has_tokens_down(picture) and picture.is_causal:
            words.append("hatched: not read")
        if self._residual(picture):
            words.append(LINE)
        if picture.num_nan or picture.num_inf:
            words.append(f"▲ {picture.num_nan} NaN, {picture.num_inf} Inf")
        self.set_detail(" · ".join([*words, picture.note] if picture.note else words))

    def provenance(self, state: HeadState) -> Provenance:
        picture, now = state.picture, self._models.selection.now
        request = picture.request
        layer, kv_head, tensor = self._models.viewport.now.head_place or (now.layer, now.kv_head, now.lens)
        shown, wanted = tensor_name(request.lens), tensor_name(tensor)
        if (request.layer, self._kv_head_of(picture)) != (layer, kv_head):
            shown, wanted = f"{shown}[{request.layer}, {self._kv_head_of(picture)}]", f"{wanted}[{layer}, {kv_head}]"
        return picture_source(self._models, picture, shown, wanted, is_whole=self.map.is_loaded)

    def _draw(self, state: HeadState) -> None:
        picture, limit = state.picture, state.limit
        matrix, scale = matrix_of(picture), self._scale(picture)
        is_map = self._has_tokens_down(picture)
        marks = state.marks(
            left=_TOKENS_LEFT if is_map else Marks().left,
            selected_row=state.channel,
            x_lines=self._residual(picture),
            alarms=self._alarms(picture),
        )
        indices = np.ascontiguousarray(scale.index(matrix.shown, limit))
        names = self._row_token if is_map else None
        self.map.show_matrix(matrix, scale, indices, marks, row_name=names, has_numbers=True)
        self.bar.show_range(scale, picture, limit)
        self.tell(self.map.hover)

    def _scale(self, picture: HeadPicture) -> ColorScale:
        is_signed = bool(picture.state_shape) or LENSES[picture.request.lens].is_signed
        return color_scale(current_theme(), is_signed=is_signed)

    def _has_tokens_down(self, picture: HeadPicture) -> bool:
        """Whether the rows of a picture are tokens, too."""
        return not picture.state_shape and LENSES[picture.request.lens].values == "tokens"

    def _row_token(self, row: int) -> str:
        position = row * (self.picture.values_per_row if self.picture is not None else 1)
        return f"{self._token_name(position)} {position}"

    def _kv_head_of(self, picture: HeadPicture) -> int:
        """The kv head of a picture, which a query head shares with others."""
        return int(picture.request.kv_head) // self.shared(picture)

    def _is_chosen(self, picture: HeadPicture) -> bool:
        """Whether the picture shows the selected head."""
        now, request = self._models.selection.now, picture.request
        return (request.layer, self._kv_head_of(picture), request.lens) == (now.layer, now.kv_head, now.lens)

    def _channel(self, picture: HeadPicture) -> int | None:
        """The selected channel, if the picture shows its head."""
        channel = self._models.selection.now.channel
        is_here = channel is not None and channel < picture.low.shape[1] and not picture.state_shape
        return channel if is_here and self._is_chosen(picture) else None

    def _residual(self, picture: HeadPicture) -> tuple[int, ...]:
        """Where the rows that a codec leaves exact begin, if the picture has others before them."""
        matrix = matrix_of(picture)
        start = residual_start(picture.exact_from, matrix.start, matrix.stop)
        return () if start is None else (start,)

    def _alarms(self, picture: HeadPicture) -> tuple[float, ...]:
        if not (picture.num_nan or picture.num_inf):
            return ()
        matrix = matrix_of(picture)
        bad = np.flatnonzero(~np.isfinite(matrix.shown).all(axis=0))[:_MAX_ALARMS]
        return tuple(float(matrix.start + (column + 0.5) * matrix.per_column) for column in bad)

    def _limit(self, picture: HeadPicture | None) -> float:
        """The colour range of a picture: ± this value."""
        if picture is None or self._scope == FIXED:
            return self._fixed
        if self._scope == PER_LAYER:
            return (float(picture.magnitudes.limit[0]) if picture.magnitudes is not None else 0.0) or 1.0
        return picture.limit

    def tell(self, point: QPointF | None) -> None:
        """Show the exact value under the cursor, else that of the selected cell."""
        picture = self.picture
        if point is None and picture is not None:
            point = self._chosen_point(picture)
        cell = self.cell_at(point)
        text = ""
        if picture is not None and cell is not None:
            text = f"{readout(picture, cell)}   {self._token_name(cell.first)}{self._fate(picture, cell)}"
            place = picture.request
            if parts_words(self._models, picture):
                text += f"   {run_words(picture.exact_from, cell.first, cell.last + 1)}"
            if edited := words_at(
                self._models,
                cell.first,
                place.layer,
                self._kv_head_of(picture),
                place.lens,
                cell.row,
                place.seq_id,
            ):
                text += f"   {edited}"
        self.readout.setText(text or "point at a cell for its exact value")
        self.readout.setToolTip(
            plain_tip(f"{text}\n{self._place_words(picture)}" if picture is not None and text else "")
        )
        self.readout.setEnabled(bool(text))

    def _place_words(self, picture: HeadPicture) -> str:
        """What the numbers in the brackets of a value's place are."""
        lens = LENSES[picture.request.lens]
        column = "query" if lens.columns == "queries" else "token"
        row = {"dims": "channel", "tokens": "token", 1: "0"}[lens.values]
        return f"In brackets: layer, {lens.head_word}, {column}, {row}"

    def _chosen_point(self, picture: HeadPicture) -> QPointF | None:
        cell = chosen_cell(self._models.selection.now)
        is_here = self._is_chosen(picture) or (self.state is not None and self.state.area is not None)
        if cell is None or not is_here or cell[1] >= picture.low.shape[1]:
            return None
        return QPointF(cell[0] + 0.5, cell[1] + 0.5)

    def copy_value(self) -> None:
        """Copy the exact number of the selected cell."""
        picture = self.picture
        point = self._chosen_point(picture) if picture is not None else None
        cell = self.cell_at(point)
        if picture is None or cell is None or cell.is_gone:
            self.message.emit("Nothing is copied: Head shows no value of the selected cell")
            return
        place, _, value = readout(picture, cell).partition(" = ")
        QGuiApplication.clipboard().setText(value)
        self.message.emit(f"Copied the value of {place}")

    def _fate(self, picture: HeadPicture, cell: MatrixCell) -> str:
        """What happened to the evicted rows of a cell; empty if there are none."""
        if not cell.num_gone:
            return ""
        if not cell.is_gone:
            return f"   {cell.num_gone} of {counted(cell.last - cell.first + 1, 'row')} evicted"
        if self._has_tokens_down(picture):
            return "   not read: behind the query"
        if cell.last > cell.first:
            return "   all evicted"
        step = self._models.selection.now.step if picture.provenance != STORED_NOW else None
        place = picture.request
        words = eviction_words(self._models, place.layer, self._kv_head_of(picture), cell.first, step, place.seq_id)
        return f"   {words}"


def readout(picture: HeadPicture, cell: MatrixCell) -> str:
    """`K[3, 1, 13, 5] = -1.8342`: layer, kv head, position, channel and the exact value in the cache; without a value
    if the row was evicted."""
    first, request = cell.row * picture.values_per_row, picture.request
    values = f"{first}…{first + picture.values_per_row - 1}" if picture.values_per_row > 1 else str(first)
    place = f"{picture.tensor_label}[{request.layer}, {request.kv_head}, {cell.span}, {values}]"
    return place if cell.is_gone else f"{place} = {extremes(cell.low, cell.high, exact)}"
