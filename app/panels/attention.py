"""Attention by head: how much the newest token attended to every token before it, or what all queries did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QWidget

from app.draw.colormap import Floats, Indices, magnitude_index
from app.draw.format import brief, decimal, exact, percent
from app.draw.matrix import Box, MatrixCell, is_map, matrix_of
from app.kit.heatmap import words_at
from app.kit.map_view import LensMenu, MapState, MapView
from app.kit.painting import TextPainter, color_scale
from app.kit.provenance import (
    PositionSpan,
    Provenance,
    eviction_words,
    picture_source,
    selected_run,
    shown_record,
    tensor_name,
    token_name,
)
from app.kit.reader import EDITS, SELECTION, STATUS, STEPS, VIEWPORT, pictures
from app.kit.theme import current_theme, font_fixed, font_text
from app.kit.view import MARGIN
from app.kit.widgets import plain_tip
from app.models import Models
from app.models.pictures import ATTENTION
from app.models.places import head_of, layer_label
from engine.spec.lenses import LENSES
from engine.wire.pictures import AttentionPicture
from engine.wire.records import AttentionSummary

LOG, PER_HEAD, LINEAR = "log", "head", "linear"
LEAST_SHARE = 0.05  # of an even weight 1/(number of positions): smaller weights have the scale's lowest colour
SINK_SHARE, SINK_TIMES = 0.25, 3  # a sink takes a quarter of the mass, and three times an even share of it
FIRST, RECENT = 4, 16  # sinks are among the first tokens, or older than the latest, which are near the query


class HeadMass(Struct, frozen=True):
    """A query head's attention mass on position 0 and on the last 16 positions."""

    head: int
    first: float
    recent: float


class PositionWeight(Struct, frozen=True):
    """A position and its attention weight."""

    position: int
    weight: float


def is_weights(picture: AttentionPicture) -> bool:
    """Whether its numbers are weights between 0 and 1, of which each query has one to share out."""
    return LENSES[picture.request.lens].name in ("attention", "attention-map")


def largest(picture: AttentionPicture) -> float:
    """What the colours reach to: 1 for weights, else the largest number; 1 where there is none."""
    if is_weights(picture):
        return 1.0
    known = picture.weights[np.isfinite(picture.weights)]
    return float(known.max(initial=0.0)) or 1.0


def attention_indices(picture: AttentionPicture, scale: str) -> Indices:
    """`[rows, columns]` of colour indices: by the number's logarithm above `LEAST_SHARE` (`LOG`), relative to the
    row's largest one behind the first token (`PER_HEAD`), or by the number itself (`LINEAR`). Numbers that are no
    weights are taken as shares of the largest."""
    weights = matrix_of(picture).shown
    if scale != PER_HEAD:
        weights = weights / np.float32(largest(picture))
    if scale == LOG:
        least = np.float32(LEAST_SHARE / (picture.query_position + 1))
        weights = (1 - np.log10(np.maximum(weights, least)) / np.log10(least)).astype(np.float32)
    elif scale == PER_HEAD:
        weights = weights / head_limits(picture)[:, None]
    return magnitude_index(np.ascontiguousarray(weights, dtype=np.float32), 1.0)


def head_limits(picture: AttentionPicture) -> Floats:
    """`[H]`: the largest weight behind the first token, which often takes half of the mass as a sink; of the whole row,
    so that zooming changes no colour. 1 for a head that has none, and for each row of a lens without them the
    largest."""
    if picture.top_positions is None or picture.top_weights is None or not picture.top_weights.size:
        return np.full(picture.weights.shape[0], largest(picture), np.float32)
    behind = np.where(picture.top_positions > 0, picture.top_weights, 0)
    most: Floats = np.nan_to_num(behind).max(1).astype(np.float32)
    most[most <= 0] = 1
    return most


def top_positions(picture: AttentionPicture, head: int) -> tuple[PositionWeight, ...]:
    """The positions with a head's largest weights, largest first; fewer if the head has fewer rows. Of sums, the
    mean weights of the queries."""
    if picture.top_positions is None or picture.top_weights is None or not 0 <= head < len(picture.top_positions):
        return ()
    pairs = zip(picture.top_positions[head], picture.top_weights[head], strict=True)
    count = 1 if is_weights(picture) else max(1, picture.query_position + 1 - picture.first_query)
    return tuple(PositionWeight(int(position), float(weight) / count) for position, weight in pairs if weight == weight)


