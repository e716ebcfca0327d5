"""The newest row: how much the last token looked at every token before it, head by head."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.draw import attention as draw
from app.draw.attention import LINEAR, LOG, PER_HEAD, Attended, HeadMass
from app.draw.format import exact, percent
from app.draw.token_range import TokenRange
from app.kit.heatmap import HeatMap
from app.kit.heatmap_marks import Marks
from app.kit.labels import plain_tip
from app.kit.panel import MARGIN, Panel
from app.kit.pictures import magnitude_colors
from app.kit.provenance import (
    Span,
    drop_words,
    pooling_words,
    selected_run,
    shown_record,
    span_of_run,
    tell_picture,
    token_name,
)
from app.kit.theme import Theme, font_fixed
from app.models import Models
from app.models.slices import ATTENTION
from app.panels.attention.rows import MassBars, TopTokens, attended_words, entries_of, whole_entries
from engine.wire.records import AttentionSlice, EngineStatus

_ROOM_FOR_MASSES, _ROOM_FOR_TOKENS = 300, 500
_ROOM_FOR_ONE_LINE, _ROOM_FOR_TWO_LINES = 760, 400  # pixels of width that five entries of a head take at most
_HEIGHT_FOR_ONE_LINE = 120


class AttentionView(Panel):
    """Hover tells a weight, a click selects the token that was looked at."""

    abilities = frozenset(("view.reset", "view.zoom"))

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Newest row", parent, can_pin=True)
        self._models = models
        self._scale = LOG
        self._piece: AttentionSlice | None = None
        self._drawn: tuple[object, ...] = ()
        self._map = HeatMap(theme, self._token_name)
        self._map.setAccessibleName("Attention weights of the newest token: heads by tokens")
        self._masses = MassBars(theme)
        self._tops = TopTokens(theme, self._token_name)
        self._readout = QLabel()
        self._readout.setTextFormat(Qt.TextFormat.PlainText)
        self._readout.setFont(font_fixed(11.5))
        self._readout.setMinimumWidth(1)
        self._readout.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self._lay_out()
        self.set_choices(
            (
                (LOG, "log", "By decades of the weight, from a twentieth of an even share to 1"),
                (
                    PER_HEAD,
                    "head",
                    "Colour against the largest weight of each head behind the first token",
                ),
                (LINEAR, "linear", "Colour follows the weight itself, from 0 to 1"),
            )
        )
        self.set_choice(LOG)
        self.set_theme(theme)
        self.chosen.connect(self._on_chosen)
        self._map.hovered.connect(self._tell)
        self._map.picked.connect(self._on_picked)
        self._map.zoomed.connect(self._on_zoomed)
        self._map.resized.connect(self._on_resized)
        self.pinned.connect(self._on_pinned)
        models.slices.changed.connect(self._on_slice)
        models.selection.changed.connect(self._refresh)
        models.viewport.changed.connect(self._on_viewport)
        models.status.changed.connect(self._on_status)
        models.timeline.legible.connect(self._relabel)
        models.timeline.reset.connect(self._refresh)
        self._refresh()

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        row.addWidget(self._map, 1)
        row.addWidget(self._masses)
        row.addWidget(self._tops)
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        column.addLayout(row, 1)
        column.addWidget(self._readout)
        self.set_body(body)

    # ---- intents -------------------------------------------------------------------------------------------------

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._map.set_theme(theme)
        self._map.set_table(magnitude_colors(theme))
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

    def _on_chosen(self, choice: str) -> None:
        self._scale = choice
        self.set_choice(choice)
        self._refresh()

    def _on_zoomed(self, wanted: TokenRange | None) -> None:
        self._models.viewport.update(attention_range=wanted)

    def _on_viewport(self) -> None:
        self._map.show_range(self._models.viewport.now.attention_range)
        self._relabel()

    def _on_status(self, old: EngineStatus | None, new: EngineStatus) -> None:
        if old is None or old.running != new.running:
            self._relabel()

    def _on_resized(self) -> None:
        self._want()
        self._refresh()

    def _on_picked(self, point: QPointF) -> None:
        found = draw.weight_at(self._piece, point.x(), point.y()) if self._piece is not None else None
        if found is not None and self._piece is not None:
            head, position, _, _ = found
            kv_head = draw.kv_head_of(head, self._piece.group_size)
            self._models.selection.update(position=position, kv_head=kv_head, layer=self._piece.request.layer)

    def _on_pinned(self, is_pinned: bool) -> None:
        layer = self._piece.request.layer if self._piece is not None else self._models.selection.now.layer
        self._models.viewport.update(attention_layer=layer if is_pinned else None)

    def _on_slice(self, kind: str) -> None:
        if kind == ATTENTION:
            self._refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        piece = self._models.slices.attention
        problem = self._problem(piece)
        self.set_empty(problem)
        if problem is not None or piece is None:
            self.set_provenance("")
            self.set_detail("")
            self._piece, self._drawn = None, ()
            return
        selected = selected_run(self._models)
        key = (piece, selected, self._scale, self.theme, self._map.plot_rect, self.width(), self._chosen_head(piece))
        if key != self._drawn:
            self._draw(piece, selected)
            self._drawn = key
        self._label(piece)

    def _relabel(self) -> None:
        if self._piece is not None and self.isVisible():
            self._label(self._piece)

    def _problem(self, piece: AttentionSlice | None) -> str | None:
        if shown_record(self._models) is None:
            return "Where the newest token looked appears here with the first step."
        status = self._models.status.now
        if status is not None and status.model is not None and not status.model.captures_attention:
            return "This model computes its attention in a way that cannot be watched."
        if piece is None:
            return "The newest row is on its way."
        if piece.weights.size:
            return None
        return piece.note or "This layer has no attention weights."

    def _label(self, piece: AttentionSlice) -> None:
        looked = self._token_name(piece.query_position)
        words = [f"layer {piece.request.layer} · where {piece.query_position} {looked} looked"]
        for one in draw.sinks(piece):
            name = self._token_name(one.position)
            words.append(f"▼ sink: {one.position} {name} takes {percent(one.weight)}")
        if piece.absent is not None:
            words.append("hatched: dropped before")
        if piece.note:
            words.append(piece.note)
        self.set_detail(" · ".join(words))
        request, now = piece.request, self._models.selection.now
        pinned = self._models.viewport.now.attention_layer
        layer = now.layer if pinned is None else pinned
        shown, wanted = (f"L{request.layer}", f"L{layer}") if request.layer != layer else ("", "")
        tell_picture(
            self, self._models, piece.provenance, "", request.seq_id, piece.query_position + 1, shown, wanted,
            is_whole=self._map.is_loaded,
        )  # fmt: skip

    def _draw(self, piece: AttentionSlice, selected: Span | None) -> None:
        self._piece = piece
        indices = draw.attention_indices(piece, self._scale)
        start, _ = draw.extent(piece)
        whole_start = 0 if piece.request.stop is not None else start
        marks = Marks(
            left=24,
            selected=span_of_run(partial(draw.span_of, piece), selected),
            y_lines=draw.group_borders(indices.shape[0], piece.group_size),
            ghosts=draw.ghosts_of(piece),
            flags=tuple(one.position + 0.5 for one in draw.sinks(piece)),
            note=pooling_words(piece.tokens_per_column),
        )
        columns_stop = start + indices.shape[1] * piece.tokens_per_column
        self._map.show_picture(indices, start, columns_stop, (whole_start, piece.query_position + 1), marks)
        self._masses.show_masses(self.theme, self._mass_of(piece), self._map.plot_rect)
        rows = self._rows(piece)
        width = self.width() * 3 // 10 if self.width() >= _ROOM_FOR_TOKENS else 0
        self._tops.show_rows(self.theme, rows, self._map.plot_rect, width)
        words = [f"head {head}: {attended_words(row, self._token_name)}" for head, row in enumerate(rows)]
        self._map.setAccessibleDescription("Most attended: " + "; ".join(words))
        self._readout.setToolTip(plain_tip("\n".join(("Most attended tokens", *words))))
        self._tell(self._map.hover)

    def _rows(self, piece: AttentionSlice) -> tuple[tuple[Attended, ...], ...]:
        return tuple(draw.top_positions(piece, head) for head in range(piece.weights.shape[0]))

    def _chosen_head(self, piece: AttentionSlice) -> int:
        """The first query head that reads the selected kv head."""
        wanted: int = self._models.selection.now.kv_head * max(1, piece.group_size)
        return min(wanted, max(0, len(piece.weights) - 1))

    def _mass_of(self, piece: AttentionSlice) -> tuple[HeadMass, ...]:
        seq_id, timeline = piece.request.seq_id, self._models.timeline
        record = timeline.fed(seq_id, piece.request.step)  # while others go on, the row of one that has ended stays
        part = timeline.part(seq_id, record.step) if record is not None else None
        if part is None or part.attention is None or self.width() < _ROOM_FOR_MASSES:
            return ()
        return draw.masses(part.attention, piece.request.layer)

    def _tell(self, point: QPointF | None) -> None:
        piece = self._piece
        found = draw.weight_at(piece, point.x(), point.y()) if piece is not None and point is not None else None
        if piece is None or found is None:
            self._show_readout([] if piece is None else self._summary(piece))
            self._readout.setEnabled(False)
            return
        head, first, last, weight = found
        where = f"{first}" if first == last else f"{first}…{last}"
        self._readout.setEnabled(True)
        place = f"head {head} → {where} {self._token_name(first)}"
        if weight != weight and self._is_gone(piece, head, first):
            self._readout.setText(f"{place}   {self._fate(piece, head, first, last)}")
            return
        brief = f"head {head} → {where}"
        shown = f"{exact(weight)}  ({percent(weight)})"
        fits = self._readout.fontMetrics().horizontalAdvance(f"{place}   {shown}") <= self._readout_room()
        self._readout.setText(f"{place if fits else brief}   {shown}")

    def _show_readout(self, entries: list[str]) -> None:
        width, room = self._readout.fontMetrics().horizontalAdvance, self._readout_room()
        self._readout.setText(whole_entries(entries, room, self._num_lines(), width) if entries else "")

    def _readout_room(self) -> int:
        return self.width() - 2 * MARGIN

    def _num_lines(self) -> int:
        """How many lines the readout has: five entries need about two where a panel is narrow, three where it is
        narrower. A low panel needs its room for the picture. It follows the panel's size and nothing that a step
        changes: the picture above would be laid out anew."""
        wanted = 1 if self.width() >= _ROOM_FOR_ONE_LINE else 2 if self.width() >= _ROOM_FOR_TWO_LINES else 3
        return max(1, min(wanted, 1 + (self.height() - _HEIGHT_FOR_ONE_LINE) // self._readout.fontMetrics().height()))

    def _fit_readout(self) -> None:
        self._readout.setFixedHeight(self._num_lines() * self._readout.fontMetrics().height())

    def _summary(self, piece: AttentionSlice) -> list[str]:
        """What the chosen head looked at most, while the mouse points at nothing."""
        head = self._chosen_head(piece)
        found = draw.top_positions(piece, head)
        if not found:
            return ["point at a cell for its weight"]
        first, *others = entries_of(found, self._token_name)
        return [f"head {head} → {first}", *others]

    def _is_gone(self, piece: AttentionSlice, head: int, position: int) -> bool:
        column = (position - int(piece.positions[0])) // piece.tokens_per_column
        return bool(draw.gone(piece)[head, column])

    def _fate(self, piece: AttentionSlice, head: int, first: int, last: int) -> str:
        """Why there was no row to look at."""
        if last > first:
            return "all dropped before"
        kv_head = draw.kv_head_of(head, piece.group_size)
        return drop_words(self._models, piece.request.layer, kv_head, first, piece.request.step - 1)

    def _token_name(self, position: int) -> str:
        return token_name(self._models, self._models.selection.now.seq_id, position, 8)

    # ---- what the engine should send -----------------------------------------------------------------------------

    def _want(self) -> None:
        columns = self._map.num_columns if self.isVisible() else None
        self._models.viewport.update(attention_columns=columns)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_readout()
        self._refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._want()
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._want()
