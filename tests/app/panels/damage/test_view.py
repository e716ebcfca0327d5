"""The damage panel: it shows the answer for the chosen codec only, and a click on a cell selects its place."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from app.draw.format import percent
from app.models.measurement import MeasurementState
from app.panels.damage import CHANNELS, EFFECT, PLAN, TOKENS, DamageView, error_words
from app.shell import Shell
from engine.spec.cache import CacheSpec, cache_named
from engine.spec.codec import LayerCoding
from engine.wire.measurements import LayerPlanStep, MapDamage
from tests.app import samples
from tests.app.answers import damage
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.mouse import move_mouse
from tests.app.panels.desk import PromptedDesk
from tests.app.rich_answers import measured_models

GROUP = samples.HEADS // samples.KV_HEADS


@pytest.fixture
def view(two: Shell, engine: FakeEngine) -> DamageView:
    """The panel, which measures nothing by itself from now on, however slow the machine is."""
    panel = two.window.panels["damage"]
    assert isinstance(panel, DamageView)
    panel.rest.setInterval(10**7)
    if panel.measurement.is_waiting:
        engine.answer(damage(engine.of(MapDamage)[-1], 0.5))  # type: ignore[arg-type]
        turn(two)
    return panel


def measured(shell: Shell, view: DamageView, engine: FakeEngine) -> None:
    view.measure()
    engine.answer(damage(engine.of(MapDamage)[-1], 0.5))  # type: ignore[arg-type]
    turn(shell)


def test_another_codec_takes_the_map_away_and_its_own_brings_it_back(
    two: Shell, view: DamageView, engine: FakeEngine
) -> None:
    view.controls.choose("kivi", 4)
    measured(two, view, engine)
    assert not view.maps.isHidden()
    assert view.provenance_label.text == "on a copy · step 20"
    shown = view.facts.grab().toImage()
    view.controls.choose("int8")
    assert view.state.found is None
    assert view.provenance_label.text == ""
    assert view.facts.isHidden()
    assert view.readout.text().startswith("Each layer is coded alone")
    view.controls.choose("kivi", 4)
    assert view.facts.grab().toImage() == shown


PLACES = [
    (EFFECT, "", 0, {"layer": 3, "kv_head": 0, "position": None, "lens": "keys"}),
    (EFFECT, "", 3, {"layer": 3, "kv_head": 3 // GROUP, "position": None, "lens": "keys"}),
    (EFFECT, "", 7, {"layer": 3, "kv_head": 7 // GROUP, "position": None, "lens": "keys"}),
    (CHANNELS, "K", 9, {"layer": 3, "kv_head": 2, "position": None, "lens": "keys"}),
    (CHANNELS, "V", 9, {"layer": 3, "kv_head": 2, "position": None, "lens": "values"}),
    (TOKENS, "V", 9, {"layer": 3, "kv_head": 2, "position": 9, "lens": "values"}),
]


def test_a_cell_leads_to_its_place(two: Shell, view: DamageView, engine: FakeEngine) -> None:
    measured(two, view, engine)
    for shows, side, column, there in PLACES:
        view.choose(shows)
        two.models.selection.update(position=None, lens="keys", layer=0, kv_head=0)
        row = 3 if shows == EFFECT else 3 * samples.KV_HEADS + 2
        turn(two)
        (view.shift if shows == EFFECT else view.maps).picked.emit(side, QPointF(column + 0.5, row + 0.5))
        now = two.models.selection.now
        assert {name: getattr(now, name) for name in there} == there, (shows, side, column)


def test_what_is_chosen_is_measured_anew_once_a_step_was_taken(
    two: Shell, view: DamageView, engine: FakeEngine
) -> None:
    view.controls.choose("kivi", 4)
    measured(two, view, engine)
    engine.sent.clear()
    view.rest.timeout.emit()
    assert engine.of(MapDamage) == []  # it is of the newest step
    engine.emit(replace(samples.step_record(20), step=22))
    turn(two)
    view.rest.timeout.emit()
    (asked,) = engine.of(MapDamage)
    assert asked.codec == view.controls.chosen  # type: ignore[attr-defined]


def test_a_plan_can_be_used_when_there_is_one_and_nothing_is_measured(
    two: Shell, view: DamageView, engine: FakeEngine
) -> None:
    def can_use() -> bool:
        turn(two)
        (button,) = (each for each in view.plan.findChildren(QPushButton) if each.text() == "Use this plan")
        return button.isEnabled()

    view.controls.choose("int8")
    view.choose(PLAN)
    measured(two, view, engine)
    assert not can_use()
    view.ask_plan()
    question = engine.of(MapDamage)[-1]
    assert isinstance(question, MapDamage)
    assert not can_use()
    plan = (LayerPlanStep(LayerCoding(0, question.codec.keys, question.codec.values), 0.1, 512),)
    found = replace(damage(question, 0.5), plan=plan, plan_codec=question.codec, plan_kl=0.2, plan_bytes=512)
    engine.answer(found)
    assert can_use()


def test_the_formula_of_the_chosen_codec_stands_under_the_controls(two: Shell, view: DamageView) -> None:
    two.window.resize(1600, 1000)
    view.controls.choose("int8")
    turn(two)
    assert view.formula.text() == "INT8: round(x / s) · s, s = amax / 127 of the row · symmetric quantisation"
    view.controls.choose("fp8")
    turn(two)
    assert view.formula.text().startswith("FP8: e4m3(x / s) · s")
    assert view.formula.isVisible()


def test_the_damage_is_measured_when_at_rest_read_and_planned(prompted: PromptedDesk) -> None:
    prompted.until(
        lambda: prompted.models.measurements.damage.answer is not None and prompted.damage.state.found is not None
    )
    found = prompted.models.measurements.damage.answer
    assert found is not None
    assert found.num_rows == prompted.models.timeline.num_tokens(0) - 1
    assert found.keys.max_abs.max() > 0, "the codec chosen at first loses something on a short prompt"
    heatmap = prompted.damage.maps.maps["V"]
    plot = heatmap.plot_rect
    place = QPointF(plot.left() + plot.width() * 0.5, plot.top() + plot.height() * 0.6).toPoint()
    move_mouse(heatmap, place)
    QTest.mouseClick(heatmap, Qt.MouseButton.LeftButton, pos=place)
    now = prompted.models.selection.now
    assert now.lens == "values"
    assert now.position is not None
    index = found.layers.index(now.layer)
    value = float(found.values.by_token[index, now.kv_head, now.position // found.tokens_per_column])
    assert f"V {error_words(value)}" in prompted.damage.readout.text()
    assert prompted.damage.readout.brief.endswith(f"V {percent(value)}"), "where the exact one has no room"
    for view in (CHANNELS, EFFECT, PLAN):
        prompted.damage.choose(view)
        assert not prompted.damage.grab().toImage().isNull()
    prompted.damage.plan.share.field.setValue(50)
    prompted.damage.ask_plan()
    prompted.until(
        lambda: (
            prompted.models.measurements.damage.answer is not None and prompted.models.measurements.damage.answer.plan
        )
    )
    found = prompted.models.measurements.damage.answer
    assert found is not None
    assert found.plan_bytes is not None
    assert found.plan_bytes <= prompted.damage.plan.budget_bytes
    prompted.damage.plan.copy_name()
    assert cache_named(QGuiApplication.clipboard().text()) == CacheSpec(codec=found.plan_codec)
    prompted.until(lambda: prompted.damage.state.state is MeasurementState.ANSWERED)
    prompted.damage.plan.use.click()
    prompted.until(lambda: prompted.models.status.now.cache.codec == found.plan_codec)  # type: ignore[union-attr]


def test_both_pictures_have_the_same_height_after_the_panel_was_low(qapp: QApplication, qtbot: QtBot) -> None:
    """Amid a layout the numbers below the pictures came back, and one of the two reached below the panel's end."""
    view = DamageView(measured_models())
    qtbot.addWidget(view)
    view.show()
    for height in (120, 500):
        view.resize(600, height)
        for _ in range(3):
            qapp.processEvents()
    heights = {side: heatmap.height() for side, heatmap in view.maps.maps.items()}
    assert heights["K"] == heights["V"] <= view.maps.height()
