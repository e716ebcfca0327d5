"""Regret as points: what a rule would have dropped, what it protects, and the page of a position."""

from __future__ import annotations

import numpy as np

from app.panels.evicted import regret_draw as regret
from engine.spec.presets import PRESETS
from engine.wire.measurements import Regret
from engine.wire.measuring import MeasureRegret


def measured(kl: list[float], scores: list[float], name: str = "tova", page_size: int = 1) -> Regret:
    positions = np.arange(len(kl)) * page_size
    request = MeasureRegret(0, PRESETS[name].spec, page_size)
    return Regret(request, 3, positions, np.array(kl), np.array(scores), 0.5, 1.0)


def test_rows_that_a_rule_never_drops_are_no_mistake_of_it() -> None:
    kl = [1e-6] * 18 + [0.5, 0.5]
    scores = [0.5 + i / 40 for i in range(18)] + [0.01, 0.02]
    found = regret.scatter(measured(kl, scores), 21)
    assert found.is_missed.tolist() == [False] * 18 + [True, True], "TOVA protects the newest row alone"
    found = regret.scatter(measured(kl, scores, "h2o"), 21)
    assert found.is_protected.tolist() == [False] * 11 + [True] * 9
    assert not found.is_missed.any()
    assert (found.x >= 0).all()
    assert (found.x <= 1).all()


def test_the_page_of_a_position() -> None:
    pages = measured([0.1, 0.1, 0.1], [0.0, 0.5, 1.0], page_size=8)
    assert [regret.page_of(pages, position) for position in (0, 7, 8, 23, 24)] == [0, 0, 1, 2, None]
