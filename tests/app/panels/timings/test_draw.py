"""Bars of time: each phase at its height, each step at its place, what is cut is told."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from app.panels import timings
from engine.wire.records import Floats, LayerTimes, Timings
from tests.app import samples

COLOURS = (0xFF000001, 0xFF000002, 0xFF000003, 0xFF000004)


def table(*totals: float) -> Floats:
    return np.array([[t / 2, t / 4, t / 8, t / 8] for t in totals], np.float32)


def paint(
    millis: Floats, is_prefill: np.ndarray, x_range: tuple[float, float], width: int, height: int, full: float
) -> timings.Bars:
    return timings.paint(millis, is_prefill, x_range, full, (width, height), COLOURS)


def test_a_bar_is_its_phases_from_the_bottom_up() -> None:
    decode = np.zeros(2, np.bool_)
    full = timings.full_scale(table(8.0, 4.0).sum(axis=1), decode)
    assert full == pytest.approx(9.2)
    bars = paint(table(8.0, 4.0), decode, (-0.5, 1.5), 40, 92, full)
    column = bars.pixels[::-1, 0]
    assert [int((column == c).sum()) for c in COLOURS] == [40, 20, 10, 10]
    assert column[0] == COLOURS[0]
    assert column[79] == COLOURS[3]
    assert (column[80:] == 0).all()
    assert bars.steps.tolist() == [0] * 20 + [1] * 20
    assert (bars.pixels[:, 19] == 0).all(), "a gap between two bars"
    assert (bars.pixels[-1, 20:] != 0).all()


def test_with_more_steps_than_pixels_the_slow_ones_stay() -> None:
    totals = np.ones(10_000)
    totals[[17, 5003, 9999]] = 50.0
    bars = paint(table(*totals), np.zeros(10_000, np.bool_), (-0.5, 9999.5), 300, 60, 2.0)
    assert bars.per_bar == 34
    assert {17, 5003, 9999} <= set(bars.steps.tolist())
    assert (np.diff(bars.steps) > 0).all()
    assert {17, 5003, 9999} == set(bars.clipped)


def test_zoomed_in_only_what_is_visible_is_painted_at_its_place() -> None:
    bars = paint(table(*range(1, 101)), np.zeros(100, np.bool_), (9.5, 14.5), 50, 60, 100.0)
    assert bars.steps.tolist() == [step for step in range(10, 15) for _ in range(10)]
    beyond = paint(table(1.0, 1.0), np.zeros(2, np.bool_), (-2.5, 3.5), 60, 50, 2.0)
    assert beyond.steps.tolist() == [-1] * 20 + [0] * 10 + [1] * 10 + [-1] * 20
    assert not beyond.pixels[:, :20].any()


@pytest.mark.parametrize(("count", "width"), [(5, 300), (299, 300), (300, 300), (301, 300), (977, 300), (10_000, 300)])
def test_every_column_shows_a_step_of_its_range(count: int, width: int) -> None:
    rng = np.random.default_rng(count)
    bars = paint(table(*rng.random(count)), np.zeros(count, np.bool_), (-0.5, count - 0.5), width, 50, 1.0)
    at = -0.5 + (np.arange(width) + 0.5) * count / width
    assert (np.abs(bars.steps - at) <= max(0.5, count / width)).all()
    assert (bars.steps >= 0).all()
    assert len(set(bars.steps.tolist())) == min(count, width)


def test_a_long_prefill_is_cut_hatched_and_told() -> None:
    is_prefill = np.array([True, False, False])
    millis = table(500.0, 5.0, 5.0)
    full = timings.full_scale(millis.sum(axis=1), is_prefill)
    assert full < 6
    bars = paint(millis, is_prefill, (-0.5, 2.5), 60, 50, full)
    assert bars.clipped == (0,)
    prefill, decode = bars.pixels[:, :19], bars.pixels[-20:, 20:39]
    assert 0.6 < (prefill != 0).mean() < 0.9
    assert (decode != 0).all()


def test_no_steps_make_no_bars() -> None:
    bars = paint(table().reshape(0, 4), np.zeros(0, np.bool_), (-0.5, 0.5), 60, 50, 1.0)
    assert not bars.pixels.any()
    assert (bars.steps == -1).all()


def test_looking_counts_decode_steps_only() -> None:
    millis = np.array([[100, 0, 0, 0, 0, 100, 0], [5, 3, 1, 0, 0.5, 0.5, 40]], np.float32)
    assert timings.looking_share(millis, np.array([True, False])) == pytest.approx(0.05)
    assert timings.looking_share(millis[:1], np.array([True])) is None


def test_labels_stand_beside_their_bars_and_on_nothing_else() -> None:
    bars = [(100.0, 110.0), (130.0, 140.0), (0.0, 8.0), (190.0, 198.0)]
    places = timings.label_places(bars, [30.0, 30.0, 30.0, 30.0], 200.0)
    assert places[0] == 67.0, "the right is taken by the next bar"
    assert places[1] == 143.0
    assert places[2] == 11.0
    assert places[3] is None, "no room on the right, a label on the left"
    spans = [*bars, *((place, place + 30.0) for place in places if place is not None)]
    ordered = sorted(spans)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ordered))


def test_a_row_has_what_was_timed_inside_the_forward_apart_from_the_rest_and_the_gap_on_top() -> None:
    record = samples.step_record(3)
    layers = LayerTimes((0, 2), (1.0, 2.0), (0.25, 0.25), (0.5, 0.0), (0.0, 0.5), 4.0)
    times = Timings(0.5, 10.0, 0.25, 0.125, gap_ms=7.0, wall_ms=17.875, layers=layers)
    row = timings.step_row(replace(record, timings=times))
    assert dict(zip(timings.PHASES, row[:-1], strict=True)) == {
        "forward": 5.5, "attention": 3.0, "cache": 1.5, "prepare": 0.5, "sample": 0.25, "looking": 0.125, "gap": 7.0,
    }  # fmt: skip
    assert sum(row[:-1]) == times.total_ms + times.gap_ms == times.wall_ms
    plain = timings.step_row(replace(record, timings=replace(times, layers=None)))
    assert plain[:3] == (10.0, 0.0, 0.0)
