"""The parity panel: what it compares with, and the colour of its verdict."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from app.kit.theme import current_theme
from app.panels.parity import ParityView
from app.shell import Shell
from engine.history.history import BoundedLog
from engine.spec.cache import PRESETS, CacheSpec, cache_preset, tuned
from engine.wire.commands import Fork, SetCache, StartComparison
from engine.wire.comparison import OtherRun
from engine.wire.events import StateChanged
from engine.wire.measurements import CheckParity, Verdict
from tests.app import samples
from tests.app.answers import parity
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.panels.desk import Desk, click


@pytest.fixture
def view(two: Shell) -> ParityView:
    panel = two.window.panels["parity"]
    assert isinstance(panel, ParityView)
    return panel


VERDICTS: list[tuple[Verdict, str, str]] = [
    ("within rounding", "Within rounding", "good"),
    ("lossy, as asked", "Lossy, so it differs", "warning"),
    ("edited by hand", "Edited by hand", "warning"),
    ("lossy and edited", "Edited by hand, and lossy", "warning"),
    ("departs", "Departs", "bad"),
]


def test_a_verdict_has_its_colour(two: Shell, view: ParityView, engine: FakeEngine) -> None:
    for verdict, words, role in VERDICTS:
        view.measure()
        engine.answer(replace(parity(engine.of(CheckParity)[-1], 0.5), verdict=verdict))  # type: ignore[arg-type]
        turn(two)
        assert view.verdict.text().startswith(words)
        assert view.verdict.text().endswith("without the edits") == ("Edited" in words)
        shown = view.verdict.palette().color(view.verdict.foregroundRole()).name()
        assert shown == getattr(current_theme(), role), verdict


def test_a_comparison_with_the_mode_in_use_keeps_its_parameters(
    two: Shell, view: ParityView, engine: FakeEngine
) -> None:
    mine = tuned(cache_preset("h2o").spec, budget=20)
    engine.emit(StateChanged(replace(engine.status, cache=mine)))
    turn(two)
    for name, wanted in {"h2o": mine, "tova": cache_preset("tova").spec, "uncached": None}.items():
        view.compare_with(name)
        view.measure()
        asked = engine.of(CheckParity)[-1]
        assert isinstance(asked, CheckParity)
        assert asked.against == wanted
        engine.answer(parity(asked, 0.5))
        turn(two)
    assert mine.retention.budget == 20 != cache_preset("h2o").spec.retention.budget
    assert CacheSpec() != mine


def test_the_first_row_that_departs_is_selected_with_its_layer_and_tensor(
    two: Shell, view: ParityView, engine: FakeEngine
) -> None:
    view.measure()
    engine.answer(parity(engine.of(CheckParity)[-1], 0.5))  # type: ignore[arg-type]
    turn(two)
    two.models.selection.update(change=True, step=3, lens="keys", layer=0, position=None)
    view.place.click()
    now = two.models.selection.now
    assert (now.layer, now.lens, now.position, now.change, now.step) == (2, "values", 7, False, None)


def test_a_dot_looks_at_its_step_and_the_newest_is_live(two: Shell, view: ParityView, engine: FakeEngine) -> None:
    view.measure()
    engine.answer(parity(engine.of(CheckParity)[-1], 0.5))  # type: ignore[arg-type]
    turn(two)
    view.plot.picked.emit(4)
    assert two.models.selection.now.step == 4
    two.models.history.go_to(20)
    two.models.timeline.go_to(20)  # the newest that was compared is the newest there is
    view.plot.picked.emit(20)
    assert two.models.selection.now.step is None


def test_newer_steps_are_those_that_computed_the_sequence_that_was_compared(
    two: Shell, view: ParityView, engine: FakeEngine
) -> None:
    view.measure()
    engine.answer(parity(engine.of(CheckParity)[-1], 0.5))  # type: ignore[arg-type]
    turn(two)
    assert "1 newer step not compared" in view.numbers.text()
    engine.emit(*(samples.step_record(step, seq_id=1) for step in (22, 23)))
    turn(two)
    assert len(two.models.timeline) == 24
    assert "1 newer step not compared" in view.numbers.text()


def test_parity_in_one_action(desk: Desk) -> None:
    desk.run(PRESETS["paged"].spec)
    desk.window.arrange("inspect")
    desk.parity.compare_with("uncached")
    desk.window.actions_["truth.parity"].trigger()
    assert desk.window.docks.layout_name == "truth"
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    report = desk.models.measurements.parity.answer
    assert report is not None
    assert report.verdict == "within rounding"
    assert desk.parity.verdict.text() == "Within rounding: Paged against no cache"
    assert "top-1 7 of 7, steps 0 … 6" in desk.parity.numbers.text()
    assert not desk.parity.place.isEnabled()
    desk.intents.on_step()
    desk.until(lambda: desk.controller.is_idle and len(desk.models.timeline) == 8)
    desk.until(lambda: "1 newer step not compared" in desk.parity.numbers.text())


def test_parity_of_a_fork_takes_in_what_it_was_forked_from(desk: Desk) -> None:
    desk.run(CacheSpec())
    (parent,) = desk.models.timeline.sequence_ids()
    desk.intents.send(Fork(parent))
    desk.until(lambda: desk.controller.is_idle and len(desk.models.timeline.sequence_ids()) == 2)
    desk.intents.on_step()
    desk.until(lambda: desk.controller.is_idle and len(desk.models.timeline) == 8)
    desk.models.selection.update(seq_id=desk.models.timeline.sequence_ids()[-1])
    check_parity(desk)
    assert desk.parity.verdict.text() == "Within rounding: Growing against no cache"
    assert "top-1 8 of 8, steps 0 … 7" in desk.parity.numbers.text()


def test_a_lossless_mode_is_not_called_lossy_for_the_steps_of_the_mode_before_it(desk: Desk) -> None:
    desk.run(PRESETS["int8"].spec)
    desk.intents.send(SetCache(CacheSpec()))
    desk.until(lambda: desk.controller.is_idle and desk.models.timeline.is_before_change)
    desk.intents.on_step()
    desk.until(lambda: desk.controller.is_idle and len(desk.models.timeline) == 8)
    check_parity(desk)
    assert desk.parity.verdict.text() == "Lossy, so it differs: Growing, and lossy modes before it, against no cache"


def test_parity_of_a_few_steps_says_how_few(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    put = BoundedLog.put

    def put_alone(log: BoundedLog, *entry: Any) -> None:
        log.clear()
        put(log, *entry)

    monkeypatch.setattr(BoundedLog, "put", put_alone)  # no room but for the newest logits
    desk.run(CacheSpec())
    check_parity(desk)
    assert desk.parity.verdict.text() == "Within rounding at 1 of 7 steps: Growing against no cache"
    assert "top-1 1 of 1, step 6 alone" in desk.parity.numbers.text()


def check_parity(desk: Desk) -> None:
    desk.parity.compare_with("uncached")
    desk.parity.measure()
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    desk.wait_until_idle()


def test_parity_against_another_mode_names_the_first_row_and_selects_it(desk: Desk) -> None:
    desk.run(CacheSpec())
    desk.parity.compare_with("kivi-2")
    desk.parity.compare_with("int8")
    desk.parity.measure()
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    report = desk.models.measurements.parity.answer
    assert report is not None
    assert report.request.against == PRESETS["int8"].spec
    assert desk.parity.verdict.text() == "Lossy, so it differs: Growing against INT8"
    assert "layer 0, K, token 0" in desk.parity.place.text()
    desk.models.selection.update(layer=3, position=9)
    desk.parity.place.click()
    now = desk.models.selection.now
    assert (now.layer, now.lens, now.position) == (0, "keys", 0)


def test_a_dot_of_the_plot_is_a_step(desk: Desk) -> None:
    desk.run(CacheSpec())
    desk.parity.compare_with("uncached")
    desk.parity.measure()
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    plot = desk.parity.plot
    assert plot.note.text() == "rounding, float32: up to 0.001", "words stand above the points, not over them"
    frame = plot.canvas.frame
    click(plot.canvas.viewport(), frame.x_of(2.2), frame.rect.center().y())
    assert desk.models.selection.now.step == 2
    assert plot.words.text().startswith("step 2 ·")
    click(plot.canvas.viewport(), frame.x_of(6.0), frame.rect.center().y())
    assert desk.models.selection.now.step is None, "the newest step is the live one"
    desk.parity.choose("kl")
    assert desk.parity.plot.title.text() == "KL, nats"


def test_parity_can_be_stopped(desk: Desk) -> None:
    desk.run(CacheSpec(), steps=40)
    desk.parity.compare_with("allocated")
    desk.parity.measure()
    desk.until(lambda: desk.parity.measurement.work(desk.models.status.now.work))
    assert desk.parity.button.text().startswith("Stop")
    desk.parity.button.click()
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    assert desk.models.measurements.parity.answer is None
    assert desk.parity.button.text() == "Check"
    assert not desk.models.status.failure


def test_what_parity_is_checked_against_can_be_seen_side_by_side(
    two: Shell, view: ParityView, engine: FakeEngine
) -> None:
    view.compare_with("int8")
    view.compare_side_by_side()
    assert two.window.docks.layout_name == "compare"
    (asked,) = engine.of(StartComparison)
    assert isinstance(asked, StartComparison)
    assert asked.against == OtherRun(cache_preset("int8").spec)
