"""Parity as points: a departing step is never hidden behind others."""

from __future__ import annotations

import numpy as np

from app.draw.axis import DEPARTS, LOSSY, WITHIN
from app.kit.chart import Dots
from app.panels import parity
from app.panels.parity import parity_chart
from engine.spec.cache import CacheSpec
from engine.wire.measurements import CheckParity, ParityReport


def report(differences: list[float], may_differ: list[int] | None = None) -> ParityReport:
    count = len(differences)
    values = np.array(differences, np.float32)
    return ParityReport(
        request=CheckParity(0), cache=CacheSpec(), dtype="float32", steps=np.arange(count),
        positions=np.arange(count), max_abs_logit_diff=values, kl=values / 10,
        top1_agrees=np.array([int(d < 1) for d in differences]),
        may_differ=np.array(may_differ if may_differ is not None else [0] * count), tolerance=1e-3,
        verdict="departs", layer=None, tensor=None, position=None, took_ms=1.0,
    )  # fmt: skip


def test_each_step_is_a_point_and_says_whether_it_may_differ() -> None:
    found = parity.points(report([1e-6, 0.5, 2.0], [0, 1, 0]), "logits")
    assert found.kinds.tolist() == [WITHIN, LOSSY, DEPARTS]
    assert found.disagrees.tolist() == [False, False, True]
    assert found.x.tolist() == [0, 1, 2]
    assert (np.diff(found.y) > 0).all()


def test_one_departure_among_thousands_of_steps_is_drawn_last_and_square() -> None:
    differences = [1e-6] * 5000
    differences[3210] = float("inf")
    chart = parity_chart(report(differences), "logits", None)
    dots = [mark for mark in chart.marks if isinstance(mark, Dots)]
    unjudged, within, lossy, departs, crosses = dots
    assert (len(unjudged.x), len(within.x), len(lossy.x)) == (0, 4999, 0)
    assert (departs.x.tolist(), departs.y.tolist(), departs.symbol, departs.role) == ([3210], [1.0], "s", "bad")
    assert (crosses.x.tolist(), crosses.symbol) == ([3210], "x")
    assert parity.kinds(report([float("nan")])).tolist() == [DEPARTS]


def test_a_report_of_nothing_draws_nothing() -> None:
    assert len(parity.points(report([]), "kl").x) == 0
    assert len(parity_chart(report([]), "kl", None).points) == 0
