"""Scores of dropped and of kept rows on one axis."""

from __future__ import annotations

import numpy as np
import pytest

from app.kit.chart import Dots, ShadedSpan
from app.panels import evicted
from app.panels.evicted import rank_chart
from engine.spec.cache import PRESETS
from engine.wire.measurements import MeasureRegret, Regret
from engine.wire.records import Eviction, Survivors


def drop(layer: int, head: int | None, positions: list[int], scores: list[float], kept: list[float]) -> Eviction:
    quantiles = np.array(kept, np.float32)
    return Eviction(
        0, layer, head, np.array(positions), np.array(scores, np.float32), kept[0] if kept else None, "a rule",
        Survivors(len(kept), 3, quantiles),
    )  # fmt: skip


def test_scores_stand_on_one_line_and_dots_do_not_cover_each_other() -> None:
    found = evicted.ranks(drop(0, 0, [1, 2, 3], [0.0, 0.001, 0.5], [0.6, 1.0]), 0.06)
    assert found.victims.tolist() == pytest.approx([0, 0.001, 0.5])
    assert found.victim_heights.tolist() == [0, 1, 0]
    assert found.survivors.tolist() == pytest.approx([0.6, 1.0])
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.border == pytest.approx(0.6)
    alone = evicted.ranks(drop(0, 0, [1], [float("-inf")], []), 0.06)
    assert np.isfinite(alone.victims).all()
    assert alone.border is None
    chart = rank_chart(drop(0, 0, [1, 2, 3], [0.0, 0.001, 0.5], [0.6, 1.0]), 3)
    went, chosen = (mark for mark in chart.marks if isinstance(mark, Dots))
    assert went.y.tolist() == pytest.approx([0.6, 1.6, 0.6])
    assert chosen.x.tolist() == [0.5]
    (span,) = (mark for mark in chart.marks if isinstance(mark, ShadedSpan))
    assert (span.high, span.name) == (pytest.approx(0.6), "lowest kept")
    assert evicted.rank_of(drop(0, 0, [1, 4], [0.3, 0.1], []), 1) == 2
    assert evicted.rank_of(drop(0, 0, [1, 4], [0.3, 0.1], []), 2) is None
    alike = drop(0, 0, [1, 4, 6], [0.1, 0.1, 0.3], [])
    assert [evicted.rank_of(alike, position) for position in (1, 4, 6)] == [1, 1, 3], "equal scores share a place"
    beyond = evicted.ranks(drop(0, 0, [1, 2, 3, 4], [-np.inf, np.nan, np.inf, 0.5], [0.75, 1.0]), 0.06)
    assert beyond.victims.tolist() == [0.5, 0.5, 1.0, 0.5]


def measured(kl: list[float], scores: list[float], name: str = "tova", page_size: int = 1) -> Regret:
    positions = np.arange(len(kl)) * page_size
    request = MeasureRegret(0, PRESETS[name].spec, page_size)
    return Regret(request, 3, positions, np.array(kl), np.array(scores), 0.5, 1.0)


def test_protected_rows_do_not_count_as_mistakes_of_a_rule() -> None:
    kl = [1e-6] * 18 + [0.5, 0.5]
    scores = [0.5 + i / 40 for i in range(18)] + [0.01, 0.02]
    found = evicted.scatter(measured(kl, scores), 21)
    assert found.is_missed.tolist() == [False] * 18 + [True, True], "TOVA protects the newest row alone"
    found = evicted.scatter(measured(kl, scores, "h2o"), 21)
    assert found.is_protected.tolist() == [False] * 11 + [True] * 9
    assert not found.is_missed.any()
    assert (found.x >= 0).all()
    assert (found.x <= 1).all()


def test_the_page_of_a_position() -> None:
    pages = measured([0.1, 0.1, 0.1], [0.0, 0.5, 1.0], page_size=8)
    assert [evicted.page_of(pages, position) for position in (0, 7, 8, 23, 24)] == [0, 0, 1, 2, None]
