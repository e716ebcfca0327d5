"""Scores of dropped and of kept rows on one axis."""

from __future__ import annotations

import numpy as np
import pytest

from app.kit.chart import Chart, Curve, Dots, ShadedSpan
from app.panels.evicted import page_of, protected, rank_chart, rank_of, regret_chart
from engine.spec.cache import PRESETS
from engine.wire.measurements import MeasureRegret, Regret
from engine.wire.records import Eviction, Survivors


def drop(layer: int, head: int | None, positions: list[int], scores: list[float], kept: list[float]) -> Eviction:
    quantiles = np.array(kept, np.float32)
    return Eviction(
        0, layer, head, np.array(positions), np.array(scores, np.float32), kept[0] if kept else None, "a rule",
        Survivors(len(kept), 3, quantiles),
    )  # fmt: skip


def went(chart: Chart) -> Dots:
    return next(mark for mark in chart.marks if isinstance(mark, Dots))


def test_scores_stand_on_one_line_and_dots_do_not_cover_each_other() -> None:
    chart = rank_chart(drop(0, 0, [1, 2, 3], [0.0, 0.001, 0.5], [0.6, 1.0]), 3)
    gone, chosen = (mark for mark in chart.marks if isinstance(mark, Dots))
    assert gone.x.tolist() == pytest.approx([0, 0.001, 0.5])
    assert gone.y.tolist() == pytest.approx([0.6, 1.6, 0.6])
    assert chosen.x.tolist() == [0.5]
    assert chart.keys == [1, 2, 3]
    kept = [mark.x.tolist() for mark in chart.marks if isinstance(mark, Curve)]
    assert kept == [pytest.approx([0.6, 0.6]), [1.0, 1.0]]
    assert chart.home[0] == (-0.03, 1.03)
    (span,) = (mark for mark in chart.marks if isinstance(mark, ShadedSpan))
    assert (span.low, span.high, span.name) == (0.0, pytest.approx(0.6), "lowest kept")
    alone = rank_chart(drop(0, 0, [1], [float("-inf")], []), None)
    assert np.isfinite(went(alone).x).all()
    assert not [mark for mark in alone.marks if isinstance(mark, ShadedSpan)]
    beyond = rank_chart(drop(0, 0, [1, 2, 3, 4], [-np.inf, np.nan, np.inf, 0.5], [0.75, 1.0]), None)
    assert went(beyond).x.tolist() == [0.5, 0.5, 1.0, 0.5]


def test_equal_scores_share_a_place() -> None:
    assert rank_of(drop(0, 0, [1, 4], [0.3, 0.1], []), 1) == 2
    assert rank_of(drop(0, 0, [1, 4], [0.3, 0.1], []), 2) is None
    alike = drop(0, 0, [1, 4, 6], [0.1, 0.1, 0.3], [])
    assert [rank_of(alike, position) for position in (1, 4, 6)] == [1, 1, 3]


def measured(kl: list[float], scores: list[float], name: str = "tova", page_size: int = 1) -> Regret:
    positions = np.arange(len(kl)) * page_size
    request = MeasureRegret(0, PRESETS[name].spec, page_size)
    return Regret(request, 3, positions, np.array(kl), np.array(scores), 0.5, 1.0)


def test_protected_rows_do_not_count_as_mistakes_of_a_rule() -> None:
    kl = [1e-6] * 18 + [0.5, 0.5]
    scores = [0.5 + i / 40 for i in range(18)] + [0.01, 0.02]
    _, _, missed = (mark for mark in regret_chart(measured(kl, scores), 21, None).marks if isinstance(mark, Dots))
    assert missed.x.tolist() == pytest.approx([0.0, 0.01 / 0.915], abs=1e-6), "TOVA protects the newest row alone"
    assert missed.symbol == "s"
    h2o = measured(kl, scores, "h2o")
    assert protected(h2o, 21).tolist() == [False] * 11 + [True] * 9
    chart = regret_chart(h2o, 21, None)
    kept, plain, missed = (mark for mark in chart.marks if isinstance(mark, Dots))
    assert (len(kept.x), len(plain.x), len(missed.x)) == (9, 11, 0)
    assert chart.points[:, 0].min() == 0
    assert chart.points[:, 0].max() == 1


def test_the_page_of_a_position() -> None:
    pages = measured([0.1, 0.1, 0.1], [0.0, 0.5, 1.0], page_size=8)
    assert [page_of(pages, position) for position in (0, 7, 8, 23, 24)] == [0, 0, 1, 2, None]