@lru_cache(maxsize=4)
def sinks_of(picture: AttentionPicture) -> tuple[PositionWeight, ...]:
    """Positions that take a quarter of the mass or more in the mean of the layer's heads, and much more than each of so
    few tokens would if all took the same. A token near the query is none: heads look at it because it is near."""
    if (
        picture.request.lens != "attention"
        or picture.top_positions is None
        or picture.top_weights is None
        or not picture.top_weights.size
    ):
        return ()
    places, where = np.unique(picture.top_positions, return_inverse=True)
    mass = np.bincount(where.reshape(-1), np.nan_to_num(picture.top_weights).reshape(-1)) / len(picture.top_positions)
    query = picture.query_position
    least = max(SINK_SHARE, SINK_TIMES / (query + 1))
    return tuple(
        PositionWeight(int(place), float(mean))
        for place, mean in zip(places, mass, strict=True)
        if mean >= least and place != query and (place < FIRST or place <= query - RECENT)
    )


def kv_head_of(head: int, group_size: int) -> int:
    return head // max(1, group_size)


def masses_of(summary: AttentionSummary, layer: int, entropy: Floats | None) -> tuple[HeadMass, ...]:
    """The masses of every head of a layer, given its entropies `[H]`; empty if the layer was not measured."""
    if layer not in summary.layers:
        return ()
    index = summary.layers.index(layer)
    first, recent = summary.first_mass[index], summary.recent_mass[index]
    if entropy is None or len(entropy) != len(first):
        return ()
    return tuple(HeadMass(head, float(first[head]), float(recent[head])) for head in range(len(first)))


# ---- the panel -------------------------------------------------------------------------------------------------------


_MASS_WIDTH = 96
_LEAST_PITCH = 11.0
_LINE = 12.0
_GAP = 14.0
_SWATCH = 6.0
APART = "   "


def attended_words(found: tuple[PositionWeight, ...], name: Callable[[int], str]) -> str:
    """`0 Once 43 %  17 ·cat 8 %`: positions with their tokens and weights."""
    return APART.join(entries_of(found, name))


def entries_of(found: tuple[PositionWeight, ...], name: Callable[[int], str]) -> list[str]:
    """`0 Once 43 %` for each: a position, its token and its weight."""
    return [f"{one.position} {name(one.position)} {percent(one.weight)}" for one in found]


def whole_entries(entries: Sequence[str], room: float, num_lines: int, width: Callable[[str], float]) -> str:
    """As many whole entries as fit on `num_lines` lines, at least the first: a cut number would read as another one."""
    lines = [entries[0]]
    for entry in entries[1:]:
        longer = f"{lines[-1]}{APART}{entry}"
        if width(longer) <= room:
            lines[-1] = longer
        elif len(lines) < num_lines and width(entry) <= room:
            lines.append(entry)
        else:
            break
    return "\n".join(lines)


