"""Bars of time, choices, bytes and norms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from app.draw import spark
from app.panels.bytes import draw as ledger
from app.panels.next_token import draw as next_token
from app.panels.timings import draw as timings
from engine.wire.records import ByteGap, CacheBytes, LayerBytes
from tests.app import samples

COLOURS = (0xFF000001, 0xFF000002, 0xFF000003, 0xFF000004)


def table(*totals: float) -> timings.Millis:
    return np.array([[t / 2, t / 4, t / 8, t / 8] for t in totals], np.float32)


def test_a_bar_is_its_phases_from_the_bottom_up() -> None:
    bars = timings.paint(table(8.0, 4.0), np.zeros(2, np.bool_), 40, 92, COLOURS)
    assert bars.scale_ms == pytest.approx(9.2)
    column = bars.pixels[::-1, 0]
    assert [int((column == c).sum()) for c in COLOURS] == [40, 20, 10, 10]
    assert column[0] == COLOURS[0]
    assert column[79] == COLOURS[3]
    assert (column[80:] == 0).all()
    assert bars.pitch == 14
    assert (bars.pixels[:, bars.bar_width : bars.pitch] == 0).all()


def test_with_more_steps_than_pixels_the_slow_ones_stay() -> None:
    totals = np.ones(10_000)
    totals[[17, 5003, 9999]] = 50.0
    millis = table(*totals)
    bars = timings.paint(millis, np.zeros(10_000, np.bool_), 300, 60, COLOURS)
    assert bars.steps.size == 300
    assert {17, 5003, 9999} <= set(bars.steps.tolist())
    assert (np.diff(bars.steps) > 0).all()


@pytest.mark.parametrize(("count", "width"), [(5, 300), (299, 300), (300, 300), (301, 300), (977, 300), (10_000, 300)])
def test_from_a_step_to_its_bar_and_back(count: int, width: int) -> None:
    rng = np.random.default_rng(count)
    bars = timings.paint(table(*rng.random(count)), np.zeros(count, np.bool_), width, 50, COLOURS)
    for bar, step in enumerate(bars.steps.tolist()):
        assert bars.bar_of(step) == (bar * bars.pitch, bars.bar_width)
        assert bars.index_at(bar * bars.pitch) == step
    assert bars.bar_of(count) is None
    assert bars.index_at(bars.steps.size * bars.pitch) is None
    assert bars.index_at(-1) is None


def test_a_long_prefill_is_cut_hatched_and_told() -> None:
    is_prefill = np.array([True, False, False])
    bars = timings.paint(table(500.0, 5.0, 5.0), is_prefill, 60, 50, COLOURS)
    assert bars.scale_ms < 6
    assert bars.clipped == (0,)
    prefill, decode = bars.pixels[:, : bars.bar_width], bars.pixels[-20:, bars.pitch : bars.pitch + bars.bar_width]
    assert 0.6 < (prefill != 0).mean() < 0.9
    assert (decode != 0).all()


def test_no_steps_make_no_bars() -> None:
    bars = timings.paint(table().reshape(0, 4), np.zeros(0, np.bool_), 60, 50, COLOURS)
    assert not bars.pixels.any()
    assert bars.index_at(3) is None


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
    raw = next_token.choices(part, "raw")
    assert raw[0].is_chosen
    assert not raw[1].is_chosen
    assert raw[1].is_out
    assert raw[1].text == "\\x00"
    assert (raw[0].share, raw[0].other) == (first.prob, 1.0)
    assert next_token.choices(part, "sampled")[0].share == 1.0
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


@pytest.mark.parametrize(
    ("scale", "lines"),
    [
        (14.3, (5.0, 10.0)),
        (20.0, (10.0,)),
        (47.5, (20.0, 40.0)),
        (100.0, (50.0,)),
        (0.9, (0.2, 0.4, 0.6, 0.8)),
        (0.0, ()),
        (float("nan"), ()),
    ],
)
def test_grid_lines_are_round_and_below_the_top(scale: float, lines: tuple[float, ...]) -> None:
    assert timings.grid_lines(scale) == pytest.approx(lines)


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
