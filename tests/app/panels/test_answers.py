"""Answers to measurements: no panel shows the answer to an older question, of another cache or of another sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from PySide6.QtGui import QImage

from app.shell import Shell
from engine.spec.cache import cache_preset
from engine.wire.events import CacheChanged
from engine.wire.measurements import CheckParity, MapDamage, MeasureRegret, WhatIf
from tests.app import samples
from tests.app.answers import damage, parity, regret, what_if
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

H2O = cache_preset("h2o").spec

Answer = Callable[[Any, float], Any]
# The panel, the question about a sequence as the panel asks it, and an answer with one number of ours.
KINDS: dict[str, tuple[type, Answer]] = {
    "what_if": (WhatIf, what_if),
    "parity": (CheckParity, parity),
    "damage": (MapDamage, damage),
    "evicted": (MeasureRegret, regret),
}


def question(shell: Shell, engine: FakeEngine, name: str) -> Any:
    """What the panel sends when it is told to measure."""
    kind, _ = KINDS[name]
    before = len(engine.of(kind))
    panel = shell.window.panels[name]
    asked = {
        "what_if": lambda: WhatIf(shell.models.selection.now.seq_id, H2O),
        "parity": lambda: CheckParity(shell.models.selection.now.seq_id),
        "damage": lambda: MapDamage(shell.models.selection.now.seq_id, panel.controls.codec()),  # type: ignore[attr-defined]
        "evicted": lambda: MeasureRegret(shell.models.selection.now.seq_id, H2O),
    }[name]()
    panel.wants.emit(asked)
    turn(shell)
    assert len(engine.of(kind)) > before
    return engine.of(kind)[-1]


def measurement(shell: Shell, name: str) -> Any:
    return getattr(shell.models.measurements, {"evicted": "regret"}.get(name, name))


def answered(shell: Shell, engine: FakeEngine, name: str, request: Any, number: float) -> None:
    engine.answer(KINDS[name][1](request, number))
    turn(shell)


def test_only_the_newest_question_is_answered(two: Shell, engine: FakeEngine) -> None:
    for name in KINDS:
        first, second = question(two, engine, name), question(two, engine, name)
        answered(two, engine, name, first, 0.25)
        assert measurement(two, name).answer is None, name
        assert measurement(two, name).is_waiting, name
        answered(two, engine, name, second, 0.5)
        assert measurement(two, name).answer.request == second, name


def test_an_answer_about_a_replaced_cache_is_not_shown(two: Shell, engine: FakeEngine) -> None:
    for name in KINDS:
        asked = question(two, engine, name)
        engine.emit(CacheChanged(H2O, "computed anew", 1.0, samples.cache_bytes(23)))
        turn(two)
        answered(two, engine, name, asked, 0.25)
        assert measurement(two, name).answer is None, name


@pytest.mark.parametrize("name", KINDS)
def test_what_was_measured_on_one_sequence_is_shown_for_no_other(two: Shell, engine: FakeEngine, name: str) -> None:
    """Two answers that differ leave the same picture once the other sequence is selected."""
    panel = two.window.panels[name]
    if name == "evicted":
        panel.choose("regret")  # type: ignore[attr-defined]

    def shown(number: float) -> tuple[QImage, QImage]:
        two.models.selection.update(seq_id=0)
        turn(two)
        answered(two, engine, name, question(two, engine, name), number)
        own = panel.frame.grab().toImage()
        two.models.selection.update(seq_id=1)
        turn(two)
        return own, panel.frame.grab().toImage()

    shown(3.0)  # widths that have grown for the widest number stay
    (small, none), (large, still_none) = shown(0.25), shown(2.0)
    assert small != large
    assert none == still_none
