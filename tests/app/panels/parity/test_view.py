"""The parity panel: what it asks to be compared with, and how loud its verdict is."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace

from app.kit.theme import current_theme
from app.panels.parity.view import ParityView
from app.shell import Shell
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_preset
from engine.spec.tuning import tuned
from engine.wire.commands import CheckParity
from engine.wire.events import StateChanged
from tests.app.answers import parity
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


@pytest.fixture
def view(two: Shell) -> ParityView:
    panel = two.window.panels["parity"]
    assert isinstance(panel, ParityView)
    return panel


@pytest.mark.parametrize(
    ("verdict", "words", "role"),
    [
        ("within rounding", "Within rounding", "good"),
        ("lossy, as asked", "Lossy, as asked", "warning"),
        ("departs", "Departs", "bad"),
    ],
)
def test_a_verdict_has_its_colour(
    two: Shell,
    view: ParityView,
    engine: FakeEngine,
    verdict: Literal["within rounding", "lossy, as asked", "departs"],
    words: str,
    role: str,
) -> None:
    view.ask()
    engine.answer(replace(parity(engine.of(CheckParity)[-1], 0.5), verdict=verdict))  # type: ignore[arg-type]
    turn(two)
    assert view.verdict.text().startswith(words)
    shown = view.verdict.palette().color(view.verdict.foregroundRole()).name()
    assert shown == getattr(current_theme(), role)


def test_a_comparison_with_the_mode_in_use_keeps_its_parameters(
    two: Shell, view: ParityView, engine: FakeEngine
) -> None:
    mine = tuned(cache_preset("h2o").spec, budget=20)
    engine.emit(StateChanged(replace(engine.status, cache=mine)))
    turn(two)
    for name, wanted in {"h2o": mine, "tova": cache_preset("tova").spec, "uncached": None}.items():
        view.compare_with(name)
        view.ask()
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
    view.ask()
    engine.answer(parity(engine.of(CheckParity)[-1], 0.5))  # type: ignore[arg-type]
    turn(two)
    two.models.selection.update(change=True, step=3, tensor="keys", layer=0, position=None)
    view.place.click()
    now = two.models.selection.now
    assert (now.layer, now.tensor, now.position, now.change, now.step) == (2, "values", 7, False, None)


def test_a_dot_looks_at_its_step_and_the_newest_is_live(two: Shell, view: ParityView, engine: FakeEngine) -> None:
    view.ask()
    engine.answer(parity(engine.of(CheckParity)[-1], 0.5))  # type: ignore[arg-type]
    turn(two)
    view._on_picked(4)
    assert two.models.selection.now.step == 4
    two.models.timeline.rewind(20)  # the newest that was compared is the newest there is
    view._on_picked(20)
    assert two.models.selection.now.step is None
