"""A plot with axes, zoom, pan, a read-out under the mouse and export, drawn by pyqtgraph in the theme's colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QMenu, QWidget

from app.kit.boxes import column, row
from app.kit.changes import connect_all
from app.kit.chart.marks import Chart
from app.kit.files import save_drawing, save_picture
from app.kit.labels import ElidedLabel, set_text_role
from app.kit.theme import font_text

if TYPE_CHECKING:
    from app.kit.chart.plot_canvas import PlotCanvas

_LINE = 15


class Plot(QWidget):
    """Shows a `Chart`. Signals: `pointed(index or None)` and `picked(index)` of its points; `told(text)`, a message.

    The wheel zooms, a drag pans, Home shows everything again; Left and Right move between the points, Enter picks one.
    pyqtgraph is imported with the first chart: earlier it would delay the window's first picture by a fifth of a
    second.
    """

    pointed = Signal(object)
    picked = Signal(int)
    told = Signal(str)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._canvas: PlotCanvas | None = None
        self._title, self._note = ElidedLabel(font_text(11), "muted"), ElidedLabel(font_text(11))
        self._words = ElidedLabel(font_text(11), "text")
        self.setAccessibleName(name)
        self.setMinimumSize(60, 40)
        self._note.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        for label in (self._title, self._note, self._words):
            label.setMaximumHeight(_LINE)
        above = row((self._title, 2), (self._note, 3))
        self._column = column(above, self._words, spacing=0, on=self)

    def connect_to(self, pointed: object, picked: object, told: object) -> None:
        """Connect its three signals to slots or signals of the panel."""
        connect_all((self.pointed, pointed), (self.picked, picked), (self.told, told))

    def hide_chart(self) -> None:
        """Hide the chart with its title and note."""
        for part in (self.canvas, self._title, self._note):
            part.setVisible(False)

    def show_chart(self, chart: Chart) -> None:
        """Draw a chart; a range that the user has zoomed to stays."""
        self.canvas.setVisible(True)
        self.canvas.show_chart(chart)
        self._title.setText(chart.title)
        self._note.setText(chart.note)
        self._title.setVisible(bool(chart.title))
        self._note.setVisible(bool(chart.note))
        set_text_role(self._note, chart.note_role)

    def show_words(self, words: str) -> None:
        """Set the line below: about the point under the mouse, or else what the panel wants to say."""
        self._words.setText(words)
        self.setAccessibleDescription(words)

    @property
    def title(self) -> str:
        return self._title.text()

    @property
    def note(self) -> str:
        return self._note.text()

    @property
    def words(self) -> str:
        return self._words.text()

    @property
    def canvas(self) -> PlotCanvas:
        """The pyqtgraph canvas; made when it is first needed."""
        if self._canvas is None:
            from app.kit.chart.plot_canvas import PlotCanvas

            self._canvas = PlotCanvas(self)
            self._canvas.setAccessibleName(self.accessibleName())
            self._column.insertWidget(1, self._canvas, 1)
            self.setFocusProxy(self._canvas)
            canvas = self._canvas
            connect_all(
                (canvas.pointed, self.pointed), (canvas.picked, self.picked), (canvas.menu_wanted, self._on_menu)
            )
        return self._canvas

    def reset_view(self) -> None:
        """Show everything again."""
        if self._canvas is not None:
            self._canvas.reset_view()

    # ---- export --------------------------------------------------------------------------------------------------

    def save_png(self) -> None:
        """Ask for a file and write the plot as PNG."""
        if path := self._ask_path("PNG picture (*.png)", ".png"):
            self.told.emit(save_picture(self.grab(), path) or f"Plot saved to {path}")

    def save_svg(self) -> None:
        """Ask for a file and write the plot as SVG."""
        if path := self._ask_path("SVG drawing (*.svg)", ".svg"):
            self.told.emit(save_drawing(self, path) or f"Plot saved to {path}")

    def _ask_path(self, kind: str, ending: str) -> Path | None:
        name = self.accessibleName().lower().replace(" ", "-") + ending
        path, _ = QFileDialog.getSaveFileName(self, "Save plot", name, kind)
        return Path(path) if path else None

    def _on_menu(self, place: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Show everything", self.reset_view)
        menu.addSeparator()
        menu.addAction("Save plot as PNG…", self.save_png)
        menu.addAction("Save plot as SVG…", self.save_svg)
        menu.popup(place)


class StepPlot(Plot):
    """A plot whose points are steps. Signal: `step_picked(step)`; `pointed_step` is the one under the mouse."""

    step_picked = Signal(int)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._steps: Sequence[int] = ()
        self._index: int | None = None
        self.pointed.connect(self._on_pointed)

    def connect_steps(self, pointed: object, picked: object, told: object) -> None:
        """Connect its signals to slots or signals of the panel."""
        self.connect_to(pointed, self._on_picked, told)
        self.step_picked.connect(picked)

    def show_steps(self, chart: Chart, steps: Sequence[int]) -> None:
        """Show a chart; `steps` has the step of each of its points."""
        self._steps = steps
        self.show_chart(chart)

    @property
    def pointed_step(self) -> int | None:
        return self._step_at(self._index)

    def _step_at(self, index: int | None) -> int | None:
        return int(self._steps[index]) if index is not None and index < len(self._steps) else None

    def _on_pointed(self, index: int | None) -> None:
        self._index = index

    def _on_picked(self, index: int) -> None:
        if (step := self._step_at(index)) is not None:  # going back may have removed it
            self.step_picked.emit(step)
