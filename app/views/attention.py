"""The newest row: how much the last token looked at every token before it, head by head."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QHideEvent, QPainter, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.draw import attention as draw
from app.draw.attention import HeadMass
from app.draw.format import exact, percent
from app.models import Models
from app.models.slices import ATTENTION
from app.theme import Theme, font_fixed, font_text
from app.views.heatmap import HeatMap
from app.views.heatmap_marks import Marks
from app.views.looking import Span, drop_words, selected_run, shown_record, span_of_run, tell_source, token_name
from app.views.panel import Panel
from app.views.pictures import magnitude_colors
from engine.records import AttentionSlice

ROOT, LINEAR = "root", "linear"
_COLUMN_STEP = 64
_MASS_WIDTH = 96


class MassBars(QWidget):
    """Beside each head's row: its mass on the first position and on the last sixteen, as one bar of length one."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._masses: tuple[HeadMass, ...] = ()
        self._plot = QRectF()
        self.setFixedWidth(_MASS_WIDTH)

    def show_masses(self, theme: Theme, masses: tuple[HeadMass, ...], plot: QRectF) -> None:
        if (theme, masses, plot) != (self._theme, self._masses, self._plot):
            self._theme, self._masses, self._plot = theme, masses, plot
            words = (f"head {m.head}: first {percent(m.first)}, last 16 {percent(m.recent)}" for m in masses)
            self.setToolTip(self.tr("Mass on the first token and on the last 16") + "\n" + "\n".join(words))
            self.setVisible(bool(masses))
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._masses:
            return
        painter = QPainter(self)
        pitch = self._plot.height() / len(self._masses)
        height = min(max(pitch - 3, 1.0), 7.0)
        full = _MASS_WIDTH - 38.0
        for index, mass in enumerate(self._masses):
            middle = self._plot.top() + (index + 0.5) * pitch
            track = QRectF(0, middle - height / 2, full, height)
            painter.fillRect(track, self._theme.color("page_free"))
            first = full * min(max(mass.first, 0.0), 1.0)
            recent = full * min(max(mass.recent, 0.0), 1.0 - first / full)
            painter.fillRect(QRectF(0, track.top(), first, height), self._theme.color("page_shared"))
            painter.fillRect(QRectF(full - recent, track.top(), recent, height), self._theme.color("accent"))
            if pitch >= 11:
                painter.setPen(self._theme.color("muted"))
                painter.setFont(font_fixed(10))
                place = QRectF(full + 2, middle - 7, 36, 14)
                painter.drawText(place, int(Qt.AlignmentFlag.AlignRight), f"{100 * mass.first:.0f} %")
        self._paint_key(painter, full)

    def _paint_key(self, painter: QPainter, full: float) -> None:
        """What the two ends of a bar mean, under the bars."""
        painter.setFont(font_text(10.5))
        y = self._plot.bottom() + 3
        painter.setPen(self._theme.color("page_shared"))
        painter.drawText(QRectF(0, y, 40, 14), int(Qt.AlignmentFlag.AlignLeft), self.tr("first"))
        painter.setPen(self._theme.color("accent"))
        painter.drawText(QRectF(full - 44, y, 44, 14), int(Qt.AlignmentFlag.AlignRight), self.tr("last 16"))


