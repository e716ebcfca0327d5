"""The base of all panels: what is followed, when it is read, when it is shown, and where its numbers come from."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QPointF
from PySide6.QtGui import QAction, QEnterEvent
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from app.kit.provenance import Provenance, source_of
from app.kit.reader import EACH_STEP, SELECTION, STEPS, measurement, pictures
from app.kit.theme import DARK, LIGHT, apply_theme, current_theme
from app.kit.view import LOAD, MEASURE, View
from app.models import Models
from app.models.pictures import HEAD, ROW, TABLE
from engine.wire.status import CaptureState, EngineStatus
from tests.app import samples


@dataclass(frozen=True)
class Place:
    layer: int
    choice: str


class PlaceView(View[Place]):
    """Shows the selected layer, and counts how often it is asked and how often it shows."""

    title = "Place"
    follows = (SELECTION, STEPS, pictures(HEAD), pictures(ROW, at_rest=True), measurement("parity"))
    choices = (("one", "one", ""), ("two", "two", ""))

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.num_reads = 0
        self.shown: list[Place] = []
        self.described: list[Place] = []
        self.set_body(QLabel())
        self.follow(models)

    def read(self) -> Place | str:
        self.num_reads += 1
        layer = self._models.selection.now.layer
        return "No layer is selected." if layer == 9 else Place(layer, self.choice)

    def show_state(self, state: Place) -> None:
        self.shown.append(state)

    def describe(self, state: Place) -> None:
        self.described.append(state)

    def provenance(self, state: Place) -> Provenance:
        return source_of(self._models, "recorded", "", 1)

    def want(self, *, is_visible: bool) -> None:
        self._models.viewport.update(wants_row=is_visible)


@pytest.fixture
def view(qtbot: QtBot, models: Models) -> PlaceView:
    view = PlaceView(models)
    qtbot.addWidget(view)
    view.show()
    return view


def test_nothing_is_read_while_hidden_and_once_when_shown(qtbot: QtBot, models: Models) -> None:
    view = PlaceView(models)
    qtbot.addWidget(view)
    models.selection.update(layer=2)
    models.selection.update(layer=3)
    assert view.num_reads == 0
    assert view.state is None
    assert not models.viewport.now.wants_row
    view.show()
    assert view.num_reads == 1
    assert view.shown == [Place(3, "one")]
    assert models.viewport.now.wants_row
    view.hide()
    models.selection.update(layer=4)
    assert view.num_reads == 1
    assert not models.viewport.now.wants_row


def test_the_same_state_is_shown_once(view: PlaceView, models: Models) -> None:
    models.selection.update(position=7)
    models.selection.update(position=8)
    assert view.num_reads == 3
    assert view.shown == [Place(0, "one")]
    models.selection.update(layer=1)
    assert view.shown == [Place(0, "one"), Place(1, "one")]


def test_a_view_without_a_state_says_why_and_has_no_source(view: PlaceView, models: Models) -> None:
    models.timeline.append(samples.story(1))
    models.selection.update(layer=1)
    assert view.provenance_label.text == "recorded"
    models.selection.update(layer=9)
    assert (view.empty_text, view.provenance_label.text, view.state) == ("No layer is selected.", "", None)
    models.selection.update(layer=1)
    assert (view.empty_text, view.provenance_label.text, view.state) == ("", "recorded", Place(1, "one"))
    assert view.shown[-2:] == [Place(1, "one"), Place(1, "one")], "what was taken away is shown again"


def test_what_would_help_where_there_is_nothing_has_a_button(
    view: PlaceView, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (LOAD, MEASURE):
        view.set_remedy(name, name, QAction(name, view))
    monkeypatch.setattr(PlaceView, "needs", "rows")
    status = samples.status(1, num_tokens=5)

    def offered(status: EngineStatus) -> list[str]:
        models.status.set(status)
        models.selection.update(layer=1)
        models.selection.update(layer=9)
        return [name for name, button in view.remedies.items() if button.isVisible()]

    models.timeline.append(samples.story(1))
    assert offered(status) == []
    assert offered(replace(status, capture=CaptureState("statistics"))) == [MEASURE]
    assert offered(replace(status, model=None)) == [LOAD]


def test_the_source_is_told_anew_where_the_numbers_stay(view: PlaceView, models: Models) -> None:
    models.timeline.append(samples.story(1))
    models.timeline.announce()
    assert view.provenance_label.text == "recorded"
    models.timeline.append(samples.story(2)[1:])
    models.timeline.announce()
    assert view.provenance_label.text == "recorded · step 1", "the newest step is another one"
    assert view.shown == [Place(0, "one")]


def test_what_is_shown_is_described_where_the_pointer_is_and_with_the_words_of_a_run(
    view: PlaceView, models: Models
) -> None:
    QApplication.sendEvent(view, QEvent(QEvent.Type.Leave))
    models.timeline.append(samples.story(1))
    models.timeline.announce()
    view.described.clear()
    models.selection.update(layer=1)
    assert view.described == [], "nobody reads it"
    QApplication.sendEvent(view, QEnterEvent(QPointF(), QPointF(), QPointF()))
    assert view.described == [Place(1, "one")]
    models.selection.update(layer=2)
    assert view.described == [Place(1, "one"), Place(2, "one")]
    models.status.set(samples.status(1, num_tokens=5, running=True))
    models.selection.update(layer=3)
    models.selection.update(layer=4)
    assert view.shown[-2:] == [Place(3, "one"), Place(4, "one")]
    assert view.described[2:] == []
    models.timeline.announce(again=True)
    models.timeline.announce(again=True)
    assert view.described[2:] == [Place(4, "one")], "the newest, and once"
    QApplication.sendEvent(view, QEvent(QEvent.Type.Leave))
    models.selection.update(layer=5)
    models.timeline.announce(again=True)
    assert view.described[3:] == []


def test_only_the_kinds_that_are_followed_are_read(view: PlaceView, models: Models) -> None:
    def reads_after(kind: str) -> int:
        before = view.num_reads
        models.pictures.changed.emit(kind)
        return view.num_reads - before

    models.status.set(samples.status(1, num_tokens=5))
    assert [reads_after(kind) for kind in (HEAD, ROW, TABLE)] == [1, 1, 0]
    models.status.set(samples.status(1, num_tokens=5, running=True))
    assert [reads_after(kind) for kind in (HEAD, ROW, TABLE)] == [1, 0, 0], "a row comes with the next step's words"
    before = view.num_reads
    models.measurements.sweep.changed.emit()
    models.measurements.parity.changed.emit()
    assert view.num_reads == before + 1


def test_a_choice_of_the_strip_is_part_of_what_is_read(view: PlaceView) -> None:
    view.choose("two")
    assert view.state == Place(0, "two")


def test_another_theme_shows_the_same_state_again(view: PlaceView, qapp: QApplication) -> None:
    apply_theme(qapp, DARK)
    QApplication.processEvents()
    before = len(view.shown)
    try:
        apply_theme(qapp, LIGHT)
        QApplication.processEvents()
        assert current_theme() is LIGHT
        assert view.shown[before:] == [Place(0, "one")], "once, although Qt says it more than once"
    finally:
        apply_theme(qapp, DARK)


def test_each_step_or_at_reading_pace(qtbot: QtBot, models: Models) -> None:
    class Counter(PlaceView):
        follows = (EACH_STEP,)

    fast, slow = Counter(models), PlaceView(models)
    for view in (fast, slow):
        qtbot.addWidget(view)
        view.show()
    start = fast.num_reads, slow.num_reads
    models.timeline.append(samples.story(1))
    assert (fast.num_reads, slow.num_reads) == (start[0] + 1, start[1])
    models.timeline.announce()
    assert (fast.num_reads, slow.num_reads) == (start[0] + 1, start[1] + 1)
