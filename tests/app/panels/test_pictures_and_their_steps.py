"""A panel that the run has left behind names its step, in words, by its dot and as the counter writes it."""

from __future__ import annotations

import re

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication

from app.kit.theme import DARK
from app.kit.widgets import DotLabel
from app.shell import Shell
from engine.wire.events import StateChanged
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.panels.conftest import STEPS


def steps_shown(shell: Shell) -> dict[str, int]:
    """The step that each part of the window shows at present."""
    window = shell.window
    tokens = window.tokens.canvas.chips.tokens
    panels = {name: window.panels[name] for name in ("inspector", "next_token", "timings", "bytes")}
    said = {name: re.search(r"step ([\d,]+)", panel.provenance_label.whole) for name, panel in panels.items()}
    return {
        "counter": int(window.top.counter.state.shown.replace(",", "")),
        "timeline": window.timeline.state.latest.step,
        "tokens": tokens[-1].step,
        **{name: int(found[1].replace(",", "")) for name, found in said.items() if found},
    }


def test_what_the_counter_has_left_behind_says_which_step_it_shows(fresh: Shell, engine: FakeEngine) -> None:
    """While the engine runs, tokens, counter and timeline move several times a second; words and numbers less often."""
    moving = ("counter", "timeline", "tokens")
    panels = [fresh.window.panels[name].provenance_label for name in ("inspector", "next_token", "timings", "bytes")]
    engine.is_silent = True
    running = StateChanged(samples.status(STEPS, num_tokens=STEPS + 4, running=True))
    engine.emit(running)
    fresh.controller.tick()
    for step in range(STEPS + 1, STEPS + 30):
        engine.emit(samples.step_record(step), running)
        fresh.controller.tick(with_words=False)  # no words yet
    QApplication.processEvents()
    shown = steps_shown(fresh)
    assert [shown[name] for name in moving] == [STEPS + 29] * 3
    assert {shown[name] for name in shown if name not in moving} == {STEPS}
    assert {panel.text for panel in panels} == {f"recorded · step {STEPS}"}
    assert {panel.kind for panel in panels} == {"past"}
    fresh.controller.tick()
    assert set(steps_shown(fresh).values()) == {STEPS + 29}
    engine.emit(samples.step_record(STEPS + 30), StateChanged(samples.status(STEPS + 30, num_tokens=STEPS + 34)))
    fresh.controller.tick()
    assert {panel.text for panel in panels} == {"recorded"}, "at rest all are of now"
    assert {panel.kind for panel in panels} == {"recorded"}


def dot(label: DotLabel) -> tuple[str, str]:
    """The colours of the middle and of the rim of a label's dot."""
    image: QImage = label.grab().toImage()
    middle = image.height() // 2
    rims = (image.pixelColor(x, middle).name() for x in range(1, 3))
    return image.pixelColor(4, middle).name(), next(name for name in rims if name != DARK.title_strip)


def test_a_dot_that_stands_alone_is_a_ring_where_the_picture_is_not_of_now(fresh: Shell) -> None:
    label = fresh.window.attention.provenance_label
    assert dot(label)[0] == DARK.good
    assert label.accessibleName() == "live cache"
    fresh.models.selection.update(step=7)
    turn(fresh)
    middle, rim = dot(label)
    assert middle == DARK.title_strip
    assert rim != DARK.title_strip
    assert "step 7" in label.accessibleName()
    assert "looking back" in label.accessibleName()
    fresh.models.selection.update(step=8)
    turn(fresh)
    assert "step 8" in label.accessibleName()  # the same words and dot, another step
    fresh.models.selection.update(step=None)
    turn(fresh)
    assert dot(label)[0] == DARK.good
    assert label.accessibleName() == "live cache"


@pytest.mark.parametrize("fresh", [(1600, 1000)], indirect=True)
def test_steps_beyond_a_thousand_are_written_as_the_counter_writes_them(fresh: Shell, engine: FakeEngine) -> None:
    engine.emit(*(samples.step_record(step) for step in range(STEPS + 1, 1_004)))
    engine.emit(StateChanged(samples.status(1_003, num_tokens=1_003 + samples.PROMPT)))
    turn(fresh)
    window = fresh.window
    assert window.top.counter.state.shown == "1,003"
    assert "step 1,003 ·" in window.inspector.facts.text()
    assert window.panels["timings"].plot.words.text().startswith("step 1,003 · ")
    assert window.head.provenance_label.whole.endswith("step 1,003")