class MassBars(QWidget):
    """For each head a bar of length one, with its mass on the first position and on the last sixteen."""

    def __init__(self) -> None:
        super().__init__()
        self.masses: tuple[HeadMass, ...] = ()
        self._plot = QRectF()
        self._key = TextPainter(font_text(10.5))
        self.setFixedWidth(_MASS_WIDTH)

    def show_masses(self, masses: tuple[HeadMass, ...], plot: QRectF) -> None:
        if (masses, plot) != (self.masses, self._plot):
            self.masses, self._plot = masses, plot
            self.setVisible(bool(masses))
            self.update()

    def describe(self) -> None:
        """Set the tool tip to the masses in words."""
        words = (f"head {m.head}: first {percent(m.first)}, last 16 {percent(m.recent)}" for m in self.masses)
        self.setToolTip("Mass on the first token and on the last 16" + "\n" + "\n".join(words))

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self.masses:
            return
        painter = QPainter(self)
        pitch = self._plot.height() / len(self.masses)
        height = min(max(pitch - 3, 1.0), 7.0)
        full = _MASS_WIDTH - 38.0
        for index, mass in enumerate(self.masses):
            middle = self._plot.top() + (index + 0.5) * pitch
            track = QRectF(0, middle - height / 2, full, height)
            painter.fillRect(track, current_theme().color("page_free"))
            first = full * min(max(mass.first, 0.0), 1.0)
            recent = full * min(max(mass.recent, 0.0), 1.0 - first / full)
            painter.fillRect(QRectF(0, track.top(), first, height), current_theme().color("page_shared"))
            painter.fillRect(QRectF(full - recent, track.top(), recent, height), current_theme().color("accent"))
            if pitch >= _LEAST_PITCH:
                painter.setPen(current_theme().color("muted"))
                painter.setFont(font_fixed(10))
                place = QRectF(full + 2, middle - 7, 36, 14)
                painter.drawText(place, int(Qt.AlignmentFlag.AlignRight), f"{decimal(100 * mass.first, 0)} %")
        self._paint_key(painter)

    def _paint_key(self, painter: QPainter) -> None:
        """Paint the legend below the bars, in two lines if there is space."""
        y = self._plot.bottom() + 9
        if self.height() - y < 19:
            x = self._paint_entry(painter, 0, y, "page_shared", "first")
            self._paint_entry(painter, x + 8, y, "accent", "last 16")
            return
        self._paint_entry(painter, 0, y, "page_shared", "first token")
        self._paint_entry(painter, 0, y + 13, "accent", "last 16")

    def _paint_entry(self, painter: QPainter, x: float, middle: float, role: str, text: str) -> float:
        """Paint a swatch of a colour and its name; returns where it ends."""
        painter.fillRect(QRectF(x, middle - _SWATCH / 2, _SWATCH, _SWATCH), current_theme().color(role))
        painter.setPen(current_theme().color("muted"))
        return self._key.left(painter, x + _SWATCH + 4, middle, text)


