"""Regret in the real window: measured, and refused in words."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.draw.format import brief
from app.models import Models
from app.panels.evicted import EvictedView
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from tests.app import samples
from tests.app.panels.desk import Desk, click


@pytest.mark.parametrize(("num_tokens", "is_enough"), [(1, False), (2, True)])
def test_regret_needs_a_row_to_leave_out_and_one_to_keep(qtbot: QtBot, num_tokens: int, is_enough: bool) -> None:
    models = Models()
    view = EvictedView(models)
    qtbot.addWidget(view)
    assert view.problem().startswith("Send a prompt first")
    models.timeline.append([samples.step_record(0, num_prompt=num_tokens)])
    assert (view.problem() == "") == is_enough


def test_regret_is_measured_and_a_dot_selects_its_token(desk: Desk) -> None:
    desk.run(CacheSpec())
    desk.evicted.measured_rule.choose("tova")
    desk.window.actions_["truth.regret"].trigger()
    desk.until(lambda: not desk.evicted.measurement.is_waiting)
    found = desk.models.measurements.regret.answer
    assert found is not None
    assert "TOVA · rank correlation" in desk.evicted.detail.text()
    assert desk.evicted.note.text().startswith("score: attention of the last query before the newest token")
    plot = desk.evicted.effects
    QApplication.processEvents()
    best = int(found.kl.argmax())
    assert plot.canvas.chart is not None
    place = plot.canvas.frame.point_of(*plot.canvas.chart.points[best])
    click(plot.canvas.viewport(), place.x(), place.y())
    assert desk.models.selection.now.position == found.positions[best]
    assert f"KL {brief(float(found.kl[best]))}" in plot.words.text()


def test_regret_on_a_cache_that_dropped_rows_is_measured_on_rows_that_are_computed_anew(desk: Desk) -> None:
    desk.run(CacheSpec(retention=RetentionSpec("tova", budget=12)))
    desk.evicted.measure()
    desk.until(lambda: not desk.evicted.measurement.is_waiting)
    assert desk.models.measurements.regret.answer is not None
    assert desk.models.measurements.regret.answer.is_rebuilt
    rule = desk.models.measurements.regret.answer.request.cache.retention.name
    assert rule == "tova", "that of the cache in use, until another is chosen"
