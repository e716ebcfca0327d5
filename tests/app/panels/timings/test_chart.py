"""The chart of step times: the selected step is framed where its bar is."""

from __future__ import annotations

import re

import numpy as np
from PySide6.QtCore import QBuffer, QIODevice, QRectF
from PySide6.QtGui import QImage, QPainter
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QApplication

from app.draw.axis import StepAxis
from app.kit.chart import Painted, PlotFrame
from app.kit.theme import DARK
from app.panels.timings import timing_chart
from engine.wire.records import Floats


def table(*totals: float) -> Floats:
    return np.array([[t / 2, t / 4, t / 8, t / 8] for t in totals], np.float32)


def test_a_zoomed_chart_frames_the_selected_step_where_its_bar_is(qapp: QApplication) -> None:
    """The first row is step 10, steps 12 to 17 are visible, and index 5 is step 15."""
    chart = timing_chart(
        table(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), np.zeros(8, np.bool_), StepAxis(range(10, 18)), 5
    )
    (mark,) = chart.marks
    assert isinstance(mark, Painted)
    image = QImage(120, 60, QImage.Format.Format_ARGB32)
    painter = QPainter(image)
    mark.paint(painter, PlotFrame(QRectF(0, 0, 120, 60), (11.5, 17.5), (0.0, 1.2), 1.0, DARK))
    painter.end()
    is_framed = [image.pixelColor(x, 30) == DARK.color("selected") for x in range(120)]
    assert [x for x, is_it in enumerate(is_framed) if is_it] == [59, 79], "six steps share 120 pixels"
    assert chart.points[5, 0] == 15


def test_where_there_is_room_for_one_label_the_tallest_of_the_cut_bars_has_it(qapp: QApplication) -> None:
    """The first and the last of three are cut, and between them is the room for a label."""
    chart = timing_chart(table(90.0, 1.0, 40.0), np.array([True, False, True]), StepAxis(range(3)), None)
    (mark,) = chart.marks
    assert isinstance(mark, Painted)
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    generator = QSvgGenerator()
    generator.setOutputDevice(buffer)
    painter = QPainter(generator)
    mark.paint(painter, PlotFrame(QRectF(0, 0, 210, 60), (-0.5, 2.5), (0.0, 1.2), 1.0, DARK))
    painter.end()
    texts = re.findall(r"([\d.]+) ms", bytes(buffer.data().data()).decode())
    assert texts == ["90.0"]
