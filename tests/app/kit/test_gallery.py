"""The widgets of the kit by themselves, each with all that it can show: what they show wide, narrow, low, with the
focus, disabled and in the other theme, and what the mouse and the keys do, as approved (`approved/NAME.txt`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QAction, QEnterEvent, QPainter
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.draw.axis import LinearTicks
from app.draw.colormap import signed_index
from app.draw.ghost import Ghosts
from app.draw.grid import TokenRange
from app.draw.matrix import Box, Matrix, MatrixRow
from app.kit.bars import Bar, BarRow, BarRows, BarTable
from app.kit.chart import Band, Chart, Curve, Dots, Painted, PlotFrame, SelectedLine, ShadedSpan
from app.kit.facts import Fact, FactBar, Facts, Reading, section
from app.kit.fields import Knob, SmallBox, decimal_field, whole_field
from app.kit.heatmap import HeatMap, Marks
from app.kit.map_view import MatrixMaps, RangeBar
from app.kit.painting import color_scale
from app.kit.plot import Plot
from app.kit.provenance import Provenance
from app.kit.theme import DARK, LIGHT, Theme, apply_theme, current_theme
from app.kit.view import TitleBar, View
from app.kit.widgets import ActionButton, DotLabel, ElidedLabel, LinkButton, ProgressButton, Segments
from app.models import Models
from engine.wire.pictures import HeadRequest
from tests.app import samples
from tests.app.on_screen import assert_repainted
from tests.app.painted import drawn
from tests.app.robot import Robot
from tests.app.shown import shown
from tests.approve import approve, changes

pytestmark = pytest.mark.usefixtures("dark_theme")

APPROVED = Path(__file__).parent / "approved"
WORDS = "Once upon a time there was a little girl"


def bars() -> QWidget:
    widget = BarRows("Bars", least=4.0)
    rows = tuple(
        BarRow(
            f"row {n}", (Bar(n / 8, f"{n * 12.5:.1f} %", "accent", is_faded=n == 3), Bar(0.0, "", "good")), f"tip {n}",
            key=None if n == 2 else n, end=f"end {n}" if n % 2 else "", end_role="bad" if n == 5 else "muted",
            is_bold=n == 1, is_marked=n == 4,
        )
        for n in range(8)
    )  # fmt: skip
    widget.show_table(BarTable(("name", "first · of two", "second", "at the end"), rows))
    return widget


def title_of_bars() -> QWidget:
    widget = BarRows("Bars")
    widget.show_table(BarTable(("A title over all of it",), (BarRow("one", (Bar(0.5, "50 %", "accent"),), "a tip"),)))
    return widget


def matrix_maps() -> QWidget:
    widget = MatrixMaps(lambda position: f"token {position}", {"a": "Keys", "b": "Values"})
    show_matrices(widget, 2.0)
    return widget


def show_matrices(widget: Any, limit: float) -> None:
    values = np.linspace(-1, 1, 36).astype(np.float32).reshape(4, 9) * 2
    places = tuple(MatrixRow(row // 2, row % 2) for row in range(4))
    share = np.zeros((4, 9), np.float32)
    share[1, 5:], share[3, 2] = 1.0, 0.5
    matrix = Matrix(values, values, 0, 17, 2, places, (2,), "row {}".format, (0, 17), Ghosts(share, 0, 2))
    limits = np.full(4, limit, np.float32)
    widget.show_matrix("a", matrix, limits, Marks(left=40, selected_row=2), f"Keys · ±{limit}", is_signed=True)
    widget.show_matrix("b", matrix, limits * 2, Marks(left=40, selected=(4.0, 6.0)), "Values", is_signed=False)


def plot() -> QWidget:
    widget = Plot("Heights of things")
    x, y = np.arange(8.0), np.array([3, 1, 4, 1, 5, 9, 2, 6.0])

    def paint(painter: QPainter, frame: PlotFrame) -> None:
        painter.setPen(current_theme().color("good"))
        painter.drawRect(frame.rect.adjusted(20, 20, -40, -40))

    marks = (
        Band(1, 3, "good", has_line=True), Band(7, 8, "bad"), ShadedSpan(-1, 2, "muted", "an end"), SelectedLine(4.0),
        Curve(x, y, "accent", 2.0, 120, is_dashed=True), Curve(x, y + 0.5, "bad"),
        Dots(x, y, "warning", "s", 7.0, fill="panel"), Dots(x, y + 0.5, "accent"), Painted(paint),
    )  # fmt: skip
    home = ((-1.0, 8.0), (0.0, 10.0))
    points, meters = np.stack([x, y], 1), LinearTicks("{:.1f} m".format)
    words = ("height", "a note", "good")
    keys, ticks = range(len(points)), (LinearTicks(str), meters)
    widget.show_chart(Chart(marks, points, keys, home, *ticks, *words, can_zoom_y=True))
    widget.show_words("words below it")
    return widget


def heat_map() -> QWidget:
    widget = HeatMap(lambda position: f"token {position}")
    show_heat(widget, DARK)
    widget.can_select = True
    widget.zoomed.connect(widget.show_range)
    return widget


def show_heat(widget: Any, theme: Theme) -> None:
    values = np.sin(np.arange(6 * 24).reshape(6, 24)).astype(np.float32) * 2
    share = np.zeros((1, 24), np.float32)
    share[0, 3:6], share[0, 9] = 1.0, 0.5
    marks = Marks(
        left=40, selected=(7.0, 8.0), selected_row=2, area=Box(10, 13, 1, 4), x_lines=(4, 16),
        edited=(Box(1, 3, 0, 2), Box(14, 15, 0, 6, is_hidden=True), Box(90, 99, 0, 1)), alarms=(5.0,), flags=(18.0,),
    )  # fmt: skip
    places = tuple(MatrixRow(0, row) for row in range(6))
    whole, asked = (0, 30), (0, 26)
    matrix = Matrix(values, values, 0, 24, 1, places, (3,), "ch {}".format, whole, Ghosts(share, 0, 1), asked)
    widget.show_matrix(matrix, color_scale(theme, is_signed=True), signed_index(values, 2.0), marks, has_numbers=True)


def zoomed_map() -> QWidget:
    widget = heat_map()
    assert isinstance(widget, HeatMap)
    widget.can_select = False
    widget.show_range(TokenRange(4.0, 14.0))
    return widget


def facts() -> QWidget:
    widget = Facts("")
    widget.show_facts((
        Fact("a number", "12.5", "1,234", "good"), Fact("of it", "3", "99", indent=1, role="muted"),
        Fact("together", "15", "1,333", has_rule=True), *section("a head"),
        Fact("a line of words alone", role="warning"),
        Fact("what is wrong", "a text that is long and has a short one too", role="bad", short="short"),
        Fact("a spark", "0.1 … 0.9", bars=(0.1, 0.9, float("nan"), -0.5, 0.3), marked=1, color="good"),
        Fact("a strip", "4", strip=(0xFF112233, 0xFF445566, 0xFFFFFFFF)),
    ))  # fmt: skip
    return widget


def fact_bar() -> QWidget:
    widget = FactBar()
    widget.show_facts(
        (Reading("a longer name", "name", "12.5", "what it means"), Reading("another", "other", "-", role="bad"))
    )
    return widget


def range_bar() -> QWidget:
    widget = RangeBar()
    piece = samples.head_picture(HeadRequest(0, 20, "keys", 1, 1, 0, 20, 20))
    widget.show_range(color_scale(DARK, is_signed=True), piece, 2.5)
    return widget


def segments() -> QWidget:
    return Segments((("a", "one", "tip of one"), ("b", "another", "tip of another"), ("c", "last", "")), "b")


def knob() -> QWidget:
    widget = Knob("budget", "what it is", decimals=1)
    widget.name("budget", "what it is", can_rename=True)
    widget.set_stops((1.0, 2.0, 5.0, 10.0, 50.0), 0.0, 60.0, "auto")
    widget.set_value(7.4)
    return widget


def elided() -> QWidget:
    widget = ElidedLabel(role="muted")
    widget.setText(WORDS, "Once, briefly", "and more")
    return widget


def dot(kind: str) -> Callable[[], QWidget]:
    def make() -> QWidget:
        widget = DotLabel()
        widget.set_state("recomputed just now", kind, "recomputed just now, at step 8", "recomputed")
        return widget

    return make


def without_brief() -> QWidget:
    widget = DotLabel()
    widget.set_state("kept rows of another branch", "past")
    return widget


def link() -> QWidget:
    widget = LinkButton()
    widget.show_link("R&D: where it leads, at some length", "a tip", leads=True)
    return widget


def progress() -> QWidget:
    widget = ProgressButton("Measure")
    widget.show_progress("Stop  2/9", 2 / 9)
    return widget


def action_button() -> QWidget:
    action = QAction("Do it")
    action.setToolTip("Do it: a reason")
    widget = ActionButton("Do", action, is_small=True)
    widget.action_of_test = action  # type: ignore[attr-defined]  # lives as long as the button
    return widget


def number() -> QWidget:
    return whole_field("Tokens", 1024, 1, 9999, unit=" tokens", automatic="all of them", tip="a tip", is_grouped=True)


def decimals() -> QWidget:
    return decimal_field("Factor", 0.25, 0.25, 4.0, decimals=2, step=0.25, unit="×", automatic="as it is", tip="a tip")


def box() -> QWidget:
    widget = SmallBox("Mode", "what it is", (("one", 1, "tip of one"), ("the longest of them all", 2, "tip of it")))
    widget.let_shrink(6)
    widget.choose(2)
    return widget


class APanel(View[int]):
    title, can_pin = "A panel", True

    def __init__(self) -> None:
        super().__init__(Models())
        self.set_body(ElidedLabel())
        self.set_detail("some words behind its title", "words")
        self.follow(self._models)

    def read(self) -> int:
        return 8

    def show_state(self, state: int) -> None:
        pass

    def provenance(self, state: int) -> Provenance:
        return Provenance("live cache", "live cache", f"live cache, at step {state}")


def strip() -> QWidget:
    return TitleBar()


GALLERY: dict[str, tuple[Callable[[], QWidget], tuple[int, int]]] = {
    "bars": (bars, (480, 150)), "title_of_bars": (title_of_bars, (300, 60)), "matrix_maps": (matrix_maps, (520, 200)),
    "plot": (plot, (420, 220)), "heat_map": (heat_map, (760, 240)), "zoomed_map": (zoomed_map, (420, 110)),
    "facts": (facts, (420, 190)), "fact_bar": (fact_bar, (300, 31)), "range_bar": (range_bar, (74, 200)),
    "segments": (segments, (200, 18)), "knob": (knob, (260, 22)), "elided": (elided, (400, 20)),
    "dot": (dot("recomputed"), (240, 20)), "ring": (dot("past"), (240, 20)),
    "without_brief": (without_brief, (240, 20)), "link": (link, (320, 22)),
    "progress": (progress, (120, 22)), "action_button": (action_button, (80, 22)), "number": (number, (200, 24)),
    "decimals": (decimals, (160, 24)), "box": (box, (200, 20)), "panel": (APanel, (420, 120)),
    "strip": (strip, (300, 27)),
}  # fmt: skip

# What else each is made to show, one after the other: it has to ask to be painted.
OTHERS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "bars": (lambda w: w.show_table(BarTable(("other",), (BarRow("two", (Bar(0.25, "25 %", "bad"),), ""),))),),
    "matrix_maps": (lambda w: show_matrices(w, 1.0), lambda w: w.show_range(TokenRange(2.0, 9.0))),
    "plot": (
        lambda w: w.show_chart(replace(w.canvas.chart, marks=w.canvas.chart.marks[:3])),
        lambda w: w.show_words("other words"),
    ),
    "heat_map": (
        lambda w: show_heat(w, LIGHT), lambda w: w.show_range(TokenRange(2.0, 9.0)),
        lambda w: show_heat(w, DARK),
    ),
    "facts": (lambda w: w.show_facts((Fact("another", "1", role="bad"),)),),
    "fact_bar": (lambda w: w.show_facts((Reading("third", "3rd", "99", "a tip"),)),),
    "range_bar": (lambda w: w.show_range(color_scale(LIGHT, is_signed=True), None, 0.5),),
    "segments": (lambda w: w.set_choice("c"), lambda w: w.set_choices((("c", "one more", ""), ("d", "last", "")))),
    "knob": (
        lambda w: w.set_value(48.0), lambda w: w.set_stops((20.0, 30.0), 10.0, 40.0), lambda w: w.name("other", "tip"),
    ),
    "elided": (lambda w: w.setText("other words", "words"),),
    "dot": (lambda w: w.set_state("live cache", "live cache", "live cache, at step 9"),
        lambda w: w.set_state("", "past")),
    "link": (lambda w: w.show_link("nothing leads on", "another tip", leads=False),),
    "progress": (lambda w: w.show_progress("Stop  7/9", 7 / 9), lambda w: w.show_progress("Measure", None)),
    "box": (lambda w: w.choose(1), lambda w: w.setEnabled(False)),
    "panel": (
        lambda w: w.set_title("Another"), lambda w: w.set_empty("There is nothing."), lambda w: w.set_empty(None),
        lambda w: w.title_label.setVisible(False), lambda w: w.provenance_label.set_state("", "past"),
        lambda w: w.take_strip().resize(200, 27),
    ),
}  # fmt: skip


def looks(widget: QWidget) -> list[str]:
    """What it shows; of words and buttons that paint more than their text, that too."""
    more = drawn(widget) if isinstance(widget, DotLabel | ElidedLabel | ProgressButton | TitleBar) else ""
    return [*shown(widget), *([f"  {more}"] if more else [])]


@pytest.mark.parametrize("name", GALLERY)
def test_a_widget_is_as_approved(qtbot: QtBot, qapp: QApplication, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make, size = GALLERY[name]
    host = QWidget()
    qtbot.addWidget(host)
    host.resize(900, 400)
    widget = make()
    widget.setParent(host)
    widget.resize(*size)
    host.show()
    host.activateWindow()
    widget.show()
    QApplication.processEvents()
    there = QPointF(3, 3)
    QApplication.sendEvent(widget, QEnterEvent(there, there, there))  # wherever the mouse was left by other tests
    seen = looks(widget)
    lines = [*seen]

    def look(moment: str, do: Callable[[], Any]) -> None:
        nonlocal seen
        do()
        QApplication.processEvents()
        found = looks(widget)
        lines.extend((f"== {moment}", *changes(seen, found)))
        seen = found

    look("half as wide", lambda: widget.resize(size[0] // 2, size[1]))
    look("a quarter as wide", lambda: widget.resize(size[0] // 4, size[1]))
    look("half as high", lambda: widget.resize(size[0], size[1] // 2))
    look("as it was", lambda: widget.resize(*size))
    look("with the focus", lambda: widget.setFocus(Qt.FocusReason.TabFocusReason))
    look("disabled", lambda: widget.setEnabled(False))
    look("enabled", lambda: widget.setEnabled(True))
    look("light", lambda: apply_theme(qapp, LIGHT))
    look("dark", lambda: apply_theme(qapp, DARK))
    lines += ["== what can be done", *Robot(widget, Models(), monkeypatch).lines()]
    seen = looks(widget)
    for number, other in enumerate(OTHERS.get(name, ()), 1):
        look(f"other data {number}", partial(other, widget))
        assert_repainted(host, f"other data {number}")
    approve(APPROVED / f"{name}.txt", lines)
