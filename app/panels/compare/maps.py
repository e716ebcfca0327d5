"""The heat maps of a comparison: A, B and their difference side by side, or one in the place of all."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QPointF, QTimer, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from app.draw.colormap import Floats
from app.draw.format import exact
from app.draw.grid import TokenRange
from app.kit.boxes import column, holder, row
from app.kit.changes import connect_all
from app.kit.heatmap import HeatMap
from app.kit.heatmap_marks import CellNumbers, Marks
from app.kit.labels import ElidedLabel
from app.kit.pictures import color_scale
from app.kit.provenance import pooling_words
from app.kit.theme import Themed, current_theme, font_text
from app.panels.compare.draw import (
    LayerName,
    Matrix,
    layer_limits,
    on_same_positions,
    overlaid,
    range_words,
    spans_told,
    told,
)
from engine.wire.slices import Side

Display = Literal["beside", "swap", "blink", "overlay"]
BLINK_MS = 600
LEAST_WRITTEN = 0.2  # numbers in cells have one decimal: with a smaller colour range all would read 0.0
MEAN = "Mean of A and B, where both hold a row"
MEANS = "Means of the extremes of A and B, where both hold a row"
_LEFT = 40


class Shown(Struct, frozen=True, eq=False, dict=True):
    """Three pictures of one step over the same positions, and the selected position and row. `is_signed`: whether A and
    B have signs (attention weights have none, their difference has). `subject` says what they show. From the position
    `parting` on, the sides hold rows of different tokens. `layer_words` names a layer by its index."""

    a: Matrix
    b: Matrix
    difference: Matrix
    is_signed: bool
    position: int | None
    row: int | None
    subject: str = ""
    parting: int | None = None
    layer_words: LayerName = "layer {}".format

    @property
    def limits(self) -> Floats:
        """The colour range of each row, the same for A and B, so that they can be compared."""
        return layer_limits(self.a, self.b)

    @cached_property
    def mean(self) -> Matrix:
        """The mean of both sides."""
        return overlaid(self.a, self.b)

    def reading(self, point: QPointF, name: Callable[[int], str], write: Callable[[float], str] = exact) -> str:
        """Return the numbers of both runs and their difference at a point in positions and rows, formatted by `write`,
        and the place; empty outside the picture."""
        cell = self.a.cell(point.x(), point.y())
        if cell is None:
            return ""
        x, y, sides = point.x(), point.y(), (self.a, self.b, self.difference)
        numbers = [told(matrix, x, y, write) or "–" for matrix in sides]
        spans = spans_told(sides, x, y)
        span = spans[0]
        if {*spans} - {""} == {span}:
            tokens = f"tokens {span}, extremes" if "…" in span else f"token {span} {name(int(span))}"
        else:
            numbers = [f"{number} ({each})" if each else number for number, each in zip(numbers, spans, strict=True)]
            tokens = "(tokens)"
        where = f"{self.a.places[cell[0]].words(self.layer_words)} · {tokens}"
        return f"A {numbers[0]}   B {numbers[1]}   A − B {numbers[2]}   {where}"

    def on_same_positions(self) -> Shown:
        a, b, difference = on_same_positions(self.a, self.b, self.difference)
        return replace(self, a=a, b=b, difference=difference)


class CompareMaps(Themed, QWidget):
    """Three maps with one cursor and one zoom. Signals `pointed(point or None)`, `picked(point)` and `zoomed(range or
    None)` in positions and rows, as of a heat map; `resized()`.

    `beside` shows A, B and A − B side by side; `swap` one side, which `flip` changes; `blink` both in turn; `overlay`
    the mean of both beside the difference.
    """

    pointed = Signal(object)
    picked = Signal(object)
    zoomed = Signal(object)
    resized = Signal()

    def __init__(self, name_position: Callable[[int], str]) -> None:
        super().__init__()
        names = {"a": "Side A", "b": "Side B", "difference": "A less B"}
        self.maps = {side: HeatMap(name_position) for side in names}
        self.captions = {side: ElidedLabel(font_text(11.5), "muted") for side in names}
        self._display: Display = "beside"
        self.is_b = False
        self.names = {"a": "", "b": ""}
        self.shown: Shown | None = None
        self.blink = QTimer(self, interval=BLINK_MS)
        self._cells = {side: holder(column(self.captions[side], (self.maps[side], 1), spacing=1)) for side in names}
        for side, heatmap in self.maps.items():
            heatmap.setAccessibleName(names[side])
        row(*((cell, 1) for cell in self._cells.values()), spacing=10, on=self)
        self.blink.timeout.connect(self.flip)
        for heatmap in self.maps.values():
            connect_all((heatmap.hovered, self._on_hovered), (heatmap.picked, self.picked))
            connect_all((heatmap.zoomed, self.zoomed), (heatmap.resized, self.resized))

    # ---- how it is shown -----------------------------------------------------------------------------------------

    @property
    def num_pixel_rows(self) -> int:
        """The height of a picture in pixels."""
        return int(self.maps["a"].plot_rect.height())

    def set_display(self, display: Display) -> None:
        """Set how the sides are shown."""
        if display == self._display:
            return
        self._display, self.is_b = display, False
        if display == "blink":
            self.blink.start()
        else:
            self.blink.stop()
        self._cells["b"].setVisible(display == "beside")
        self._cells["difference"].setVisible(display in ("beside", "overlay"))
        self._draw()

    def flip(self) -> None:
        """Show the other side, in `swap` and `blink`."""
        if self._display in ("swap", "blink"):
            self.is_b = not self.is_b
            self._draw()

    def show_range(self, wanted: TokenRange | None) -> None:
        for heatmap in self.maps.values():
            heatmap.show_range(wanted)

    def zoom_to(self, position: int | None) -> None:
        """Zoom to a position, or if None to the newest."""
        if position is None:
            self.maps["a"].follow_newest()
        else:
            self.maps["a"].zoom_to(position)

    def take_theme(self) -> None:
        self._draw()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._display == "blink":
            self.blink.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.blink.stop()

    def _on_hovered(self, point: QPointF | None) -> None:
        for heatmap in self.maps.values():
            heatmap.show_cursor(point)
        self.pointed.emit(point)

    # ---- what is shown -------------------------------------------------------------------------------------------

    def show_pictures(self, shown: Shown, name_a: str, name_b: str) -> None:
        """Show pictures of one step, with the names of the sides."""
        self.shown, self.names = shown.on_same_positions(), {"a": name_a, "b": name_b}
        self._draw()

    def _draw(self) -> None:
        shown = self.shown
        if shown is None:
            return
        limits, name_a, name_b = shown.limits, self._caption("a"), self._caption("b")
        if self._display == "overlay":
            self._show("a", shown, shown.mean, limits, MEANS if shown.mean.has_extremes else MEAN)
        elif self.is_b:
            self._show("a", shown, shown.b, limits, name_b)
        else:
            self._show("a", shown, shown.a, limits, name_a)
        if self._display == "beside":
            self._show("b", shown, shown.b, limits, name_b)
        if self._display in ("beside", "overlay"):
            difference = shown.difference
            self._show("difference", shown, difference, layer_limits(difference), "A − B")

    def _caption(self, side: Literal["a", "b"]) -> str:
        return f"{side.upper()} · {self.names[side]}" if self.names[side] else side.upper()

    def _show(self, side: Side, shown: Shown, matrix: Matrix, limits: Floats, words: str) -> None:
        heatmap, theme = self.maps[side], current_theme()
        is_signed, values = shown.is_signed or side == "difference", matrix.shown
        scale = color_scale(theme, is_signed=is_signed)
        indices = np.ascontiguousarray(scale.index(values / limits[: len(values), None], 1.0))
        heatmap.set_table(scale.table)
        numbers = None
        if is_signed and limits.size and limits.max() >= LEAST_WRITTEN:
            numbers = CellNumbers(values, indices, scale.inks, matrix.start, matrix.per_column)
        marks = Marks(
            left=_LEFT,
            selected=None if shown.position is None else matrix.span_of(shown.position),
            selected_row=shown.row,
            x_lines=() if shown.parting is None else (shown.parting,),
            y_lines=matrix.borders,
            ghosts=matrix.gone,
            row_name=matrix.names,
            note=pooling_words(matrix.per_column),
            numbers=numbers,
        )
        stop = matrix.start + indices.shape[1] * matrix.per_column
        loaded = (matrix.start, matrix.stop) if matrix.is_part else None
        heatmap.show_picture(indices, matrix.start, stop, matrix.whole, marks, loaded)
        colors = range_words(limits, "±" if is_signed else "0 … ")
        is_zero = side == "difference" and values.size and not values.any()
        is_parted = side == "difference" and shown.parting is not None
        by_position = "other tokens behind the line · " if is_parted else ""
        self.captions[side].setText(f"{words} · {by_position}{'zero everywhere' if is_zero else colors}")
