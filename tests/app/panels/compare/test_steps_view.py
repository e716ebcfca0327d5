"""The steps of a comparison: plots, tables and costs, each number at its label."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.draw.format import brief, percent, token_label
from app.kit.chart import Curve
from app.panels.compare.steps import QUANTITIES, compare_chart, points
from engine.spec.cache import cache_named
from engine.wire.events import StateChanged
from tests.app import samples
from tests.app.conftest import turn
from tests.app.mouse import point_at
from tests.app.panels.compare.desk import CompareDesk

pytestmark = pytest.mark.one_window


def test_the_newest_step_is_told_by_layer_and_by_token(compared: CompareDesk) -> None:
    step = samples.compared_step(20)
    assert compared.steps.numbers.text() == f"step 20 · KL 0.200 nats · |Δ logit| 2.00 · {agreement(20)}"
    rows = compared.steps.layers.cells.rows
    assert [cell.text for cell in rows[5]] == ["5", brief(0.42), brief(0.84), brief(0.21)]
    assert rows[0][0].role == "selected"
    top = compared.steps.top.cells.rows
    a, b = step.top[0][0], step.top[1][0]
    assert [cell.text for cell in top[0] if cell.text] == [
        token_label(a.text), percent(a.prob), token_label(b.text), percent(b.prob),
    ]  # fmt: skip
    assert top[0][0].role == "warning", "the most probable tokens of both sides differ"


def agreement(step: int) -> str:
    return "same top token" if samples.compared_step(step).top1_agrees else "another top token"


def test_costs_are_those_of_the_window_and_of_the_other_run(compared: CompareDesk) -> None:
    assert compared.steps.cost.text() == "A  3.00 ms · 4.0 KiB     B  4.00 ms · 1.0 KiB"


def test_the_cost_of_side_a_is_what_the_window_recorded_and_an_unknown_one_is_not_told(desk: CompareDesk) -> None:
    steps = tuple(replace(samples.compared_step(n), ms=(None, None), kv_bytes=(None, None)) for n in range(21))
    desk.start(replace(samples.comparison_started(), steps=steps))
    record = desk.models.timeline.record(20)
    assert record is not None
    assert desk.steps.cost.text().startswith(f"A  {record.timings.total_ms:.2f} ms")
    assert "B" not in desk.steps.cost.text().replace("KiB", "")
    desk.tell(StateChanged(replace(desk.engine.status, cache=cache_named("int8"))))
    desk.start(replace(samples.comparison_started(), steps=steps))
    assert desk.steps.cost.text() == "", "bytes of the mode that the step was taken in are not those of side A"


def test_a_step_without_logits_has_no_point_and_says_so(desk: CompareDesk) -> None:
    started = samples.comparison_started(4)
    bare = replace(started.steps[1], kl=None, max_abs_logit_diff=None, top1_agrees=None, top=((), ()))
    desk.start(replace(started, steps=(started.steps[0], bare, *started.steps[2:])))
    now = desk.models.comparison.now
    assert now is not None
    found = points(desk.models.comparison.steps, now, "kl")
    assert found.x.tolist() == [0, 2, 3]
    assert found.breaks == (1,), "the line is interrupted at a step without a number"
    chart = compare_chart(desk.models.comparison.steps, now, "kl", None)
    curves = [mark for mark in chart.marks if isinstance(mark, Curve)]
    assert [list(curve.x) for curve in curves] == [[0], [2, 3]]
    desk.models.selection.update(step=1)
    assert desk.steps.numbers.text() == "step 1 · a side kept no logits of it"
    assert desk.steps.top.cells.rows == ()


def test_a_layer_that_a_side_does_not_know_has_a_dash(desk: CompareDesk) -> None:
    unknown = np.full(samples.LAYERS, np.nan, np.float32)
    step = replace(samples.compared_step(0), keys=unknown, attention=unknown)
    desk.start(replace(samples.comparison_started(), steps=(step,)))
    assert [cell.text for cell in desk.steps.layers.cells.rows[0]] == ["0", "–", "0.0200", "–"]
    assert QUANTITIES["attention"].value(step) is None


def test_a_click_on_a_point_goes_to_its_step_and_a_line_to_its_layer(compared: CompareDesk) -> None:
    plot = compared.steps.plots["kl"]
    plot.picked.emit(7)
    assert compared.models.selection.now.step == 7
    assert compared.steps.numbers.text().startswith("step 7 · KL 0.0700 nats")
    plot.picked.emit(20)
    assert compared.models.selection.now.step is None
    compared.steps.layers.clicked.emit(compared.steps.layers.cells.index(3, 0))
    assert compared.models.selection.now.layer == 3


def test_pointing_at_a_point_tells_its_step_and_looks_at_none(compared: CompareDesk) -> None:
    point_at(compared.steps.plots["kl"], 4)
    assert compared.steps.numbers.text().startswith("step 4 · ")
    assert compared.models.selection.now.step is None
    point_at(compared.steps.plots["kl"], None)
    assert compared.steps.numbers.text().startswith("step 20 · ")


def test_a_further_step_is_shown_at_rest_at_once(compared: CompareDesk) -> None:
    compared.tell(samples.compared_step(21))
    assert compared.steps.numbers.text().startswith("step 21 · ")


def test_narrow_panels_show_the_chosen_plot_and_those_that_have_room(compared: CompareDesk) -> None:
    shown = [name for name, plot in compared.steps.plots.items() if plot.isVisible()]
    assert shown == ["kl", "logits", "attention"]
    compared.steps.choose("rows")
    assert [name for name, plot in compared.steps.plots.items() if plot.isVisible()] == ["kl", "logits", "rows"]
    compared.shell.window.resize(1700, 1000)
    turn(compared.shell)
    assert all(plot.isVisible() for plot in compared.steps.plots.values())


def test_while_it_runs_steps_are_drawn_no_more_often_than_words_can_be_read(compared: CompareDesk) -> None:
    compared.tell(StateChanged(replace(compared.engine.status, running=True)))
    compared.models.comparison.append(samples.compared_step(22))
    assert compared.steps.numbers.text().startswith("step 20 · ")


def test_plots_of_many_steps_wait_for_more_of_them_while_it_runs_and_end_whole(desk: CompareDesk) -> None:
    def drawn() -> int:
        chart = desk.steps.plots["kl"].canvas.chart
        return len(chart.points) if chart is not None else 0

    desk.start(samples.comparison_started(40))
    desk.tell(StateChanged(replace(desk.engine.status, running=True)))
    for step, shown in ((40, 40), (41, 42)):
        desk.models.comparison.append(samples.compared_step(step))
        desk.steps.refresh()
        assert drawn() == shown
        assert desk.steps.numbers.text().startswith(f"step {step} · ")
    desk.models.comparison.append(samples.compared_step(42))
    desk.steps.refresh()
    assert drawn() == 42
    desk.tell(StateChanged(desk.engine.status))
    assert drawn() == 43
