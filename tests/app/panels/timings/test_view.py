"""Step times: bars lead to their steps, and each phase has its own number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.timings import TimingsView, inside_words
from engine.spec.cache import PRESETS
from engine.wire.records import LayerTimes, StepRecord, Timings
from tests.app import samples
from tests.app.panels.recorded import STEPS, recorded_models


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return recorded_models()


def test_clicking_a_bar_looks_at_its_step_and_the_last_one_is_live(
    models: Models, show: Callable[..., Any], qtbot: QtBot
) -> None:
    view = show(TimingsView(models))
    frame, surface = view.plot.canvas.frame, view.plot.canvas.viewport()
    qtbot.mouseClick(surface, Qt.MouseButton.LeftButton, pos=QPoint(round(frame.x_of(12.2)), 60))
    assert models.selection.now.step == 12
    qtbot.mouseClick(surface, Qt.MouseButton.LeftButton, pos=QPoint(round(frame.x_of(STEPS)), 60))
    assert models.selection.now.step is None


def test_times_are_read_once_and_again_after_a_rewind(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    view = show(TimingsView(models))
    models.timeline.append([samples.step_record(step) for step in range(STEPS + 1, STEPS + 400)])
    models.timeline.announce()
    chart = view.plot.canvas.chart
    assert chart.points[:, 0].tolist() == list(range(STEPS + 400))
    (high,) = {chart.home[1][1]}
    expected = [min(record.timings.total_ms, high) for record in models.timeline.records]
    assert chart.points[:, 1].tolist() == pytest.approx(expected, rel=1e-5)
    models.timeline.go_to(3)
    models.timeline.append([samples.step_record(4)])
    models.timeline.announce()
    assert view.plot.canvas.chart.points[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert "measuring" in view.key.accessibleName().split(", ")[3]


def test_the_phases_of_a_step_each_have_their_own_number(models: Models, show: Callable[..., Any]) -> None:
    last = models.timeline.latest
    assert last is not None
    times = replace(last.timings, forward_ms=5.0, prepare_ms=1.5, sample_ms=0.25, observe_ms=2.0)
    models.timeline.append([replace(last, step=STEPS + 1, timings=times)])
    view = show(TimingsView(models))
    words = f"step {STEPS + 1}: forward 5.00 ms, prepare 1.50 ms, sample 0.25 ms, measuring 2.00 ms"
    assert view.plot.toolTip().splitlines()[0] == words
    hidden = "the cache takes little of it"
    assert view.plot.words.text() == f"step {STEPS + 1} · decode · 8.75 ms · {hidden}"
    models.timeline.append([replace(last, step=STEPS + 2, timings=times, runner="fused+transformers")])
    models.timeline.announce()
    assert view.plot.words.text() == f"step {STEPS + 2} · decode · 8.75 ms · fused decoder + transformers · {hidden}"
    assert "forward 5.00 ms by fused decoder + transformers, prepare" in view.plot.toolTip()
    models.timeline.append([replace(last, step=STEPS + 3, timings=replace(times, compile_ms=24100.0))])
    models.timeline.announce()
    assert view.plot.words.text() == f"step {STEPS + 3} · decode · 8.75 ms · compiled before, 24.1 s · {hidden}"
    told = "; the step was compiled in 24.1 s, which is in none of these"
    assert view.plot.toolTip().splitlines()[0].endswith(told)


def test_what_a_forward_was_made_of_is_told_and_when_the_cache_is_hidden() -> None:
    def words(attention: float, cache: float) -> str:
        layers = LayerTimes((0, 1), (attention, 0.0), (cache, cache), (0.0, 0.0), (0.0, 0.0), 6.0)
        return inside_words(Timings(0.0, 10.0, 0.0, 0.0, layers=layers))

    assert words(0.5, 0.25).splitlines() == [
        "inside the forward: attention 0.50 ms; cache 0.50 ms; matrix products 6.00 ms, measured by themselves; "
        "the rest 3.00 ms, which are fixed costs",
        "Attention and the cache are 10.0 % of this forward: with a model and a context of this size, products and "
        "fixed costs hide what the cache saves",
    ]
    assert "hide" not in words(3.0, 0.5)


def test_the_cache_is_told_as_hidden_by_what_reading_it_takes_at_most(models: Models, show: Callable[..., Any]) -> None:
    last = models.timeline.latest
    assert last is not None
    (layer,) = last.num_bytes.layers[:1]
    held = replace(last.num_bytes, layers=(replace(layer, stored=2_000_000),))  # a millisecond's reading
    slow, quick = (replace(last.timings, forward_ms=forward) for forward in (10.0, 4.0))
    view = show(TimingsView(models))

    def told(record: StepRecord) -> tuple[str, str]:
        models.timeline.append([record])
        models.timeline.announce()
        return view.plot.words.text(), view.plot.toolTip()

    record = replace(last, step=STEPS + 1, num_bytes=held, timings=slow)
    words, tip = told(record)
    assert words.endswith("· the cache takes little of it")
    assert tip.splitlines()[1].startswith(
        "K and V take 1.9 MiB: at 2 GB a second, a speed that is assumed and that slow memory has too, reading them "
        "takes 10.0 % of this forward."
    )
    others = (
        {"timings": quick},  # a quarter of it
        {"phase": "prefill"},
        {"cache": PRESETS["int8"].spec},  # to decode its rows takes longer than to read them
        {"cache": PRESETS["none"].spec},
        {"num_bytes": replace(held, layers=())},
    )
    for number, other in enumerate(others, STEPS + 2):
        words, tip = told(replace(record, step=number, **other))
        assert "hidden" not in words
        assert "hide" not in tip
