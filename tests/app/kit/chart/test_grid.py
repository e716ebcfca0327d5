"""Grids by layer and head: what their words say, and where."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PySide6.QtCore import QBuffer, QIODevice, QPointF, QRect
from PySide6.QtGui import QFontMetricsF, QPainter
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.draw.grid import grid
from app.kit.chart.grid import ChosenHead, GridMaps
from app.kit.chart.surface import Surface
from app.kit.theme import current_theme, font_fixed, load_fonts
from tests.app.mouse import move_mouse


def written(surface: Surface) -> list[tuple[float, float, str]]:
    """Every text that is painted, with its place."""
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    drawing = QSvgGenerator()
    drawing.setOutputDevice(buffer)
    drawing.setViewBox(QRect(0, 0, surface.width(), surface.height()))
    painter = QPainter(drawing)
    surface.paint(painter, current_theme())
    painter.end()
    found = re.findall(r'<text [^>]*x="([-\d.]+)" y="([-\d.]+)"[^>]*>([^<]*)</text>', buffer.data().data().decode())
    return [(float(x), float(y), text.strip()) for x, y, text in found]


@pytest.fixture
def maps(qtbot: QtBot, qapp: QApplication) -> GridMaps:
    """Two pictures of three layers, of which the second has one head less, over 23 positions, two a column."""
    load_fonts()
    maps = GridMaps("Errors")
    qtbot.addWidget(maps)
    maps.resize(700, 260)
    values = np.linspace(0.01, 0.4, 3 * 2 * 12, dtype=np.float32).reshape(3, 2, 12)
    sizes = ((2, 12), (1, 12), (2, 12))
    shown = [grid(f"{name} error", values, (0, 1, 3), sizes, 2, 23) for name in "KV"]
    maps.show_grids(shown, "token", ChosenHead(1, 0))
    return maps


def test_the_scale_is_named_from_its_limit_at_the_top_to_nothing_at_the_bottom(maps: GridMaps) -> None:
    right = max(plot.right() for plot in maps.plots())
    scale = sorted((y, text) for x, y, text in written(maps) if x > right)
    assert maps.limit == pytest.approx(0.4, abs=0.01)
    assert [text for _, text in scale] == ["40 %", "20 %", "0"]
    left = min(x for x, _, _ in written(maps) if x > right)
    assert left + QFontMetricsF(font_fixed(9.5)).horizontalAdvance("0.53 %") <= maps.width(), "small ones are longest"


def test_layers_are_named_once_and_positions_under_each_picture(maps: GridMaps) -> None:
    texts = written(maps)
    assert [text for _, _, text in texts if re.fullmatch(r"L\d", text)] == ["L0", "L1", "L3"]
    assert [text for _, _, text in texts].count("22") == 2
    assert [text for _, _, text in texts].count("token, 2 per column") == 2
    assert {"K error", "V error"} <= {text for _, _, text in texts}


def test_a_cell_says_its_picture_its_head_and_the_positions_that_it_stands_for(maps: GridMaps) -> None:
    found: list[object] = []
    maps.pointed.connect(found.append)
    plot = maps.plots()[1]
    move_mouse(maps, QPointF(plot.right() - 2, plot.bottom() - 2))
    shown, cell = found[-1]  # type: ignore[misc]
    assert shown.title == "V error"
    assert (cell.line.layer, cell.line.head, cell.column, cell.first, cell.last) == (3, 1, 11, 22, 22)
    assert cell.value == pytest.approx(0.4)
