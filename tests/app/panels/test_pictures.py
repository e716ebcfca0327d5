"""Panels of a step in real widgets: each says what it is of, and nothing repaints when nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.kit.theme import LIGHT, apply_theme
from app.kit.view import View
from app.models import Models
from app.panels.attention import AttentionView
from app.panels.bytes import BytesView
from app.panels.head import HeadView
from app.panels.inspector import InspectorView
from app.panels.next_token import NextTokenView
from app.panels.timings import TimingsView
from app.panels.wall.view import WallView
from engine.spec.edit import Rows
from tests.app import rich, samples
from tests.app.panels.recorded import STEPS, give_pictures, head_picture, recorded_models

VIEWS: tuple[type[Any], ...] = (
    WallView, HeadView, AttentionView, NextTokenView, TimingsView, BytesView, InspectorView,
)  # fmt: skip
PROVENANCES = {view: "live cache" if view in (WallView, HeadView, AttentionView) else "recorded" for view in VIEWS}


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return recorded_models()


@pytest.mark.parametrize("view_type", VIEWS)
def test_a_view_of_nothing_says_what_would_appear(view_type: type[Any], show: Callable[..., Any]) -> None:
    view = show(view_type(Models()))
    assert view.empty.isVisible()
    assert len(view.empty.text()) > 20


@pytest.mark.parametrize("view_type", VIEWS)
def test_a_view_shows_its_source_and_step(view_type: type[Any], models: Models, show: Callable[..., Any]) -> None:
    view = show(view_type(models))
    give_pictures(models)
    assert not view.empty.isVisible()
    source = view.provenance_label
    assert source.text == PROVENANCES[view_type]
    assert source.kind == PROVENANCES[view_type]
    assert source.whole.endswith(f"step {STEPS}")
    models.selection.update(step=20)
    give_pictures(models)
    where = PROVENANCES[view_type]
    assert source.text == ("step 20" if where == "live cache" else where), "not live at an earlier step"
    assert source.kind == "past", "what is not of now is amber"
    assert source.whole.endswith("step 20 · looking back")


@pytest.mark.parametrize("view_type", VIEWS)
def test_another_theme_gives_another_picture(
    qapp: QApplication, view_type: type[Any], models: Models, show: Callable[..., Any]
) -> None:
    view = show(view_type(models))
    give_pictures(models)
    dark = view.grab().toImage()
    apply_theme(qapp, LIGHT)
    QApplication.processEvents()
    light = view.grab().toImage()
    assert dark.pixelColor(4, 40).lightness() < 60
    assert light.pixelColor(4, 40).lightness() > 200
    assert dark != light


@pytest.mark.parametrize("view_type", VIEWS)
def test_the_same_state_is_not_painted_twice(view_type: type[Any], models: Models, show: Callable[..., Any]) -> None:
    view = show(view_type(models))
    give_pictures(models)
    paints = Paints(view)
    view.refresh()
    view.refresh()
    QApplication.processEvents()
    assert paints.count == 0


@pytest.mark.parametrize("view_type", VIEWS)
def test_a_hidden_view_asks_for_nothing_and_draws_nothing(
    view_type: type[Any], models: Models, show: Callable[..., Any]
) -> None:
    view = show(view_type(models))
    view.hide()
    wanted = models.viewport.now
    assert (wanted.wall_size, wanted.head_columns, wanted.attention_columns, wanted.wants_row) == (None,) * 3 + (False,)
    paints = Paints(view)
    models.timeline.append([samples.step_record(STEPS + 1)])
    models.pictures.put(head_picture())
    QApplication.processEvents()
    assert paints.count == 0


@pytest.mark.parametrize("view_type", VIEWS)
@pytest.mark.parametrize("size", [(150, 90), (2400, 1400)])
def test_a_view_can_be_very_small_and_very_large(
    view_type: type[Any], size: tuple[int, int], models: Models, show: Callable[..., Any]
) -> None:
    view = show(view_type(models), *size)
    give_pictures(models)
    assert not view.grab().toImage().isNull()


def test_hostile_token_texts_are_shown_as_they_are(models: Models, show: Callable[..., Any]) -> None:
    record = samples.step_record(STEPS + 1)
    part = record.sequences[0]
    candidates = (replace(part.candidates[0], text="<b>\x00\u202e</b>"), *part.candidates[1:])
    part = replace(part, texts=("\ud800<img src=x>\n",), candidates=candidates)
    models.timeline.append([replace(record, sequences=(part,))])
    models.selection.update(position=None)
    inspector = show(InspectorView(models))
    choices = show(NextTokenView(models))
    (text,) = (label for label in inspector.findChildren(QLabel) if "img" in label.text())
    assert text.text() == "\\ud800<img·src=x>⏎"
    assert text.textFormat() == Qt.TextFormat.PlainText
    assert choices.state.rows[0].name[2:] == "<b>\\x00\\u202e</b>"


@pytest.mark.parametrize("view_type", [HeadView, AttentionView])
def test_a_menu_is_of_what_is_pointed_at_and_of_the_area_around_it(
    view_type: type[Any], models: Models, show: Callable[..., Any]
) -> None:
    view = show(view_type(models))
    give_pictures(models)
    places: list[QPoint] = []
    view.menu_wanted.connect(places.append)

    def asked(x: float) -> Rows | None:
        view.map.menu_wanted.emit(QPointF(x, 0.5), QPoint(7, 8))
        return models.selection.now.area

    whole = view.area(QPointF(3.5, 0.5), QPointF(9.5, 0.5))
    assert whole is not None
    models.selection.update(position=3, area=whole)
    assert asked(5.5) == whole
    assert asked(12.5) == view.area(QPointF(12.5, 0.5), QPointF(12.5, 0.5))
    assert models.selection.now.position == 12
    view.map.menu_wanted.emit(None, QPoint(1, 2))
    assert models.selection.now.position == 12, "beside the picture it is of what is chosen"
    assert places == [QPoint(7, 8), QPoint(7, 8), QPoint(1, 2)]


class Paints:
    """Counts paint events of a widget and everything in it."""

    def __init__(self, view: QWidget) -> None:
        from PySide6.QtCore import QEvent, QObject

        class Counter(QObject):
            def eventFilter(self, watched: QObject, event: QEvent) -> bool:
                if event.type() == QEvent.Type.Paint:
                    outer.count += 1
                return False

        outer = self
        self._counter = Counter()
        for widget in (view, *view.findChildren(QWidget)):
            widget.installEventFilter(self._counter)
        self.count = 1
        while self.count:  # what showing still owes
            self.count = 0
            QTest.qWait(20)


def test_panels_hand_out_their_picture(models: Models, show: Callable[..., Any]) -> None:
    view: View = show(BytesView(models), 400, 200)
    assert view.frame.grab().toImage().width() == 400


@pytest.mark.parametrize("build", [WallView, HeadView, AttentionView])
def test_until_the_picture_of_another_sequence_comes_tokens_and_edits_are_those_of_the_one_that_is_shown(
    qtbot: QtBot, build: Callable[[Models], Any]
) -> None:
    models = rich.rich_models()
    view = build(models)
    qtbot.addWidget(view)
    view.resize(900, 500)
    view.show()
    rich.give_pictures(models)

    def told() -> str:
        if isinstance(view, WallView):
            view.canvas.pointed.emit(None, None)
            view.canvas.pointed.emit(view.canvas.layout_now.picture_of(3, 1), 2)
            return view.canvas.toolTip() + view.detail.text()
        view.tell(QPointF(2.5, 2.5))
        return f"{view.readout.text()}{view.map.toolTip()}"

    of_the_first = told()
    assert "·a" in of_the_first
    assert "edited: zero at step 7" in of_the_first
    models.selection.update(seq_id=1)
    QApplication.processEvents()
    assert told() == of_the_first
    rich.give_pictures(models)
    QApplication.processEvents()
    assert "other2" in told()
    assert "edited" not in told()
