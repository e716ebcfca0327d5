"""The pictures of a comparison: A, B and their difference beside each other, or one of them in all the room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from PySide6.QtCore import QPointF, Qt, QTimer, Signal
from PySide6.QtWidgets import QLabel, QWidget

from app.draw.colormap import Floats, magnitude_index, robust_limit, signed_index
from app.draw.format import brief
from app.draw.token_range import TokenRange
from app.kit.boxes import column, row
from app.kit.heatmap import HeatMap
from app.kit.heatmap_marks import Marks
from app.kit.labels import set_text_role
from app.kit.pictures import magnitude_colors, signed_colors
from app.kit.provenance import pooling_words
from app.kit.theme import Themed, current_theme, font_text
from app.panels.compare.draw import Matrix, mean

Display = Literal["beside", "swap", "blink", "overlay"]
BLINK_MS = 600


class CompareMaps(Themed, QWidget):
    """Three maps with one cursor and one zoom. `pointed(point or None)`, `picked(point)`, `zoomed(range or None)` are
    in positions and rows, as those of a heat map; `resized()` tells that there is other room.

    Beside each other stand A, B and A less B; in `swap` one of both, which `flip` changes; in `blink` they take turns;
    in `overlay` the mean of both stands beside the difference.
    """

    pointed = Signal(object)
    picked = Signal(object)
    zoomed = Signal(object)
    resized = Signal()

    def __init__(self, name_position: Callable[[int], str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.maps = {name: HeatMap(name_position) for name in ("a", "b", "difference")}
        self.captions = {name: QLabel() for name in self.maps}
        self._display: Display = "beside"
        self._is_b = False
        self._matrices: dict[str, Matrix] = {}
        self._selected: tuple[int, int] | None = None
        self._selected_row: int | None = None
        self._is_signed = True
        self._blink = QTimer(self)
        self._blink.setInterval(BLINK_MS)
        self._blink.timeout.connect(self.flip)
        self._cells = {name: QWidget() for name in self.maps}
        for name, heatmap in self.maps.items():
            caption = self.captions[name]
            caption.setTextFormat(Qt.TextFormat.PlainText)
            caption.setFont(font_text(11.5))
            caption.setMinimumWidth(1)
            column(caption, (heatmap, 1), spacing=1, on=self._cells[name])
            heatmap.hovered.connect(self.pointed)
            heatmap.picked.connect(self.picked)
            heatmap.zoomed.connect(self.zoomed)
            heatmap.resized.connect(self.resized)
        row(*((cell, 1) for cell in self._cells.values()), spacing=8, on=self)

    # ---- how it is shown -----------------------------------------------------------------------------------------

    @property
    def num_columns(self) -> int:
        return self.maps["a"].num_columns

    @property
    def height_of_map(self) -> float:
        return self.maps["a"].plot_rect.height()

    @property
    def hover(self) -> QPointF | None:
        return next((found for heatmap in self.maps.values() if (found := heatmap.hover) is not None), None)

    def set_display(self, display: Display) -> None:
        """Beside each other, one at a time, in turns, or over each other."""
        self._display, self._is_b = display, False
        if display == "blink":
            self._blink.start()
        else:
            self._blink.stop()
        self._cells["b"].setVisible(display == "beside")
        self._cells["difference"].setVisible(display in ("beside", "overlay"))
        self._draw()

    def flip(self) -> None:
        """Show the other side, where one stands in the place of the other."""
        if self._display in ("swap", "blink"):
            self._is_b = not self._is_b
            self._draw_first()

    def show_range(self, wanted: TokenRange | None) -> None:
        for heatmap in self.maps.values():
            heatmap.show_range(wanted)

    def take_theme(self) -> None:
        self._draw()

    # ---- what is shown -------------------------------------------------------------------------------------------

    def show_matrices(
        self,
        a: Matrix,
        b: Matrix,
        difference: Matrix,
        *,
        is_signed: bool,
        selected: tuple[int, int] | None,
        selected_row: int | None,
    ) -> None:
        """Three pictures of one moment, with the selected positions and row. A and B share the range of their colours;
        weights, which have no sign, are not `is_signed`."""
        self._matrices = {"a": a, "b": b, "difference": difference}
        self._is_signed, self._selected, self._selected_row = is_signed, selected, selected_row
        self._draw()

    def _draw(self) -> None:
        if not self._matrices:
            return
        self._draw_first()
        if self._display == "beside":
            self._show("b", self._matrices["b"].shown, "B")
        if self._display in ("beside", "overlay"):
            self._show("difference", self._matrices["difference"].shown, "A − B")

    def _draw_first(self) -> None:
        if not self._matrices:
            return
        if self._display == "overlay":
            self._show("a", mean(self._matrices["a"], self._matrices["b"]), "mean of A and B")
        elif self._is_b:
            self._show("a", self._matrices["b"].shown, "B", matrix=self._matrices["b"])
        else:
            self._show("a", self._matrices["a"].shown, "A")

    def limit(self, name: str) -> float:
        """How far colours reach: of A and B together, or of the difference alone."""
        if name == "difference":
            return robust_limit(self._matrices[name].shown)
        return max(robust_limit(self._matrices[side].shown) for side in ("a", "b"))

    def _show(self, name: str, values: Floats, words: str, matrix: Matrix | None = None) -> None:
        heatmap, matrix, theme = self.maps[name], matrix or self._matrices[name], current_theme()
        is_signed, limit = self._is_signed or name == "difference", self.limit(name)
        indices = (signed_index if is_signed else magnitude_index)(values, limit)
        heatmap.set_table(signed_colors(theme) if is_signed else magnitude_colors(theme))
        marks = Marks(
            selected=self._selected,
            selected_row=self._selected_row,
            y_lines=matrix.borders,
            ghosts=matrix.gone,
            row_name=matrix.names,
            note=pooling_words(matrix.per_column),
        )
        stop = matrix.start + indices.shape[1] * matrix.per_column
        heatmap.show_picture(np.ascontiguousarray(indices), matrix.start, stop, (matrix.start, matrix.stop), marks)
        self.captions[name].setText(f"{words}   {'±' if is_signed else '0 … '}{brief(limit)}")
        set_text_role(self.captions[name], "muted")
