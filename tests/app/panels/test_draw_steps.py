"""Bars of time, choices, bytes and norms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QRectF
from PySide6.QtGui import QImage, QPainter
from PySide6.QtWidgets import QApplication

from app.draw import spark
from app.kit.chart.marks import Curve, Dots, Frame, Painted, Place
from app.kit.theme import DARK
from app.models.step_series import StepSeries
from app.panels.bytes import chart as memory
from app.panels.bytes import draw as ledger
from app.panels.next_token import draw as next_token
from app.panels.timings import draw as timings
from app.panels.timings.chart import timing_chart
from engine.wire.records import ByteGap, CacheBytes, LayerBytes, StepRecord
from tests.app import samples

COLOURS = (0xFF000001, 0xFF000002, 0xFF000003, 0xFF000004)


def table(*totals: float) -> timings.Millis:
    return np.array([[t / 2, t / 4, t / 8, t / 8] for t in totals], np.float32)


def paint(
    millis: timings.Millis, is_prefill: np.ndarray, x_range: tuple[float, float], width: int, height: int, full: float
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


def test_a_zoomed_chart_frames_the_selected_step_where_its_bar_is(qapp: QApplication) -> None:
    """The first row is step 10, steps 12 to 17 are visible, and index 5 is step 15."""
    chart = timing_chart(table(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), np.zeros(8, np.bool_), 10, 5)
    (mark,) = chart.marks
    assert isinstance(mark, Painted)
    image = QImage(120, 60, QImage.Format.Format_ARGB32)
    painter = QPainter(image)
    mark.paint(painter, Frame(QRectF(0, 0, 120, 60), (11.5, 17.5), (0.0, 1.2), 1.0, DARK))
    painter.end()
    is_framed = [image.pixelColor(x, 30) == DARK.color("selected") for x in range(120)]
    assert [x for x, is_it in enumerate(is_framed) if is_it] == [59, 79], "six steps share 120 pixels"
    assert chart.points[5, 0] == 15


def test_no_steps_make_no_bars() -> None:
    bars = paint(table().reshape(0, 4), np.zeros(0, np.bool_), (-0.5, 0.5), 60, 50, 1.0)
    assert not bars.pixels.any()
    assert (bars.steps == -1).all()


def test_a_series_reads_what_is_new_and_again_what_was_cut() -> None:
    told: list[int] = []

    def row(record: StepRecord) -> tuple[float, ...]:
        told.append(record.step)
        return (record.step, 2.0 * record.step)

    records = samples.story(4)
    series = StepSeries(row, 2)
    assert series.follow(records).tolist() == [[s, 2 * s] for s in range(len(records))]
    assert series.follow(records).shape == (len(records), 2)
    assert told == [record.step for record in records], "once each"
    assert len(series.follow([*records, samples.step_record(len(records))])) == len(records) + 1
    assert series.follow([*records[:2], samples.step_record(2)]).tolist() == [[0, 0], [1, 2], [2, 4]]
    long = [samples.step_record(step) for step in range(600)]
    assert series.follow(long)[:, 0].tolist() == list(range(600))


def test_memory_over_the_steps_marks_each_peak_and_leaves_out_what_nobody_can_tell() -> None:
    kib = 1024.0
    nan = float("nan")
    rows = np.array(
        [[kib, 4 * kib, nan, 64 * kib], [8 * kib, 8 * kib, nan, 16 * kib], [2 * kib, 8 * kib, nan, 32 * kib]]
    )
    chart = memory.memory_chart(rows, 5, 6)
    curves = [mark for mark in chart.marks if isinstance(mark, Curve)]
    peaks = [mark for mark in chart.marks if isinstance(mark, Dots)]
    assert [curve.y.tolist() for curve in curves] == [[10, 13, 11], [12, 13, 13], [16, 14, 15]]
    assert [curve.x.tolist() for curve in curves] == [[5, 6, 7]] * 3
    assert [(dot.x.tolist(), dot.y.tolist()) for dot in peaks] == [([6], [13]), ([6], [13]), ([5], [16])]
    assert chart.note == "peak: stored 8.0 KiB · reserved 8.0 KiB · process 64.0 KiB"
    assert Place(6) in chart.marks
    assert memory.step_words(samples.step_record(3)).startswith("step 3 · stored ")


def test_looking_counts_decode_steps_only() -> None:
    millis = np.array([[100, 0, 0, 100], [9, 0, 0.5, 0.5]], np.float32)
    assert timings.looking_share(millis, np.array([True, False])) == pytest.approx(0.05)
    assert timings.looking_share(millis[:1], np.array([True])) is None


def test_choices_mark_the_chosen_and_the_filtered() -> None:
    part = samples.step_record(3).sequences[0]
    first, second, *others = part.candidates
    part = replace(
        part, candidates=(replace(first, sampled_prob=1.0), replace(second, sampled_prob=0.0, text="\x00"), *others)
    )
    raw = next_token.candidate_bars(part, "raw")
    assert raw[0].is_chosen
    assert not raw[1].is_chosen
    assert raw[1].is_out
    assert raw[1].text == "\\x00"
    assert (raw[0].share, raw[0].other) == (first.prob, 1.0)
    assert next_token.candidate_bars(part, "sampled")[0].share == 1.0
    assert next_token.rest(part, "raw") == pytest.approx(1 - sum(c.prob for c in part.candidates))


def test_the_ledger_adds_up_and_names_every_gap() -> None:
    held = samples.cache_bytes(40, reserved_tokens=64)
    lines = {entry.key: entry for entry in ledger.ledger(held)}
    assert lines["stored"].num_bytes + lines["named"].num_bytes == lines["reserved"].num_bytes
    assert lines["named"].is_gap
    assert lines["named"].name == "room to grow"
    assert "unnamed" not in lines
    assert lines["allocator"].num_bytes is None
    assert "other" not in lines
    assert "beyond_formula" not in lines


def test_a_difference_to_the_formula_is_told_with_its_sign() -> None:
    held = samples.cache_bytes(40)
    dropped = replace(
        held, layers=tuple(replace(layer, stored=layer.stored // 2) for layer in held.layers), allocator=10**9
    )
    lines = {entry.key: entry.num_bytes for entry in ledger.ledger(dropped)}
    assert lines["below_formula"] == dropped.stored - dropped.predicted < 0
    assert lines["other"] == 10**9 - dropped.reserved - dropped.looking


def test_what_has_no_name_is_told_all_the_same() -> None:
    held = samples.cache_bytes(40, reserved_tokens=64)
    bare = replace(held, layers=tuple(replace(layer, gaps=()) for layer in held.layers))
    lines = {entry.key: entry.num_bytes for entry in ledger.ledger(bare)}
    assert lines["unnamed"] == bare.reserved - bare.stored


def test_what_is_within_and_what_is_brief_enter_no_sum() -> None:
    gaps = (
        ByteGap("scales and offsets", 30, "stored"),
        ByteGap("room to grow", 50, "reserved"),
        ByteGap("dequantised copy", 999, "transient"),
        ByteGap("rows kept for going back", 7, "looking"),
    )
    layer = LayerBytes(0, "full", 100, 100, 150, gaps)
    held = CacheBytes((layer, replace(layer, layer=1)), looking=14, process=10**6, allocator=None)
    lines = {entry.name or entry.key: entry for entry in ledger.ledger(held)}
    assert (lines["scales and offsets"].num_bytes, lines["scales and offsets"].is_within) == (60, True)
    assert lines["dequantised copy"].num_bytes == 999, "one layer at a time"
    assert lines["rows kept for going back"].is_within
    assert lines["stored"].num_bytes + lines["room to grow"].num_bytes == lines["reserved"].num_bytes
    table = ledger.layer_table(held)
    assert [name for name, _ in table.names] == ["scales and offsets", "room to grow", "dequantised copy"]
    assert table.rows[1][1] == (100, 100, 30, 50, 999, 150)
    assert table.total == (200, 200, 60, 100, 999, 300)
    (bar, _) = ledger.layer_bars(held)
    assert bar.pieces == pytest.approx((70 / 150, 30 / 150))


def test_layer_bars_are_shares_of_the_largest() -> None:
    bars = ledger.layer_bars(samples.cache_bytes(32, reserved_tokens=64))
    assert {bar.reserved for bar in bars} == {1.0}
    assert {bar.stored for bar in bars} == {0.5}
    assert ledger.layer_bars(replace(samples.cache_bytes(1), layers=())) == ()


def test_sparks_show_every_value_and_mark_one() -> None:
    drawn = spark.spark([4.0, 0.001, 0.0, float("nan")], 40, 10, marked=0)
    heights = [(drawn.codes[:, 10 * i] > 0).sum() for i in range(4)]
    assert heights == [10, 1, 0, 10]
    assert drawn.codes[9, 0] == 2
    assert drawn.codes[0, 30] == 3
    assert drawn.most == 4.0


def test_more_values_than_pixels_keep_the_tall_one() -> None:
    values = [1.0] * 400
    values[333] = 50.0
    assert (spark.spark(values, 40, 20).codes[0] > 0).sum() == 1


def test_norms_of_a_token_come_from_the_step_that_wrote_it() -> None:
    part = samples.step_record(0, num_prompt=5).sequences[0]
    norms = spark.token_norms(part, 3)
    assert norms is not None
    assert norms.mean_keys()[2] == pytest.approx(float(part.rows.key_norm[2, :, 3].mean()))
    assert spark.token_norms(part, 5) is None
    assert spark.token_norms(replace(part, rows=None), 3) is None


def test_layer_bars_stand_on_the_ground_and_show_the_least_that_is_stored() -> None:
    held = samples.cache_bytes(10)
    layer = replace(held.layers[0], stored=50, reserved=100, predicted=50, gaps=())
    tiny = replace(layer, stored=1, predicted=1)
    bars = ledger.layer_bars(replace(held, layers=(layer, tiny)))
    colors = ledger.BarColors(reserved=1, pieces=(2, 3, 4, 5), formula=9)
    pixels = ledger.paint_bars(bars, 40, 100, 20, 4, colors)
    assert pixels.shape == (100, 40)
    assert pixels[:, 5].tolist() == [1] * 49 + [9] + [2] * 50
    assert pixels[:, 25].tolist() == [1] * 98 + [9, 2]
    assert not pixels[:, 16:20].any()  # between two bars the panel shows


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
