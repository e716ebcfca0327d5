"""Words, entries and lines of a panel are whole or left out, however small the window is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, product

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtWidgets import QApplication, QStyle, QStyleOptionComboBox
from pytestqt.qtbot import QtBot

from app.draw.format import percent
from app.kit import widgets
from app.kit.bars import Bar, BarRows
from app.kit.facts import PITCH, WholeLines
from app.kit.provenance import token_name
from app.kit.theme import DARK, LIGHT, Theme, font_fixed, load_fonts
from app.kit.widgets import DotLabel, ElidedLabel
from app.panels import attention as attention_rows
from app.panels.attention import MassBars, whole_entries
from app.panels.bytes import LayerBars
from app.panels.sweep import SweepView
from app.panels.wall import view as wall_view
from app.shell import Shell
from app.window import selectors
from app.window.docks import PanelDock
from app.window.window import first_size
from tests.app import samples
from tests.app.conftest import new_shell, sweep, take_steps, turn
from tests.app.fake_engine import FakeEngine
from tests.app.kit.test_theme import contrast
from tests.app.panels.conftest import STEPS

SIZES = [(1203, 736), (1280, 800), (1600, 1000)]  # the first is a little less than a small screen


class Spy(QPainter):
    """Remembers every text that is drawn, and in which colour."""

    drawn: list[tuple[str, str]]

    def drawText(self, *arguments: object) -> object:
        Spy.drawn.append((str(arguments[-1]), self.pen().color().name()))
        return super().drawText(*arguments)  # type: ignore[call-overload]


class SpyOfLabels(Spy):
    """Remembers the texts of labels and selectors alone."""

    def drawText(self, *arguments: object) -> object:
        if isinstance(self.device(), ElidedLabel | DotLabel | selectors.SelectorButton):
            return super().drawText(*arguments)
        return QPainter.drawText(self, *arguments)  # type: ignore[call-overload]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> type[Spy]:
    monkeypatch.setattr(Spy, "drawn", [], raising=False)
    return Spy


@pytest.fixture(scope="module", params=SIZES)
def sized(qapp: QApplication, request: pytest.FixtureRequest) -> Iterator[tuple[Shell, FakeEngine]]:
    """Such a window of each size, which tests share that arrange it for themselves."""
    engine = FakeEngine()
    shell = new_shell(qapp, engine, request.param)
    take_steps(shell, engine, STEPS)
    yield shell, engine
    sweep(shell)


def test_a_layer_far_beyond_its_range_keeps_its_name(
    fresh: Shell, spy: type[Spy], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.window.arrange("inspect")
    turn(fresh)
    monkeypatch.setattr(wall_view, "QPainter", spy)
    far = samples.magnitudes()
    largest = far.largest.copy()
    largest[3] = 9.0 * far.limit[3]
    fresh.models.pictures.put(replace(fresh.models.pictures.wall, magnitudes=replace(far, largest=largest)))
    spy.drawn.clear()
    fresh.window.wall.grab()
    assert ("L3", DARK.warning) in spy.drawn
    assert {f"L{layer}" for layer in range(samples.LAYERS)} <= {text for text, _ in spy.drawn}


def test_no_label_cuts_a_word(sized: tuple[Shell, FakeEngine], spy: type[Spy], monkeypatch: pytest.MonkeyPatch) -> None:
    """What strips, selectors and the status line paint are whole words of what they are to say."""
    fresh, _ = sized
    window = fresh.window
    for module in (widgets, selectors):
        monkeypatch.setattr(module, "QPainter", SpyOfLabels)
    for layout, step in product(("learn", "inspect", "compare", "truth"), (None, 7)):
        fresh.models.selection.update(step=step)
        window.arrange(layout)
        turn(fresh)
        spy.drawn.clear()
        window.grab()
        shown = [text for text, _ in spy.drawn if text]
        assert len(shown) >= 4, (layout, step)  # the names of model and mode at least
        assert "Tales" in shown, (layout, step)
        said = [f"{one.text()} {one.brief}" for one in window.findChildren(ElidedLabel)]
        said += [one.text for one in window.findChildren(DotLabel)]
        said += [f"{one.name} {one.detail}" for one in window.findChildren(selectors.SelectorButton)]
        words = set(" ".join(said).replace("·", " ").split())
        painted = {word for text in shown for word in text.replace("·", " ").replace("…", " ").split()}
        assert painted <= words, (layout, step, painted - words)
        assert not [text for text in shown if text.endswith("…") and not text.endswith(" …")], (layout, step)
    fresh.models.selection.update(step=None)


@pytest.mark.parametrize("fresh", [(1100, 720)], indirect=True)
def test_the_selectors_of_the_sweep_say_their_words_whole(fresh: Shell) -> None:
    fresh.window.arrange("truth")
    view = fresh.window.findChild(SweepView)
    assert isinstance(view, SweepView)
    for shows in ("table", "plot"):
        view.choose(shows)
        turn(fresh)
        for box in view.boxes:
            option = QStyleOptionComboBox()
            box.initStyleOption(option)
            style, control = box.style(), QStyle.ComplexControl.CC_ComboBox
            room = style.subControlRect(control, option, QStyle.SubControl.SC_ComboBoxEditField, box).width()
            assert box.fontMetrics().horizontalAdvance(box.currentText()) <= room, box.currentText()


def test_panels_stand_beside_each_other_in_small_windows(fresh: Shell) -> None:
    """A panel that asks for more than its place stands over its neighbours, or beyond the window's edge. On a screen
    that is too small for all panels, they are scrolled."""
    window = fresh.window
    window.prompt.chat.template.refused.emit("This model has no chat template.")
    sizes = (window.minimumSize(), QSize(960, 600), QSize(1100, 720))
    for size, mode, layout in product(sizes, ("text", "chat"), ("learn", "inspect", "compare", "truth")):
        window.resize(size)
        window.prompt.choose(mode)
        window.arrange(layout)
        turn(fresh)
        docks = [dock for dock in window.findChildren(PanelDock) if not dock.visibleRegion().isEmpty()]
        assert len(docks) >= 4, layout
        places = {dock.objectName(): dock.geometry() for dock in docks}
        seen = window.docks.parentWidget()
        assert size.width() < 960 or window.docks.width() == seen.width(), (layout, "is scrolled")
        assert window.docks.visibleRegion().boundingRect().size() == seen.size(), "what is seen of them"
        beyond = [name for name, place in places.items() if not window.docks.rect().contains(place)]
        over = [pair for pair in combinations(places, 2) if places[pair[0]].intersects(places[pair[1]])]
        assert (beyond, over) == ([], []), (mode, layout, places)


def test_a_first_window_takes_all_of_a_small_screen(fresh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen:
        room = QSize(1280, 800)

        def availableSize(self) -> QSize:
            return self.room

    screen = Screen()
    monkeypatch.setattr(fresh.window, "screen", lambda: screen, raising=False)
    assert first_size(fresh.window) == QSize(1280, 764)
    screen.room = QSize(1920, 1080)
    assert first_size(fresh.window) == QSize(1600, 994)
    screen.room = QSize(800, 600)
    least = first_size(fresh.window)
    assert least == QSize(800, 564)
    fresh.window.resize(least)
    assert fresh.window.size() == least, "the window is not larger than its screen"


def test_entries_are_whole_or_left_out() -> None:
    entries = ["head 0 → 0 Once 50.1 %", "9 ·little 5.3 %", "888 ·Farmer 0.9 %"]
    assert whole_entries(entries, 43, 1, len) == "head 0 → 0 Once 50.1 %   9 ·little 5.3 %"
    assert whole_entries(entries, 39, 1, len) == "head 0 → 0 Once 50.1 %"
    assert whole_entries(entries, 43, 2, len) == "head 0 → 0 Once 50.1 %   9 ·little 5.3 %\n888 ·Farmer 0.9 %"
    assert whole_entries(entries, 5, 3, len) == entries[0]


def test_the_newest_row_lists_whole_entries(sized: tuple[Shell, FakeEngine]) -> None:
    fresh, _ = sized
    for layout in ("learn", "inspect"):
        fresh.window.arrange(layout)
        turn(fresh)
        view, piece = fresh.window.attention, fresh.models.pictures.attention
        readout, metrics = view.readout, view.readout.fontMetrics()
        lines = readout.text().split("\n")
        assert max(map(metrics.horizontalAdvance, lines)) <= readout.width(), layout
        assert len(lines) * metrics.height() <= readout.height(), layout
        known = [
            f"{position} {token_name(fresh.models, 0, int(position), 8)} {percent(float(weight))}"
            for position, weight in zip(piece.top_positions[0], piece.top_weights[0], strict=True)
        ]
        shown = re.split(r" {3}|\n", readout.text().removeprefix("L0 head 0 → ").replace(" (sink)", ""))
        assert shown == known[: len(shown)], layout
        if layout == "learn" and fresh.window.height() >= 800:
            assert len(shown) == 5


def test_the_inspector_shows_whole_lines(sized: tuple[Shell, FakeEngine]) -> None:
    fresh, _ = sized
    fresh.window.arrange("inspect")
    turn(fresh)
    (area,) = fresh.window.inspector.findChildren(WholeLines)
    assert area.viewport().height() >= 2 * PITCH
    assert area.viewport().height() % PITCH == 0
    bar = area.verticalScrollBar()
    bar.setValue(PITCH + 5)
    assert bar.value() % PITCH == 0


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_the_key_of_the_masses_is_in_a_colour_of_text(
    qtbot: QtBot, theme: Theme, spy: type[Spy], monkeypatch: pytest.MonkeyPatch, fresh: Shell
) -> None:
    colors: list[str] = []
    bars: MassBars = fresh.window.attention.masses
    fresh.set_theme("dark" if theme is DARK else "light")
    turn(fresh)
    paint = attention_rows.TextPainter.left

    def left(self: object, painter: QPainter, x: float, middle: float, text: str) -> float:
        colors.append(painter.pen().color().name())
        return paint(self, painter, x, middle, text)  # type: ignore[arg-type]

    monkeypatch.setattr(attention_rows.TextPainter, "left", left)
    bars.grab()
    assert len(colors) == 2
    assert all(contrast(color, theme.panel) >= 4.5 for color in colors)


def test_bars_of_the_ledger_are_never_squeezed(sized: tuple[Shell, FakeEngine]) -> None:
    fresh, _ = sized
    for layout in ("inspect", "truth"):
        fresh.window.arrange(layout)
        turn(fresh)
        view = fresh.window.panels["bytes"]
        (area,) = view.findChildren(WholeLines)
        (bars,), viewport = view.findChildren(LayerBars), area.viewport()
        top = bars.mapTo(viewport, bars.rect().topLeft()).y()
        is_out_of_sight = top >= viewport.height()
        is_whole = top >= 0 and top + bars.height() <= viewport.height() + 1
        assert is_out_of_sight or is_whole, (layout, top, bars.height(), viewport.height())
        assert viewport.height() % PITCH == 0, layout


def test_the_widest_number_of_a_what_if_stands_free_of_its_bar(qtbot: QtBot, qapp: QApplication) -> None:
    load_fonts()
    bars = BarRows("bars")
    qtbot.addWidget(bars)
    image = QImage(200, 20, QImage.Format.Format_RGB32)
    image.fill(QColor(DARK.panel))
    painter = QPainter(image)
    painter.setFont(font_fixed(11.5))
    bars.paint_bar(painter, DARK, QRectF(0, 0, 200, 20), Bar(1.0, ">99.9 %", "accent"))
    begin = 200 - painter.fontMetrics().horizontalAdvance(">99.9 %")
    painter.end()
    colored = [x for x in range(200) if image.pixelColor(x, 10).name() == DARK.accent]
    assert max(colored) <= begin - 6


def test_the_numbers_of_a_long_run_stand_below_its_bars(sized: tuple[Shell, FakeEngine]) -> None:
    fresh, engine = sized
    engine.emit(*(samples.step_record(step) for step in range(STEPS + 1, 1_004)))
    turn(fresh)
    fresh.window.arrange("inspect")
    turn(fresh)
    plot = fresh.window.panels["timings"].plot
    assert plot.words.text().startswith("step 1,003 · decode")
    assert plot.canvas.height() >= 60, "the bars have room above them"
    assert plot.fontMetrics().horizontalAdvance(plot.words.text()) <= plot.width()