class AttentionView(Panel):
    """Hover tells a weight, a click selects the token that was looked at."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, self.tr("Newest row"), parent, can_pin=True)
        self._models = models
        self._scale = ROOT
        self._piece: AttentionSlice | None = None
        self._drawn: tuple[object, ...] = ()
        self._map = HeatMap(theme, self._token_name)
        self._map.set_can_zoom(False)
        self._map.setAccessibleName(self.tr("Attention weights of the newest token: heads by tokens"))
        self._masses = MassBars(theme)
        self._readout = QLabel()
        self._readout.setTextFormat(Qt.TextFormat.PlainText)
        self._readout.setFont(font_fixed(11.5))
        self._readout.setMinimumWidth(1)
        self._lay_out()
        self.set_choices(
            (
                (ROOT, "√", self.tr("Colour follows the square root of the weight: small weights show")),
                (LINEAR, self.tr("linear"), self.tr("Colour follows the weight itself")),
            )
        )
        self.set_choice(ROOT)
        self.set_theme(theme)
        self.chosen.connect(self._on_chosen)
        self._map.hovered.connect(self._tell)
        self._map.picked.connect(self._on_picked)
        self.pinned.connect(self._on_pinned)
        models.slices.changed.connect(self._on_slice)
        models.selection.changed.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        self._refresh()

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        row.addWidget(self._map, 1)
        row.addWidget(self._masses)
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

    def _on_chosen(self, choice: str) -> None:
        self._scale = choice
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
        self._label(piece)
        selected = selected_run(self._models)
        key = (piece, selected, self._scale, self.theme, self._map.size())
        if key != self._drawn:
            self._draw(piece, selected)
            self._drawn = key

    def _problem(self, piece: AttentionSlice | None) -> str | None:
        if shown_record(self._models) is None:
            return self.tr("Where the newest token looked appears here with the first step.")
        status = self._models.status.now
        if status is not None and status.model is not None and not status.model.captures_attention:
            return self.tr("This model computes its attention in a way that cannot be watched.")
        if piece is None:
            return self.tr("The newest row is on its way.")
        if piece.weights.size:
            return None
        return piece.note or self.tr("This layer has no attention weights.")

    def _label(self, piece: AttentionSlice) -> None:
        looked = self._token_name(piece.query_position)
        words = [self.tr("layer {0} · where {1} {2} looked").format(piece.request.layer, piece.query_position, looked)]
        if piece.tokens_per_column > 1:
            words.append(self.tr("{0} tokens per column, largest").format(piece.tokens_per_column))
        if piece.absent is not None:
            words.append(self.tr("hatched: dropped before"))
        if piece.note:
            words.append(piece.note)
        self.set_detail(" · ".join(words))
        tell_source(self, self._models, piece.provenance, "", piece.request.step)

    def _draw(self, piece: AttentionSlice, selected: Span | None) -> None:
        self._piece = piece
        indices = draw.attention_indices(piece, self._scale == ROOT)
        start, stop = draw.extent(piece)
        marks = Marks(
            left=24,
            selected=span_of_run(partial(draw.span_of, piece), selected),
            y_lines=draw.group_borders(indices.shape[0], piece.group_size),
            ghosts=draw.ghosts_of(piece),
        )
        columns_stop = start + indices.shape[1] * piece.tokens_per_column
        self._map.show_picture(indices, start, columns_stop, (start, stop), marks)
        self._masses.show_masses(self.theme, self._mass_of(piece), self._map.plot_rect)
        self._tell(self._map.hover)

    def _mass_of(self, piece: AttentionSlice) -> tuple[HeadMass, ...]:
        record = self._models.timeline.record(piece.request.step)
        part = record.of(piece.request.seq_id) if record is not None else None
        if part is None or part.attention is None or self.width() < 300:
            return ()
        return draw.masses(part.attention, piece.request.layer)

    def _tell(self, point: QPointF | None) -> None:
        piece = self._piece
        found = draw.weight_at(piece, point.x(), point.y()) if piece is not None and point is not None else None
        if piece is None or found is None:
            self._readout.setText(self.tr("point at a cell for its weight"))
            self._readout.setEnabled(False)
            return
        head, first, last, weight = found
        where = f"{first}" if first == last else f"{first}…{last}"
        self._readout.setEnabled(True)
        if weight != weight and self._is_gone(piece, head, first):
            text = self.tr("head {0} → {1} {2}   {3}").format(
                head, where, self._token_name(first), self._fate(piece, head, first, last)
            )
            self._readout.setText(text)
            return
        self._readout.setText(
            self.tr("head {0} → {1} {2}   {3}  ({4})").format(
                head, where, self._token_name(first), exact(weight), percent(weight)
            )
        )

    def _is_gone(self, piece: AttentionSlice, head: int, position: int) -> bool:
        column = (position - int(piece.positions[0])) // piece.tokens_per_column
        return bool(draw.gone(piece)[head, column])

    def _fate(self, piece: AttentionSlice, head: int, first: int, last: int) -> str:
        """Why there was no row to look at."""
        if last > first:
            return self.tr("all dropped before")
        kv_head = draw.kv_head_of(head, piece.group_size)
        return drop_words(self._models, piece.request.layer, kv_head, first, piece.request.step - 1)

    def _token_name(self, position: int) -> str:
        return token_name(self._models, self._models.selection.now.seq_id, position, 8)

    # ---- what the engine should send -----------------------------------------------------------------------------

    def _want(self) -> None:
        columns = None
        if self.isVisible():
            width = int(self._map.plot_rect.width() * self.devicePixelRatioF())
            columns = max(_COLUMN_STEP, width // _COLUMN_STEP * _COLUMN_STEP)
        self._models.viewport.update(attention_columns=columns)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._want()
        self._refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._want()
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._want()
