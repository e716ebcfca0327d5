"""The heat maps of a comparison: A, B and their difference side by side, or one in the place of all."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QPointF, QTimer
from PySide6.QtGui import QHideEvent, QShowEvent

from app.draw.colormap import Floats
from app.draw.format import exact
from app.draw.matrix import LayerName, Matrix, layer_limits, on_same_positions, overlaid, range_words
from app.kit.heatmap import Marks
from app.kit.map_view import MatrixMaps
from app.kit.theme import Themed
from engine.wire.pictures import Side

Display = Literal["beside", "swap", "blink", "overlay"]
BLINK_MS = 600
MEAN = "Mean of A and B, where both hold a row"
MEANS = "Means of the extremes of A and B, where both hold a row"
_LEFT = 40


class CompareMapsState(Struct, frozen=True, eq=False, dict=True):
    """Three pictures of one step over the same positions, and the selected position and row. `is_signed`: whether A and
    B have signs (attention weights have none, their difference has). `subject` says what they show. From the position
    `divergence` on, the sides hold rows of different tokens. `layer_words` names a layer by its index."""

    a: Matrix
    b: Matrix
    difference: Matrix
    is_signed: bool
    position: int | None
    row: int | None
    subject: str = ""
    divergence: int | None = None
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
        cells = [matrix.at(point.x(), point.y()) for matrix in (self.a, self.b, self.difference)]
        if (cell := cells[0]) is None:
            return ""
        numbers = ["–" if one is None else one.told(write) for one in cells]
        if all(one is None or one.span == cell.span for one in cells):
            is_pooled = cell.last > cell.first
            tokens = f"tokens {cell.span}, extremes" if is_pooled else f"token {cell.span} {name(cell.first)}"
        else:
            numbers = [f"{told} ({one.span})" if one else told for told, one in zip(numbers, cells, strict=True)]
            tokens = "(tokens)"
        where = f"{cell.place.words(self.layer_words)} · {tokens}"
        return f"A {numbers[0]}   B {numbers[1]}   A − B {numbers[2]}   {where}"

    def on_same_positions(self) -> CompareMapsState:
        a, b, difference = on_same_positions(self.a, self.b, self.difference)
        return replace(self, a=a, b=b, difference=difference)


class CompareMaps(Themed, MatrixMaps):
    """`beside` shows A, B and A − B side by side; `swap` one side, which `flip` changes; `blink` both in turn;
    `overlay` the mean of both beside the difference."""

    def __init__(self, name_position: Callable[[int], str]) -> None:
        super().__init__(name_position, {"a": "Side A", "b": "Side B", "difference": "A less B"})
        self._display: Display = "beside"
        self.is_b = False
        self.names = {"a": "", "b": ""}
        self.shown: CompareMapsState | None = None
        self.blink = QTimer(self, interval=BLINK_MS)
        self.blink.timeout.connect(self.flip)

    # ---- how it is shown -----------------------------------------------------------------------------------------

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

    def take_theme(self) -> None:
        self._draw()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._display == "blink":
            self.blink.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.blink.stop()

    # ---- what is shown -------------------------------------------------------------------------------------------

    def show_pictures(self, shown: CompareMapsState, name_a: str, name_b: str) -> None:
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

    def _show(self, side: Side, shown: CompareMapsState, matrix: Matrix, limits: Floats, words: str) -> None:
        is_difference = side == "difference"
        is_signed = shown.is_signed or is_difference
        marks = Marks(
            left=_LEFT,
            selected=None if shown.position is None else matrix.span_of(shown.position),
            selected_row=shown.row,
            x_lines=() if shown.divergence is None else (shown.divergence,),
        )
        is_zero = is_difference and matrix.shown.size and not matrix.shown.any()
        colors = "zero everywhere" if is_zero else range_words(limits, "±" if is_signed else "0 … ")
        by_position = "other tokens behind the line · " if is_difference and shown.divergence is not None else ""
        self.show_matrix(side, matrix, limits, marks, f"{words} · {by_position}{colors}", is_signed=is_signed)
