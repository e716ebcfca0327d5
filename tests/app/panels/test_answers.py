"""Answers to measurements: what an older question, another cache or another sequence gave is shown by no panel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtGui import QImage

from app.shell import Shell
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_preset
from engine.wire.commands import CheckParity, MapDamage, MeasureRegret, WhatIf
from engine.wire.records import (
    CacheChanged,
    Candidate,
    DamageMap,
    ParityReport,
    Regret,
    SequenceInfo,
    Shift,
    StateChanged,
    TensorDamage,
    WhatIfAnswer,
)
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

H2O = cache_preset("h2o").spec
LAYERS, HEADS, KV_HEADS, DIM = samples.LAYERS, samples.HEADS, samples.KV_HEADS, samples.HEAD_DIM


def what_if(request: WhatIf, kl: float) -> WhatIfAnswer:
    listed = (Candidate(7, " cat", -1.0, 0.4, 0.0),)
    shifts = (Shift(7, " cat", 0.6, 0.4, 0, 0),)
    return WhatIfAnswer(request, 20, kl, 1.5, False, listed, listed, 0.5, 4096, 1024, 3.0, "", shifts)


def parity(request: CheckParity, kl: float) -> ParityReport:
    steps, ones = np.arange(21), np.ones(21, np.int64)
    differences = np.full(21, kl, np.float32)
    return ParityReport(
        request, CacheSpec(), "float32", steps, steps + 3, differences, differences, ones, 0 * ones, 1e-3,
        "departs", 2, "values", 7, 12.0,
    )  # fmt: skip


def damage(request: MapDamage, kl: float) -> DamageMap:
    tokens = np.full((LAYERS, KV_HEADS, 23), min(kl, 1), np.float32)
    channels = np.full((LAYERS, KV_HEADS, DIM), min(kl, 1), np.float32)
    heads = np.full((LAYERS, KV_HEADS), 0.5, np.float32)
    tensor = TensorDamage(tokens, channels, heads, heads)
    by_layer = np.full(LAYERS, kl, np.float32)
    attention = np.full((LAYERS, HEADS), 0.1, np.float32)
    return DamageMap(
        request, tuple(range(LAYERS)), tensor, tensor, 1, attention, kl, by_layer, 4096, 1024, (), None, None, None,
        9.0, 20, 23,
    )  # fmt: skip


def regret(request: MeasureRegret, kl: float) -> Regret:
    rows = np.arange(23)
    return Regret(request, 20, rows, np.linspace(0, kl, 23), np.linspace(0, 1, 23), 0.5, 1.0)


Answer = Callable[[Any, float], Any]
# The panel, the question about a sequence as the panel asks it, and an answer with one number of ours.
KINDS: dict[str, tuple[type, Answer]] = {
    "what_if": (WhatIf, what_if),
    "parity": (CheckParity, parity),
    "damage": (MapDamage, damage),
    "evicted": (MeasureRegret, regret),
}


@pytest.fixture
def two(running: Shell, engine: FakeEngine) -> Shell:
    """Two sequences, a cache that drops rows, and the panels that measure in sight; nothing is answered by itself."""
    infos = tuple(SequenceInfo(seq_id, "decode", 24, 4, 11, None) for seq_id in (0, 1))
    record = samples.step_record(21)
    own = replace(record.sequences[0], num_tokens=24)
    other = replace(own, seq_id=1, first_position=0, phase="prefill", token_ids=tuple(range(24)))
    other = replace(other, texts=("x",) * 24, surprisal=(None,) * 24)
    engine.emit(replace(record, sequences=(replace(own, token_ids=(5,), texts=("y",)), other)))
    engine.emit(StateChanged(replace(engine.status, sequences=infos, step=21)))
    running.window.resize(1800, 1300)
    running.window.arrange("truth")
    running.window.timeline.setFocus()
    turn(running)
    engine.is_silent = True
    return running


def question(shell: Shell, engine: FakeEngine, name: str) -> Any:
    """What the panel sends when it is told to measure."""
    kind, _ = KINDS[name]
    before = len(engine.of(kind))
    panel = shell.window.panels[name]
    asked = {
        "what_if": lambda: WhatIf(0, shell.models.selection.now.seq_id, H2O),
        "parity": lambda: CheckParity(0, shell.models.selection.now.seq_id),
        "damage": lambda: MapDamage(0, shell.models.selection.now.seq_id, panel.codec()),  # type: ignore[attr-defined]
        "evicted": lambda: MeasureRegret(0, shell.models.selection.now.seq_id, H2O),
    }[name]()
    panel.asked.emit(asked)  # type: ignore[attr-defined]
    turn(shell)
    assert len(engine.of(kind)) > before
    return engine.of(kind)[-1]


def measurement(shell: Shell, name: str) -> Any:
    return getattr(shell.models.measurements, {"evicted": "regret"}.get(name, name))


def answered(shell: Shell, engine: FakeEngine, name: str, request: Any, number: float) -> None:
    engine.emit(KINDS[name][1](request, number))
    turn(shell)


@pytest.mark.parametrize("name", KINDS)
def test_only_the_newest_question_is_answered(two: Shell, engine: FakeEngine, name: str) -> None:
    first, second = question(two, engine, name), question(two, engine, name)
    answered(two, engine, name, first, 0.25)
    assert measurement(two, name).answer is None
    assert measurement(two, name).is_waiting
    answered(two, engine, name, second, 0.5)
    assert measurement(two, name).answer.request == second


@pytest.mark.parametrize("name", KINDS)
def test_an_answer_about_a_cache_that_is_gone_is_nobodys(two: Shell, engine: FakeEngine, name: str) -> None:
    asked = question(two, engine, name)
    engine.emit(CacheChanged(H2O, "computed anew", 1.0, samples.cache_bytes(23)))
    turn(two)
    answered(two, engine, name, asked, 0.25)
    assert measurement(two, name).answer is None


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
        own = panel.grab_picture()
        two.models.selection.update(seq_id=1)
        turn(two)
        return own, panel.grab_picture()

    shown(3.0)  # what is wide enough for the widest number stays so
    (small, none), (large, still_none) = shown(0.25), shown(2.0)
    assert small != large
    assert none == still_none
