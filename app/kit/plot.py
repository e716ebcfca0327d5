"""A plot with axes, zoom, pan, a read-out under the mouse and export, drawn by pyqtgraph in the theme's colours; and
the chart of a difference per step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PySide6.QtCore import QPoint, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QPainter
from PySide6.QtWidgets import QFileDialog, QMenu, QWidget

from app.draw import axis
from app.draw.axis import DEPARTS, LOSSY, UNJUDGED, WITHIN, Floats, LinearTicks, StepPoints
from app.draw.format import thousands
from app.kit.chart import Band, Chart, ChartMark, Curve, Dots, PlotFrame, SelectedLine
from app.kit.files import save_drawing, save_picture
from app.kit.theme import current_theme, font_text
from app.kit.widgets import ElidedLabel, column, connect_all, row, set_text_role

if TYPE_CHECKING:
    from app.kit.graphics import PlotCanvas


_LINE = 15


class Plot(QWidget):
    """Shows a `Chart`; `pointed_key` is the key of the point under the mouse. Signals: `pointed()`, it is another one;
    `picked(key)`, a point was clicked; `message(text)`, for the status line.

    The wheel zooms, a drag pans, Home shows everything again; Left and Right move between the points, Enter picks one.
    pyqtgraph is imported with the first chart: earlier it would delay the window's first picture by a fifth of a
    second.
    """

    pointed = Signal()
    picked = Signal(object)
    message = Signal(str)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._canvas: PlotCanvas | None = None
        self._made_of: object = None
        self.title, self.note = ElidedLabel(font_text(11), "muted"), ElidedLabel(font_text(11))
        self.words = ElidedLabel(font_text(11), "text")
        self.setAccessibleName(name)
        self.setMinimumSize(60, 40)
        self.note.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        for label in (self.title, self.note, self.words):
            label.setMaximumHeight(_LINE)
        above = row((self.title, 2), (self.note, 3))
        self._column = column(above, self.words, spacing=0, on=self)

    def hide_chart(self) -> None:
        """Hide the chart with its title and note."""
        for part in (self.canvas, self.title, self.note):
            part.setVisible(False)

    def show_chart(self, chart: Chart) -> None:
        """Draw a chart; a range that the user has zoomed to stays."""
        self._made_of = None
        self.canvas.setVisible(True)
        self.canvas.show_chart(chart)
        self.title.setText(chart.title)
        self.note.setText(chart.note)
        self.title.setVisible(bool(chart.title))
        self.note.setVisible(bool(chart.note))
        set_text_role(self.note, chart.note_role)

    def show_made(self, of: object, make: Callable[[], Chart]) -> None:
        """Draw the chart that `make` returns; nothing is made anew while what it is made `of` and the theme stay the
        same, as when the mouse points elsewhere."""
        key = of, current_theme()
        if key != self._made_of:
            self.show_chart(make())
            self._made_of = key

    @property
    def pointed_key(self) -> Any:
        """The key of the point under the mouse; None if there is none."""
        return None if self._canvas is None else self._canvas.pointed_key

    def show_words(self, words: str) -> None:
        """Set the line below: about the point under the mouse, or else what the panel wants to say."""
        self.words.setText(words)
        self.setAccessibleDescription(words)

    @property
    def canvas(self) -> PlotCanvas:
        """The pyqtgraph canvas; made when it is first needed."""
        if self._canvas is None:
            from app.kit.graphics import PlotCanvas

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
            self.message.emit(save_picture(self.grab(), path) or f"Plot saved to {path}")

    def save_svg(self) -> None:
        """Ask for a file and write the plot as SVG."""
        if path := self._ask_path("SVG drawing (*.svg)", ".svg"):
            self.message.emit(save_drawing(self, path) or f"Plot saved to {path}")

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


def pointed_key(plots: Iterable[Plot]) -> Any:
    """The key of the point under the mouse in any of these."""
    return next((key for plot in plots if (key := plot.pointed_key) is not None), None)


class PointNames:
    """`texts` are the names of the points; those in `first` are placed before the others and are bright, as are those
    in `marked`."""

    def __init__(
        self, x: Floats, y: Floats, texts: Sequence[str], first: Collection[int], marked: Collection[int]
    ) -> None:
        self._x, self._y, self._texts = x, y, texts
        self._first, self._marked = set(first), set(marked)
        self._font = font_text(11)

    def paint(self, painter: QPainter, frame: PlotFrame) -> None:
        rect = frame.rect
        x = np.array([frame.x_of(at) for at in self._x]) - rect.left()
        y = np.array([frame.y_of(at) for at in self._y]) - rect.top()
        groups = axis.clusters(x, y)
        texts = [self._group_name(group) for group in groups]
        metrics = QFontMetricsF(self._font)
        widths = [metrics.horizontalAdvance(text) for text in texts]
        first = [n for n, group in enumerate(groups) if self._first & set(group)]
        heads = [group[0] for group in groups]
        painter.setFont(self._font)
        for label in axis.labels(x[heads], y[heads], widths, (rect.width(), rect.height()), 13, first):
            is_marked = bool(self._marked & set(groups[label.index]))
            left, middle = rect.left() + label.left, rect.top() + label.middle
            ground = QRectF(left - 2, middle - 6, widths[label.index] + 4, 12)
            painter.fillRect(ground, frame.theme.color("panel", 190))
            painter.setPen(frame.theme.color("text" if is_marked or label.index in first else "muted"))
            painter.drawText(QPointF(left, middle + metrics.capHeight() / 2), texts[label.index])

    def _group_name(self, group: tuple[int, ...]) -> str:
        text = self._texts[group[0]]
        return text if len(group) == 1 else f"{text} +{len(group) - 1}"


ROLES = {WITHIN: "accent", LOSSY: "warning", DEPARTS: "bad", UNJUDGED: "muted"}
_CROSSES = -0.06  # y of the crosses below steps with another top token
_MANY = 400


def step_chart(
    found: StepPoints, title: str, selected: int | None, *, tolerance: float | None = None, note: str = ""
) -> Chart:
    """Make the chart, whose points are steps. `selected` is one; `tolerance` the difference that rounding may cause,
    which `note` explains. Steps that depart are drawn last and as squares, so that they are never hidden, nor known by
    colour alone."""
    size = 5.0 if len(found.x) < _MANY else 3.0
    ends = pairwise((0, *found.breaks, len(found.x)))
    marks: list[ChartMark] = [
        Curve(found.x[start:stop], found.y[start:stop], "accent", alpha=90) for start, stop in ends
    ]
    for kind in (UNJUDGED, WITHIN, LOSSY, DEPARTS):
        mine = found.kinds == kind
        symbol: Literal["s", "o"] = "s" if kind == DEPARTS else "o"
        role = ROLES[kind]
        marks.append(Dots(found.x[mine], found.y[mine], role, symbol, size + 2 * (kind == DEPARTS), fill=role))
    other = found.x[found.disagrees]
    marks.append(Dots(other, np.full(len(other), _CROSSES), "bad", "x", 5.0, fill="bad"))
    if tolerance is not None:
        marks.append(Band(0.0, float(found.scale.at(tolerance)), "good", has_line=True))
    if selected is not None:
        marks.append(SelectedLine(selected))
    first, last = (float(found.x.min()), float(found.x.max())) if len(found.x) else (0.0, 1.0)
    return Chart(
        tuple(marks),
        np.column_stack([found.x, found.y]),
        found.x.astype(np.int64).tolist(),
        ((first - 0.5, last + 0.5), (-0.1, 1.03)),
        LinearTicks(_step_name, least=1),
        found.scale,
        title,
        note,
        "good",
    )


def _step_name(step: float) -> str:
    return thousands(round(step))
