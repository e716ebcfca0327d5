"""Parity, drops, regret and sweeps as numbers on a plot: what departs is never hidden, zero has a place, names fit."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF, QRectF

from app.draw import measured_rows, names
from app.draw.axis import ByteTicks, LinearTicks, Tick
from app.draw.scale import FLOOR, LogScale, log_scale
from app.draw.step_points import DEPARTS, LOSSY, WITHIN
from app.kit.chart.marks import Dots, Frame, Span
from app.kit.theme import DARK
from app.models.eviction_log import HELD, EvictionLog, drop_in, when_dropped
from app.panels.evicted import draw as evicted
from app.panels.evicted import regret_draw as regret
from app.panels.evicted.rank_chart import rank_chart
from app.panels.parity import draw as parity
from app.panels.parity.chart import parity_chart
from app.panels.sweep import draw as sweep
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS
from engine.wire.commands import CheckParity, MeasureRegret
from engine.wire.evictions import Eviction, Survivors
from engine.wire.measurements import ParityReport, Regret, SweepRow, Unavailable
from tests.app import samples

# ---- the axis ----------------------------------------------------------------------------------------------------


def test_zero_has_a_place_and_what_is_no_number_is_at_the_top() -> None:
    scale = LogScale(-4, 0)
    assert scale.at([0.0, 1e-9, 1e-4, 1.0, 50.0, np.inf, np.nan]).tolist() == pytest.approx([0, 0, FLOOR, 1, 1, 1, 1])
    assert (np.diff(scale.at(np.logspace(-4, 0, 50))) > 0).all()
    assert scale.ticks(9)[0] == Tick(0.0, "0")
    assert [tick.text for tick in scale.ticks(3)] == ["0", "1e-4", "1e-2", "1e0"]
    close = scale.ticks(9, float(scale.at(2e-2)), float(scale.at(0.6)))
    assert [tick.text for tick in close] == ["2e-2", "5e-2", "1e-1", "2e-1", "5e-1"], "one decade is named within"


def test_a_scale_takes_in_what_there_is_but_not_below_its_floor() -> None:
    scale = log_scale([3e-7, 20.0, 0.0, np.inf], -4, -1, -6)
    assert (scale.low, scale.high) == (-4, 2)
    assert log_scale([], -4, -1, -6) == LogScale(-4, -1)


def test_round_names_for_whatever_is_visible() -> None:
    assert [tick.at for tick in LinearTicks(str, least=1).ticks(5, -0.5, 12.5)] == [0, 5, 10]
    assert [tick.at for tick in LinearTicks(str, least=1).ticks(50, 2.6, 4.4)] == [3, 4]
    assert [tick.at for tick in LinearTicks(str, is_binary=True).ticks(4, 0, 3000)] == [0, 1024, 2048]
    assert [tick.text for tick in ByteTicks(str).ticks(9, 9.5, 12.2)] == ["1024", "2048", "4096"]
    assert [tick.text for tick in ByteTicks(str).ticks(4, 10.2, 10.9)] == ["1280", "1536", "1792"], "within a power"


# ---- parity ------------------------------------------------------------------------------------------------------


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
    within, lossy, departs, crosses = dots
    assert (len(within.x), len(lossy.x)) == (4999, 0)
    assert (departs.x.tolist(), departs.y.tolist(), departs.symbol, departs.role) == ([3210], [1.0], "s", "bad")
    assert (crosses.x.tolist(), crosses.symbol) == ([3210], "x")
    assert parity.kinds(report([float("nan")])).tolist() == [DEPARTS]


def test_a_report_of_nothing_draws_nothing() -> None:
    assert len(parity.points(report([]), "kl").x) == 0
    assert len(parity_chart(report([]), "kl", None).points) == 0


# ---- why evicted -------------------------------------------------------------------------------------------------


def drop(layer: int, head: int | None, positions: list[int], scores: list[float], kept: list[float]) -> Eviction:
    quantiles = np.array(kept, np.float32)
    return Eviction(
        0, layer, head, np.array(positions), np.array(scores, np.float32), kept[0] if kept else None, "a rule",
        Survivors(len(kept), 3, quantiles),
    )  # fmt: skip


H2O = PRESETS["h2o"].spec


def story() -> EvictionLog:
    records = [samples.step_record(step, cache=H2O) for step in range(4)]
    records[1] = replace(records[1], evictions=(drop(0, 0, [2, 5], [0.1, 0.3], [0.4, 0.9]), drop(0, 1, [2], [0.2], [])))
    records[3] = replace(records[3], evictions=(drop(1, None, [5], [0.5], [0.6]),))
    return EvictionLog().follow(records)


def test_heads_that_hold_it_are_told_from_those_that_do_not() -> None:
    drops = story()
    assert when_dropped(drops.of(0, 5, 3), (0, 1), 2).tolist() == [[1, HELD], [3, 3]]
    found = drop_in(drops.of(0, 5, 3), 1, 1)
    assert found is not None
    assert found.step == 3
    assert drop_in(drops.of(0, 5, 3), 0, 1) is None


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
    (span,) = (mark for mark in chart.marks if isinstance(mark, Span))
    assert (span.high, span.name) == (pytest.approx(0.6), "lowest kept")
    assert evicted.rank_of(drop(0, 0, [1, 4], [0.3, 0.1], []), 1) == 2
    assert evicted.rank_of(drop(0, 0, [1, 4], [0.3, 0.1], []), 2) is None


# ---- regret ------------------------------------------------------------------------------------------------------


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


def test_the_point_under_the_mouse() -> None:
    """The plot is five times as wide as it is high, its ranges are not 0 … 1, and the reach counts pixels."""
    frame = Frame(QRectF(40, 10, 500, 100), (0.0, 10.0), (0.0, 1.0), 1.0, DARK)
    points = np.array([[2.0, 0.5], [4.0, 0.5], [4.0, 0.9]])
    at = frame.point_of(4.0, 0.9)
    assert (at.x(), at.y()) == (240, 20)
    assert frame.nearest(points, at + QPointF(0, 8), 9) == 2
    assert frame.nearest(points, at + QPointF(0, 20), 9) is None, "20 pixels below one and above the other"
    assert frame.nearest(points, at + QPointF(8, 0), 9) == 2
    assert frame.nearest(points, at + QPointF(20, 0), 9) is None, "beside it by more than the reach"
    assert frame.nearest(points, frame.point_of(2.9, 0.0), None) == 0, "along x alone"
    assert frame.nearest(points, QPointF(700, 20), None) is None, "beside the plot"


def test_the_page_of_a_position() -> None:
    pages = measured([0.1, 0.1, 0.1], [0.0, 0.5, 1.0], page_size=8)
    assert [regret.page_of(pages, position) for position in (0, 7, 8, 23, 24)] == [0, 0, 1, 2, None]


# ---- sweep -------------------------------------------------------------------------------------------------------


def row(cache: str, kv_bytes: int, kl: float, speed: float = 50.0, lossless: bool = False) -> SweepRow:
    return SweepRow(cache, kv_bytes, speed, kl, 1.0, 3.0, 0.0, lossless)


ROWS = (
    row("none", 0, 0.0, 10, True),
    row("growing", 4000, 1e-12, 90, True),
    row("int8", 1000, 1e-4, 70),
    row("h2o", 1000, 1e-1, 60),
    row("sliding", 900, 2.0, 80),
    Unavailable("kivi-4", "Groups of 32 do not divide 16 channels."),
)


def test_the_front_is_what_nobody_beats() -> None:
    found = sweep.cloud(ROWS)
    assert sweep.cloud(ROWS, "another text").names == ()
    assert found.names == ("growing", "int8", "h2o", "sliding"), "what recomputes has no bytes"
    assert [found.names[i] for i in found.front] == ["sliding", "int8", "growing"]
    assert found.y[0] == 0
    assert (found.y[1:] > 0).all()
    assert found.x[0] > found.x[1] == found.x[2] > found.x[3]
    assert found.x.tolist() == pytest.approx(np.log2([4000, 1000, 1000, 900]))
    x, y = sweep.steps_of(found)
    assert y.tolist() == pytest.approx([*found.y[[3, 3, 1, 1]], 0.0]), "down only at the next mark"
    assert x.tolist() == pytest.approx([*found.x[[3, 1, 1, 0, 0]]])
    assert sweep.cloud(()).names == ()


def test_rows_sort_and_the_unavailable_stay_last() -> None:
    names = [r.cache for r in measured_rows.sorted_rows(ROWS, sweep.COLUMNS, sweep.COLUMNS.index("tok_per_s"), True)]
    assert names == ["growing", "sliding", "int8", "h2o", "none", "kivi-4"]
    assert [r.cache for r in measured_rows.sorted_rows(ROWS, sweep.COLUMNS, -1, False)] == [r.cache for r in ROWS]


def test_the_table_as_csv_says_everything() -> None:
    lines = measured_rows.csv_text(
        ROWS,
        ("cache", "kv_bytes", "tok_per_s", "mean_kl", "top1_agreement", "perplexity", "lossless", "max_abs_logit_diff"),
    ).splitlines()
    assert lines[0].startswith("cache,kv_bytes,tok_per_s,mean_kl,top1_agreement,perplexity,lossless")
    assert lines[2].startswith("growing,4000,90,1e-12")
    assert lines[-1] == "kivi-4,,,,,,,,Groups of 32 do not divide 16 channels."


def test_names_cover_neither_points_nor_each_other() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.uniform(0, 300, 20), rng.uniform(0, 150, 20)
    found = names.labels(x, y, [50.0] * 20, (300, 150), 12, first=(7,))
    assert found[0].index == 7
    boxes = [(label.left, label.middle - 6, label.left + 50, label.middle + 6) for label in found]
    for i, one in enumerate(boxes):
        assert one[0] >= 0
        assert one[2] <= 300
        for other in boxes[i + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    assert names.clusters(np.array([0.0, 1, 50]), np.array([0.0, 1, 50]), 3) == ((0, 1), (2,))


def test_a_point_that_is_only_as_good_as_a_smaller_one_is_not_on_the_front() -> None:
    num_bytes, kl = np.array([1.0, 2.0, 3.0, 3.0, 4.0]), np.array([0.5, 0.5, 0.3, 0.2, 0.1])
    assert sweep.front(num_bytes, kl) == (0, 3, 4)
