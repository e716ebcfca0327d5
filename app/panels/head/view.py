"""One head of one layer: tokens across, channels down, every value exact under the cursor."""

from __future__ import annotations

from functools import partial

import numpy as np
from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QActionGroup, QHideEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMenu, QToolButton, QVBoxLayout, QWidget

from app.draw.colormap import contrast_text, signed_index
from app.draw.format import brief, thousands
from app.draw.token_range import TokenRange
from app.kit.heatmap import HeatMap
from app.kit.heatmap_marks import Marks, Numbers
from app.kit.labels import steady
from app.kit.panel import Panel
from app.kit.pictures import signed_colors
from app.kit.provenance import (
    NARROW,
    STORED_NOW,
    Span,
    drop_words,
    pooling_words,
    selected_run,
    shown_record,
    span_of_run,
    tell_picture,
    tensor_name,
    token_name,
)
from app.kit.range_bar import RangeBar
from app.kit.theme import Theme, font_fixed
from app.models import Models
from app.models.slices import HEAD
from app.panels.head import draw
from engine.wire.records import EngineStatus, HeadSlice

PER_HEAD, PER_LAYER, FIXED = "head", "layer", "fixed"
_MAX_ALARMS = 200


class HeadView(Panel):
    """`hovered(text)` tells the exact value under the cursor, the empty text when there is none."""

    abilities = frozenset(("view.reset", "view.zoom", "view.colors"))

    hovered = Signal(str)

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Head", parent, can_pin=True)
        self._models = models
        self._scope = PER_HEAD
        self._fixed = 1.0
        self._piece: HeadSlice | None = None
        self._values = np.zeros((0, 0), np.float32)
        self._drawn: tuple[object, ...] = ()
        self._named: object = None
        self._map = HeatMap(theme, self._token_name)
        self._map.setAccessibleName("Heat map of one head: tokens by channels")
        self._bar = RangeBar(theme)
        self._readout = QLabel()
        self._readout.setTextFormat(Qt.TextFormat.PlainText)
        self._readout.setFont(font_fixed())
        self._readout.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._readout.setMinimumWidth(1)
        self._range = self._make_range_menu()
        self.add_to_strip(self._range)
        self._lay_out()
        self.set_theme(theme)
        self._map.hovered.connect(self._on_hovered)
        self._map.picked.connect(self._on_picked)
        self._map.zoomed.connect(self._on_zoomed)
        self._map.resized.connect(self._want)
        self._map.fit_wanted.connect(self.fit_colors)
        self._bar.dragged.connect(self._on_dragged)
        self._bar.reset.connect(self.fit_colors)
        self.pinned.connect(self._on_pinned)
        models.slices.changed.connect(self._on_slice)
        models.selection.changed.connect(self._on_selection)
        models.viewport.changed.connect(self._on_viewport)
        models.status.changed.connect(self._on_status)
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        self._refresh()

    # ---- construction --------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        row.addWidget(self._map, 1)
        row.addWidget(self._bar)
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        column.addLayout(row, 1)
        column.addWidget(self._readout)
        self.set_body(body)

    def _make_range_menu(self) -> QToolButton:
        button = QToolButton()
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        button.setToolTip("How far the colours reach")
        menu = QMenu(button)
        self._scopes = QActionGroup(menu)
        for scope, text in (
            (PER_HEAD, "Per head: 99.5 % of this head's values"),
            (PER_LAYER, "Per layer: as on the wall"),
            (FIXED, "Fixed: keep the present range"),
        ):
            action = self._scopes.addAction(text)
            action.setData(scope)
            action.setCheckable(True)
            menu.addAction(action)
        self._scopes.triggered.connect(self._on_scope)
        button.setMenu(menu)
        return button

    # ---- intents -------------------------------------------------------------------------------------------------

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._map.set_theme(theme)
        self._map.set_table(signed_colors(theme))
        self._inks = tuple(contrast_text(signed_colors(theme), "#000000", "#ffffff"))
        self._drawn = ()
        self._refresh()

    def reset_view(self) -> None:
        self._map.reset_view()

    def zoom_to_selection(self) -> None:
        position = self._models.selection.now.position
        if position is None:
            self._map.follow_newest()
        else:
            self._map.zoom_to(position)

    def fit_colors(self) -> None:
        """Back to a range fitted to what is visible; a fixed one is fitted once and stays."""
        if self._scope == FIXED:
            self._fixed = self._piece.limit if self._piece is not None else 1.0
        else:
            self._scope = PER_HEAD
        self._refresh()

    def _on_scope(self) -> None:
        action = self._scopes.checkedAction()
        if action is not None:
            self._fixed = self._limit()[0]
            self._scope = str(action.data())
            self._refresh()

    def _on_dragged(self, limit: float) -> None:
        self._scope, self._fixed = FIXED, limit
        self._refresh()

    def _on_picked(self, point: QPointF) -> None:
        cell = draw.cell_at(self._piece, point.x(), point.y()) if self._piece is not None else None
        if cell is not None:
            self._models.selection.update(position=cell.first_position, channel=cell.channel)

    def _on_zoomed(self, wanted: TokenRange | None) -> None:
        self._models.viewport.update(head_range=wanted)

    def _on_viewport(self) -> None:
        self._map.show_range(self._models.viewport.now.head_range)
        self._relabel()

    def _on_status(self, old: EngineStatus | None, new: EngineStatus) -> None:
        if old is None or old.running != new.running:
            self._relabel()

    def _relabel(self) -> None:
        if self._piece is not None and self.isVisible():
            self._label(self._piece)

    def _on_pinned(self, is_pinned: bool) -> None:
        now = self._models.selection.now
        place = (now.layer, now.kv_head, now.tensor)
        if self._piece is not None:
            request = self._piece.request
            place = (request.layer, request.kv_head, request.tensor)
        self._models.viewport.update(head_place=place if is_pinned else None)

    def _on_hovered(self, point: QPointF | None) -> None:
        self._tell(point)

    def _on_slice(self, kind: str) -> None:
        if kind == HEAD:
            self._refresh()

    def _on_selection(self) -> None:
        self._refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        piece = self._models.slices.head
        problem = self._problem(piece)
        self.set_empty(problem)
        self._range.setVisible(problem is None)
        if piece is not None:
            self._name(piece)
        if problem is not None or piece is None:
            self.set_provenance("")
            self.set_detail("")
            self._piece, self._drawn = None, ()
            return
        limit, words = self._limit(piece)
        selected = selected_run(self._models)
        key = (piece, limit, selected, self.theme, self._models.selection.now.channel)
        if key == self._drawn:
            self._label(piece)
            return
        self._draw(piece, limit, selected)
        self._label(piece)
        self._show_range(self._range_text(limit, words))
        for action in self._scopes.actions():
            action.setChecked(action.data() == self._scope)
        self._drawn = key

    def _show_range(self, text: str) -> None:
        if text != self._range.text():
            self._range.setText(text)
            hint = self._range.sizeHint()
            self._range.setFixedSize(steady(self._range.width(), hint.width()), hint.height())

    def _range_text(self, limit: float, words: str) -> str:
        if self.width() < NARROW + 60:
            return f"±{brief(limit)} ▾"
        return f"range ±{brief(limit)} · {words} ▾"

    def _problem(self, piece: HeadSlice | None) -> str | None:
        """Why there is nothing to draw, in one line."""
        if shown_record(self._models) is None:
            return "One head, token by channel, appears here with the first step: type a prompt and press Send."
        if piece is None:
            return "This head is on its way."
        if piece.low.size:
            return None
        if draw.is_part(piece) and not piece.note:
            return "These positions have left this head's window: press Home to see what it holds."
        return piece.note or "This head holds no tokens yet."

    def _name(self, piece: HeadSlice) -> None:
        request = piece.request
        self.set_title(f"Layer {request.layer} · kv head {request.kv_head} · {piece.tensor_label}")

    def _label(self, piece: HeadSlice) -> None:
        request = piece.request
        heads = ", ".join(str(head) for head in piece.query_heads)
        words = [f"serves heads {heads}"] if heads else []
        if piece.absent is not None and piece.absent.any():
            dropped, (start, stop) = int(piece.absent.sum()), draw.extent(piece)
            is_now = piece.provenance == STORED_NOW
            text = "hatched: {0} of {1} rows gone by now" if is_now else "hatched: {0} of {1} dropped"
            words.append(text.format(thousands(dropped), thousands(stop - start)))
        if piece.num_nan or piece.num_inf:
            words.append(f"▲ {piece.num_nan} NaN, {piece.num_inf} Inf")
        self.set_detail(" · ".join([*words, piece.note] if piece.note else words))
        now = self._models.selection.now
        layer, kv_head, tensor = self._models.viewport.now.head_place or (now.layer, now.kv_head, now.tensor)
        shown, wanted = tensor_name(request.tensor), tensor_name(tensor)
        if (request.layer, request.kv_head) != (layer, kv_head):
            shown, wanted = f"{shown}[{request.layer}, {request.kv_head}]", f"{wanted}[{layer}, {kv_head}]"
        tell_picture(
            self, self._models, piece.provenance, piece.dtype, request.seq_id, request.num_tokens, shown, wanted,
            is_whole=self._map.is_loaded,
        )  # fmt: skip

    def _draw(self, piece: HeadSlice, limit: float, selected: Span | None) -> None:
        if piece is not self._piece:
            self._values = draw.head_values(piece)
            self._piece = piece
        table = signed_colors(self.theme)
        indices = np.ascontiguousarray(signed_index(np.where(draw.gone(piece), np.float32(0), self._values), limit))
        start, _ = draw.extent(piece)
        columns_stop = start + indices.shape[1] * piece.tokens_per_column
        whole = (0 if draw.is_part(piece) else start, piece.request.num_tokens)
        loaded = (piece.request.start, piece.request.stop) if draw.is_part(piece) else None
        marks = Marks(
            selected=span_of_run(partial(draw.span_of, piece), selected),
            selected_row=self._channel(piece),
            alarms=self._alarms(piece, start),
            ghosts=draw.ghosts_of(piece),
            note=pooling_words(piece.tokens_per_column),
            numbers=Numbers(self._values, indices, self._inks, start, piece.tokens_per_column),
        )
        self._map.show_picture(indices, start, columns_stop, whole, marks, loaded)
        self._bar.show_range(self.theme, table, piece, limit)
        self._tell(self._map.hover)

    def _channel(self, piece: HeadSlice) -> int | None:
        """The selected channel, where the picture is of its head."""
        now, request = self._models.selection.now, piece.request
        is_here = (request.layer, request.kv_head, request.tensor) == (now.layer, now.kv_head, now.tensor)
        return now.channel if is_here and now.channel is not None and now.channel < piece.low.shape[1] else None

    def _alarms(self, piece: HeadSlice, start: int) -> tuple[float, ...]:
        if not (piece.num_nan or piece.num_inf):
            return ()
        bad = np.flatnonzero(~np.isfinite(self._values).all(axis=0) & ~draw.gone(piece))[:_MAX_ALARMS]
        return tuple(float(start + (column + 0.5) * piece.tokens_per_column) for column in bad)

    def _limit(self, piece: HeadSlice | None = None) -> tuple[float, str]:
        """The range and its name."""
        piece = piece or self._piece
        if piece is None:
            return self._fixed, "fixed"
        if self._scope == FIXED:
            return self._fixed, "fixed"
        if self._scope == PER_LAYER:
            limit = float(piece.magnitudes.limit[0]) if piece.magnitudes is not None else 0.0
            return limit or 1.0, "per layer"
        return piece.limit, "robust 99.5 %"

    def _tell(self, point: QPointF | None) -> None:
        """The exact value under the cursor, else of the selected cell: the line keeps its place."""
        piece = self._piece
        if point is None and piece is not None:
            point = self._chosen_point(piece)
        cell = draw.cell_at(piece, point.x(), point.y()) if piece is not None and point is not None else None
        text = ""
        if piece is not None and cell is not None:
            text = f"{draw.readout(piece, cell)}   {self._token_name(cell.first_position)}{self._fate(piece, cell)}"
        self._readout.setText(text or "point at a cell for its exact value")
        self._readout.setEnabled(bool(text))
        self.hovered.emit(text if self._map.hover is not None else "")

    def _chosen_point(self, piece: HeadSlice) -> QPointF | None:
        position, channel = self._models.selection.now.position, self._channel(piece)
        return None if position is None or channel is None else QPointF(position + 0.5, channel + 0.5)

    def _fate(self, piece: HeadSlice, cell: draw.Cell) -> str:
        """What became of the rows of a cell that the head holds no more."""
        if not cell.num_dropped:
            return ""
        if not cell.is_gone:
            count = cell.last_position - cell.first_position + 1
            return "   " + f"{cell.num_dropped} of {count} rows dropped"
        if cell.last_position > cell.first_position:
            return "   " + "all dropped"
        step = self._models.selection.now.step if piece.provenance != STORED_NOW else None
        return "   " + drop_words(self._models, piece.request.layer, piece.request.kv_head, cell.first_position, step)

    def _token_name(self, position: int) -> str:
        return token_name(self._models, self._models.selection.now.seq_id, position)

    # ---- what the engine should send -----------------------------------------------------------------------------

    def _want(self) -> None:
        columns = None
        if self.isVisible():
            columns = self._map.num_columns
        self._models.viewport.update(head_columns=columns)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._want()
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._want()
