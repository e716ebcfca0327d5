"""Answers and refusals on their way to the measurement that they belong to."""

from __future__ import annotations

from typing import cast

from app.control.controller import Controller
from app.models import Models
from app.models.measurement import MeasurementState
from engine.spec.cache import PRESETS, CacheSpec
from engine.wire.events import Failed
from engine.wire.measurements import MapDamage, WhatIf
from tests.app.fake_engine import FakeEngine


def test_the_refusal_of_an_older_question_is_nobodys(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    engine.is_silent = True
    what_if = models.measurements.what_if
    for _ in range(2):
        stepped.intents.send(WhatIf(0, CacheSpec()))
    older, newer = (cast(WhatIf, question).id for question in engine.of(WhatIf))
    engine.emit(Failed("Step once, then try it.", reply_to=older))
    stepped.tick()
    assert (what_if.state, what_if.refusal, models.status.failure) == (MeasurementState.WAITING, "", "")
    stepped.intents.send(MapDamage(0, PRESETS["int8"].spec.codec))
    engine.emit(Failed("Rows were dropped.", reply_to=newer))
    stepped.tick()
    assert (what_if.state, what_if.refusal, models.status.failure) == (
        MeasurementState.REFUSED,
        "Rows were dropped.",
        "",
    )
    assert models.measurements.damage.is_waiting
