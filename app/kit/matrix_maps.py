"""Heat maps of several matrices side by side, each under its caption, with one cursor and one zoom."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtWidgets import QWidget

from app.draw.colormap import Floats
from app.draw.grid import TokenRange
from app.draw.matrix import Matrix
from app.kit.boxes import column, holder, row
from app.kit.changes import connect_all
from app.kit.heatmap import HeatMap
from app.kit.heatmap_marks import Marks
from app.kit.labels import ElidedLabel
from app.kit.pictures import color_scale
from app.kit.theme import current_theme, font_text

LEAST_WRITTEN = 0.2  # numbers in cells have one decimal: with a smaller colour range all would read 0.0


class MatrixMaps(QWidget):
    """Its sides have names, and each its accessible name. Signals `pointed(point or None)`, `picked(side, point)` and
    `zoomed(range or None)` in positions and rows, as of a heat map; `resized()`."""

    pointed = Signal(object)
    picked = Signal(str, object)
    zoomed = Signal(object)
    resized = Signal()

    def __init__(self, name_position: Callable[[int], str], names: Mapping[str, str]) -> None:
        super().__init__()
        self.maps = {side: HeatMap(name_position) for side in names}
        self.captions = {side: ElidedLabel(font_text(11.5), "muted") for side in names}
        self._cells = {side: holder(column(self.captions[side], (self.maps[side], 1), spacing=1)) for side in names}
        row(*((cell, 1) for cell in self._cells.values()), spacing=10, on=self)
        for side, heatmap in self.maps.items():
            heatmap.setAccessibleName(names[side])
            connect_all((heatmap.hovered, self._on_hovered), (heatmap.picked, self._on_picked))
            heatmap.zoomed.connect(self.zoomed)
            # not amid the layout: what then shows or hides others would leave one side with the height of before
            heatmap.resized.connect(self.resized, Qt.ConnectionType.QueuedConnection)

    @property
    def first(self) -> HeatMap:
        return next(iter(self.maps.values()))

    @property
    def num_pixel_rows(self) -> int:
        """The height of a picture in pixels."""
        return int(self.first.plot_rect.height())

    def show_range(self, wanted: TokenRange | None) -> None:
        for heatmap in self.maps.values():
            heatmap.show_range(wanted)

    def zoom_to(self, position: int | None) -> None:
        """Zoom to a position, or if None to the newest."""
        if position is None:
            self.first.follow_newest()
        else:
            self.first.zoom_to(position)

    def show_matrix(
        self, side: str, matrix: Matrix, limits: Floats, marks: Marks, caption: str, *, is_signed: bool
    ) -> None:
        """Show a matrix with a colour range for each row."""
        scale, values = color_scale(current_theme(), is_signed=is_signed), matrix.shown
        indices = np.ascontiguousarray(scale.index(values / limits[: len(values), None], 1.0))
        has_numbers = is_signed and bool(limits.size) and float(limits.max()) >= LEAST_WRITTEN
        self.maps[side].show_matrix(matrix, scale, indices, marks, has_numbers=has_numbers)
        self.captions[side].setText(caption)

    def _on_picked(self, point: QPointF) -> None:
        sender = self.sender()
        self.picked.emit(next(side for side, heatmap in self.maps.items() if heatmap is sender), point)

    def _on_hovered(self, point: QPointF | None) -> None:
        for heatmap in self.maps.values():
            heatmap.show_cursor(point)
        self.pointed.emit(point)