class TopTokens(QWidget):
    """Each head's most attended tokens beside its row, as many as fit."""

    def __init__(self, name: Callable[[int], str]) -> None:
        super().__init__()
        self._name = name
        self.rows: tuple[tuple[PositionWeight, ...], ...] = ()
        self._plot = QRectF()
        self._ink = TextPainter(font_fixed(10))

    def show_rows(self, rows: tuple[tuple[PositionWeight, ...], ...], plot: QRectF, width: int) -> None:
        """Show `rows[head]`; hidden if the lines would touch, or if `width` is too small for a token."""
        is_shown = bool(rows) and width >= 90 and plot.height() / max(1, len(rows)) >= _LEAST_PITCH
        self.setVisible(is_shown)
        self.setFixedWidth(max(1, width))
        if (rows, plot) != (self.rows, self._plot):
            self.rows, self._plot = rows, plot
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        pitch = self._plot.height() / max(1, len(self.rows))
        for head, row in enumerate(self.rows):
            lines = self._lines([(f"{one.position} {self._name(one.position)} ", percent(one.weight)) for one in row])
            lines = lines[: max(1, int(pitch // _LINE))]
            first = self._plot.top() + (head + 0.5) * pitch - (len(lines) - 1) * _LINE / 2
            for number, line in enumerate(lines):
                x = 0.0
                for name, share in line:
                    painter.setPen(current_theme().color("text"))
                    x = self._ink.left(painter, x, first + number * _LINE, name)
                    painter.setPen(current_theme().color("muted"))
                    x = self._ink.left(painter, x, first + number * _LINE, share) + _GAP

    def _lines(self, pairs: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
        """Arrange names and shares in lines, as many in each as fit, at least one."""
        lines: list[list[tuple[str, str]]] = []
        room = 0.0
        for name, share in pairs:
            width = self._ink.width(name) + self._ink.width(share)
            if not lines or width > room:
                lines.append([])
                room = float(self.width())
            lines[-1].append((name, share))
            room -= width + _GAP
        return lines


_ROOM_FOR_MASSES, _ROOM_FOR_LENS, _ROOM_FOR_TOKENS = 300, 430, 500
_ROOM_FOR_ONE_LINE, _ROOM_FOR_TWO_LINES = 760, 400  # least widths of the panel for five entries in one or two lines
_HEIGHT_FOR_ONE_LINE = 120


class AttentionState(MapState, frozen=True):
    """With the words about it, the choice of the colour scale, the chosen query head, and the room for it."""

    words: str
    scale: str
    head: int
    plot: QRectF
    width: int


class AttentionView(MapView[AttentionState]):
    """Hovering shows a number, a click selects the token that it belongs to, and the head."""

    name = "attention"
    kind = ATTENTION
    name_length, readout_size = 8, 11.5
    follows = (SELECTION, STATUS, STEPS, VIEWPORT, EDITS, pictures(ATTENTION))
    needs = "rows"
    choices = (
        (LOG, "log", "By decades of the weight, from a twentieth of an even share to 1"),
        (PER_HEAD, "head", "Colour against the largest weight of each head behind the first token"),
        (LINEAR, "linear", "Colour follows the number itself, from 0 to the largest there can be"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.masses = MassBars()
        self.tops = TopTokens(self._token_name)
        self.map.setAccessibleName("Attention: heads by tokens")
        self._lenses = LensMenu(models, of_queries=True)
        self.add_to_strip(self._lenses)
        self._row.addWidget(self.masses)
        self._row.addWidget(self.tops)
        self.readout.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.follow(models)

    # ---- intents -------------------------------------------------------------------------------------------------

    def pick(self, point: QPointF) -> None:
        if (cell := self.cell_at(point)) is not None:
            kv_head = kv_head_of(cell.place.head, self.picture.group_size)
            self._models.viewport.update(query_head=cell.place.head)
            self._models.selection.update(position=cell.first, kv_head=kv_head, layer=cell.place.layer)

    def pin(self, is_pinned: bool) -> None:
        layer = self.picture.request.layer if self.picture is not None else self._models.selection.now.layer
        self._models.viewport.update(attention_layer=layer if is_pinned else None)

    # ---- showing -------------------------------------------------------------------------------------------------

    def want(self, *, is_visible: bool) -> None:
        super().want(is_visible=is_visible)
        if is_visible:
            self._models.viewport.update(attention_rows=max(8, int(self.map.plot_rect.height()) // 16 * 16))

    def refresh(self) -> None:
        super().refresh()
        picture, wanted = self._models.pictures.attention, self._models.viewport.now
        shown = (wanted.attention_lens, wanted.attention_latest)
        shown = shown if picture is None else (picture.request.lens, picture.request.latest)
        self._lenses.show_lens(*shown, has_room=self.width() >= _ROOM_FOR_LENS)

    def read(self) -> AttentionState | str:
        picture, model = self._models.pictures.attention, self._models.status.now.model
        record = shown_record(self._models)
        if record is None:
            if not self.is_measured:
                return "Where the newest token looked is not measured now: steps are taken without it."
            return f"Where the newest token looked appears here with the first step: {self.how_to_begin}."
        # a model's own attention code may return its weights nevertheless
        is_watched = model is None or model.captures_attention or any(part.attention for part in record.sequences)
        if model is not None and not is_watched:
            if not model.geometry.attention_layers:
                return "This model has no attention: its layers keep a state instead of rows."
            return "This model computes its attention in a way that cannot be watched."
        if picture is None:
            return self._models.status.why_no_rows or "Attention of the newest token is on its way."
        if not picture.weights.size:
            return picture.note or "This layer has no attention weights."
        return AttentionState(
            picture, *self.marked(picture), self._words(picture), self.choice, self._chosen_head(picture),
            self.map.plot_rect, self.width(),
        )  # fmt: skip

    def marked(self, picture: AttentionPicture) -> tuple[PositionSpan | None, Box | None, tuple[Box, ...]]:
        if is_map(picture):  # whose rows are queries
            return selected_run(self._models), None, ()
        selected, area, edited = super().marked(picture)
        now = self._models.selection.now.area
        if now is None or now.kv_heads is None:  # tokens of all heads are selected as such
            return selected_run(self._models), None, edited
        return selected, area, edited

    def _words(self, picture: AttentionPicture) -> str:
        name_of = partial(token_name, self._models, picture.request.seq_id, max_chars=self.name_length)
        if is_map(picture):
            words = ["each row is where a query looked"] + ["hatched: not read"] * picture.is_causal
            if picture.first_query:
                words.append(f"from query {picture.first_query} on")
        elif LENSES[picture.request.lens].reads == "queries":
            words = [f"colours up to {brief(largest(picture))}"]
        else:
            words = [f"where {picture.query_position} {name_of(picture.query_position)} looked"]
        words += self._sink_words(picture)
        if picture.absent is not None and not is_map(picture):
            words.append("hatched: evicted before")
        if picture.note:
            words.append(picture.note)
        return " · ".join(words)

    def _sink_words(self, picture: AttentionPicture, first: int = 0, last: int | None = None) -> list[str]:
        """What is said of each sink at the positions `first … last`; None: at all."""
        name_of = partial(token_name, self._models, picture.request.seq_id, max_chars=self.name_length)
        return [
            f"▼ attention sink: {one.position} {name_of(one.position)} takes {percent(one.weight)} in the mean of heads"
            for one in sinks_of(picture)
            if first <= one.position and (last is None or one.position <= last)
        ]

    def provenance(self, state: AttentionState) -> Provenance:
        picture, now = state.picture, self._models.selection.now
        request = picture.request
        pinned = self._models.viewport.now.attention_layer
        layer = now.layer if pinned is None else pinned
        lens = self._models.viewport.now.attention_lens
        shown, wanted = tensor_name(request.lens), tensor_name(lens)
        if request.layer != layer:
            shown = f"{shown} {layer_label(self._models, request.layer)}"
            wanted = f"{wanted} {layer_label(self._models, layer)}"
        return picture_source(self._models, picture, shown, wanted, is_whole=self.map.is_loaded)

    def show_state(self, state: AttentionState) -> None:
        picture = state.picture
        head = f" head {picture.request.head}" if is_map(picture) else ""
        self.set_title(f"{self.title} · {layer_label(self._models, picture.request.layer)}{head}")
        self.set_detail(state.words)
        indices = attention_indices(picture, state.scale)
        flags = tuple(one.position + 0.5 for one in sinks_of(picture))
        marks = state.marks(left=40 if is_map(picture) else 24, flags=flags)
        self.map.show_matrix(matrix_of(picture), color_scale(current_theme(), is_signed=False), indices, marks)
        self.map.setAccessibleName(
            f"{LENSES[picture.request.lens].words}: {'queries' if is_map(picture) else 'heads'} by tokens"
        )
        self.masses.show_masses(self._mass_of(picture), self.map.plot_rect)
        rows = self.rows(picture)
        width = self.width() * 3 // 10 if self.width() >= _ROOM_FOR_TOKENS else 0
        self.tops.show_rows(rows, self.map.plot_rect, width)
        self.tell(self.map.hover)

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.set_title(self.title)

    def describe(self, state: AttentionState) -> None:
        rows = enumerate(self.rows(state.picture))
        words = [f"head {head}: {attended_words(row, self._token_name)}" for head, row in rows]
        self.map.setAccessibleDescription("Most attended: " + "; ".join(words))
        tip = plain_tip("\n".join(("Most attended tokens", *words)))
        self.readout.setToolTip(tip)
        self.tops.setToolTip(tip)
        self.masses.describe()

    def rows(self, picture: AttentionPicture) -> tuple[tuple[PositionWeight, ...], ...]:
        if picture.top_positions is None:
            return ()
        return tuple(top_positions(picture, head) for head in range(picture.weights.shape[0]))

    def _chosen_head(self, picture: AttentionPicture) -> int:
        """The query head that was clicked, or the first that reads the selected kv head."""
        now, lens = self._models.selection.now, picture.request.lens
        if is_map(picture):
            return picture.request.head
        return min(head_of(self._models, lens, picture.request.layer, now.kv_head), max(0, len(picture.weights) - 1))

    def _mass_of(self, picture: AttentionPicture) -> tuple[HeadMass, ...]:
        seq_id, timeline = picture.request.seq_id, self._models.timeline
        record = timeline.newest_of(
            seq_id, picture.request.step
        )  # a finished sequence keeps its last row while others go on
        part = timeline.part(seq_id, record.step) if record is not None else None
        if part is None or part.attention is None or picture.entropy is None or self.width() < _ROOM_FOR_MASSES:
            return ()
        return masses_of(part.attention, picture.request.layer, picture.entropy)

    def tell(self, point: QPointF | None) -> None:
        picture = self.picture
        cell = self.cell_at(point)
        if picture is None or cell is None:
            self._show_readout([] if picture is None else self.summary(picture))
            self.readout.setEnabled(False)
            return
        head, first, where, weight = cell.place.head, cell.first, cell.span, cell.low
        self.readout.setEnabled(True)
        who = f"head {head}"
        if cell.place.queries is not None:
            query, until = cell.place.queries
            who = f"query {query} {self._token_name(query)}" if query == until else f"queries {query}…{until}"
        place, short = f"{who} → {where} {self._token_name(first)}", f"{who} → {where}"
        if LENSES[picture.request.lens].columns == "queries" and not is_map(picture):
            place, short = f"head {head}, query {where} {self._token_name(first)}", f"head {head}, query {where}"
        kv_head = kv_head_of(head, picture.group_size)
        edited = words_at(self._models, first, picture.request.layer, kv_head, seq_id=picture.request.seq_id)
        self.map.setToolTip(
            plain_tip("\n".join((*filter(None, (edited,)), *self._sink_words(picture, first, cell.last))))
        )
        if cell.is_gone:
            self.readout.setText(f"{place}   {self._fate(picture, cell)}")
            return
        unit = LENSES[picture.request.lens].unit
        shown = f"{exact(weight)}  ({percent(weight)})" if is_weights(picture) else f"{exact(weight)} {unit}".rstrip()
        fits = self.readout.fontMetrics().horizontalAdvance(f"{place}   {shown}") <= self._readout_room()
        self.readout.setText(f"{place if fits else short}   {shown}")

    def _show_readout(self, entries: list[str]) -> None:
        width, room = self.readout.fontMetrics().horizontalAdvance, self._readout_room()
        self.readout.setText(whole_entries(entries, room, self._num_lines(), width) if entries else "")

    def _readout_room(self) -> int:
        return self.width() - 2 * MARGIN

    def _num_lines(self) -> int:
        """The number of lines of the readout: five entries need one to three, depending on the width; a low panel
        leaves more space to the picture. It depends only on the panel's size, as otherwise steps would change the
        layout."""
        wanted = 1 if self.width() >= _ROOM_FOR_ONE_LINE else 2 if self.width() >= _ROOM_FOR_TWO_LINES else 3
        return max(1, min(wanted, 1 + (self.height() - _HEIGHT_FOR_ONE_LINE) // self.readout.fontMetrics().height()))

    def _fit_readout(self) -> None:
        self.readout.setFixedHeight(self._num_lines() * self.readout.fontMetrics().height())

    def summary(self, picture: AttentionPicture) -> list[str]:
        """What the selected head attended to most, while the mouse is elsewhere."""
        head = self._chosen_head(picture)
        found = top_positions(picture, head)
        if not found:
            return [f"point at a cell for its {'weight' if is_weights(picture) else 'exact value'}"]
        sinks = {one.position for one in sinks_of(picture)}
        entries = zip(found, entries_of(found, self._token_name), strict=True)
        first, *others = (f"{words} (sink)" if one.position in sinks else words for one, words in entries)
        return [f"{layer_label(self._models, picture.request.layer)} head {head} → {first}", *others]

    def _fate(self, picture: AttentionPicture, cell: MatrixCell) -> str:
        """Why there was no row to attend to."""
        if cell.place.queries is not None and cell.first > cell.place.queries[1]:
            return "not read: behind the query"
        if cell.last > cell.first:
            return "all evicted before"
        kv_head = kv_head_of(cell.place.head, picture.group_size)
        request = picture.request
        return eviction_words(self._models, request.layer, kv_head, cell.first, request.step - 1, request.seq_id)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_readout()
        self.refresh()
