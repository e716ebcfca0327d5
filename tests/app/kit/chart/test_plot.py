"""A plot is looked around in with mouse and keys, reads out and picks its points, and is written as a drawing."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from PySide6.QtCore import Qt
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QApplication, QFileDialog, QMenu
from pytestqt.qtbot import QtBot

from app.draw.axis import LinearTicks, StepAxis
from app.kit.chart import Chart, Curve, Dots
from app.kit.files import save_drawing
from app.kit.plot import Plot
from app.kit.theme import LIGHT, apply_theme, font_fixed
from tests.app.mouse import move_mouse, turn_wheel

POINTS = np.array([[0.0, 1.0], [2.0, 5.0], [1.0, 3.0], [9.0, 2.0]])


def chart(points: np.ndarray = POINTS, stop: float = 10.0) -> Chart:
    x, y = points[:, 0], points[:, 1]
    marks = (Curve(x, y, "accent"), Dots(x, y, "accent", fill="accent"))
    home, ticks = ((-1.0, stop), (0.0, 6.0)), LinearTicks(str)
    return Chart(marks, points, range(len(points)), home, ticks, ticks, "height", "a note")


@pytest.fixture
def plot(qtbot: QtBot, qapp: QApplication) -> Plot:
    plot = Plot("Heights of things")
    qtbot.addWidget(plot)
    plot.resize(500, 200)
    plot.show_chart(chart())
    plot.show()
    QApplication.processEvents()
    return plot


def test_the_wheel_zooms_along_x_and_home_shows_everything(plot: Plot, qtbot: QtBot) -> None:
    assert plot.canvas.frame.x_range == (-1.0, 10.0)
    turn_wheel(plot.canvas.viewport(), plot.canvas.frame.point_of(2.0, 3.0), 2)
    low, high = plot.canvas.frame.x_range
    assert high - low < 11.0
    assert low < 2.0 < high
    assert plot.canvas.frame.y_range == (0.0, 6.0), "the height stays"
    plot.show_chart(chart(stop=12.0))
    assert plot.canvas.frame.x_range == pytest.approx((low, high)), "what was zoomed to stays when more comes"
    qtbot.keyClick(plot.canvas, Qt.Key.Key_Home)
    assert plot.canvas.frame.x_range == (-1.0, 12.0)
    turn_wheel(plot.canvas.viewport(), plot.canvas.frame.point_of(2.0, 3.0), 2)
    plot.show_chart(chart(POINTS[:2], stop=6.0))
    assert plot.canvas.frame.x_range == (-1.0, 6.0), "one of fewer points is another plot, and is shown whole"
    assert not plot.canvas.is_zoomed


@pytest.mark.parametrize("width", [130, 260, 320])
@pytest.mark.parametrize("stop", [9.5, 31.5, 1014.5, 12_345.5])
def test_an_axis_of_steps_names_at_least_two_that_stand_apart(plot: Plot, width: int, stop: float) -> None:
    steps = np.arange(stop + 0.5)
    axis = StepAxis([int(step) for step in steps])
    points = np.column_stack([steps, np.ones_like(steps)])
    home = ((-0.5, stop), (0.0, 6.0))
    plot.resize(width + 48, 100)
    plot.show_chart(Chart((), points, axis.steps, home, LinearTicks(axis.name, least=1), LinearTicks(str), "steps", ""))
    QApplication.processEvents()
    surface = QPixmap(1, 1)
    painter = QPainter(surface)
    painter.setFont(font_fixed(10))
    _, _, texts = plot.canvas._x.generateDrawSpecs(painter)
    painter.end()
    named = [(rect, text) for rect, _, text in texts if text]
    assert len(named) >= 2
    assert all(one.right() < other.left() for (one, _), (other, _) in pairwise(named))


def test_keys_walk_the_points_along_x_and_enter_picks(plot: Plot, qtbot: QtBot) -> None:
    pointed: list[int | None] = []
    picked: list[int] = []
    plot.pointed.connect(lambda: pointed.append(plot.pointed_key))
    plot.picked.connect(picked.append)
    for _ in range(5):
        qtbot.keyClick(plot.canvas, Qt.Key.Key_Right)
    assert pointed == [0, 2, 1, 3], "in the order of x, and no further than the last"
    qtbot.keyClick(plot.canvas, Qt.Key.Key_Left)
    qtbot.keyClick(plot.canvas, Qt.Key.Key_Return)
    assert picked == [1]


def test_the_point_nearest_along_x_is_read_out(plot: Plot) -> None:
    pointed: list[int | None] = []
    plot.pointed.connect(lambda: pointed.append(plot.pointed_key))
    move_mouse(plot.canvas.viewport(), plot.canvas.frame.point_of(7.5, 0.5))
    move_mouse(plot.canvas.viewport(), plot.canvas.frame.point_of(1.1, 5.5))
    assert pointed == [3, 2]


def test_the_point_under_the_mouse_is_the_same_one_where_others_come_before_it(plot: Plot) -> None:
    move_mouse(plot.canvas.viewport(), plot.canvas.frame.point_of(2.1, 1.0))
    assert plot.pointed_key == 1
    plot.show_chart(structs.replace(chart(), keys=[7, 8, 1, 9]))
    assert plot.pointed_key == 1, "what is told of it is of the same thing as before"
    plot.show_chart(structs.replace(chart(), keys=[7, 8, 9, 10]))
    assert plot.pointed_key is None


def test_a_plot_is_written_as_a_drawing_and_looks_other_in_another_theme(
    plot: Plot, tmp_path: Path, qapp: QApplication
) -> None:
    assert save_drawing(plot, tmp_path / "plot.svg") == ""
    drawn = (tmp_path / "plot.svg").read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert "<title>Heights of things</title>" in drawn
    assert "a note" in drawn, "words stay words"
    dark = plot.grab().toImage()
    apply_theme(qapp, LIGHT)
    plot.show_chart(chart())
    assert plot.grab().toImage() != dark


def test_the_menu_shows_everything_again_and_saves_the_plot(
    plot: Plot, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    menus: list[QMenu] = []
    asked: list[tuple[object, ...]] = []
    told: list[str] = []
    monkeypatch.setattr(QMenu, "popup", lambda menu, *_: menus.append(menu))
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *given: asked.append(given[1:]) or ("", ""))
    plot.message.connect(told.append)
    turn_wheel(plot.canvas.viewport(), plot.canvas.frame.point_of(2.0, 3.0), 2)
    qtbot.mouseClick(plot.canvas.viewport(), Qt.MouseButton.RightButton, pos=plot.canvas.viewport().rect().center())
    (menu,) = menus
    everything, line, png, svg = menu.actions()
    assert line.isSeparator()
    assert [one.text() for one in (everything, png, svg)] == [
        "Show everything",
        "Save plot as PNG…",
        "Save plot as SVG…",
    ]
    everything.trigger()
    assert not plot.canvas.is_zoomed
    png.trigger()
    assert told == []
    for action, name in ((png, "a.png"), (svg, "a.svg")):
        answer = (str(tmp_path / name), "")
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *given, a=answer: asked.append(given[1:]) or a)
        action.trigger()
    assert asked[1:] == [
        ("Save plot", "heights-of-things.png", "PNG picture (*.png)"),
        ("Save plot", "heights-of-things.svg", "SVG drawing (*.svg)"),
    ]
    assert told == [f"Plot saved to {tmp_path}/a.png", f"Plot saved to {tmp_path}/a.svg"]
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    assert "a note" in (tmp_path / "a.svg").read_text()
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / "no" / "such" / "a.svg"), ""))
    svg.trigger()
    png.trigger()
    assert len(told) == 4
    assert not any("Plot saved" in text for text in told[2:])


def test_titles_and_notes_that_are_empty_take_no_room(plot: Plot) -> None:
    assert (plot.title.text(), plot.note.text()) == ("height", "a note")
    plot.show_chart(structs.replace(chart(), title="", note="other", note_role="good"))
    assert (plot.title.isVisible(), plot.note.isVisible(), plot.note.text()) == (False, True, "other")
    assert plot.note.property("textRole") == "good"
    plot.show_chart(structs.replace(chart(), note=""))
    assert (plot.title.isVisible(), plot.note.isVisible(), plot.title.text()) == (True, False, "height")


def test_pyqtgraph_comes_with_the_first_chart() -> None:
    """Importing it would cost the window's first picture a fifth of a second."""
    code = "import sys; import app.window.window, app.kit.plot; print('pyqtgraph' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
