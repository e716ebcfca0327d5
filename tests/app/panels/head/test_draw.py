"""Drawing of one head and of the newest attention row: exact values, spans, ticks, histogram."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.draw import axis
from app.draw.colormap import histogram, magnitude_table
from app.draw.matrix import matrix_of
from app.panels import attention as att
from app.panels.head import readout
from app.panels.inspector import received
from engine.wire.pictures import AttentionPicture, AttentionRequest, HeadPicture, HeadRequest
from engine.wire.records import AttentionSummary


def head(values: np.ndarray, per_column: int = 1, first: int = 0, num_tokens: int | None = None) -> HeadPicture:
    columns = values.shape[0]
    stop = num_tokens if num_tokens is not None else first + columns * per_column
    counts, edges = np.histogram(values[np.isfinite(values)], 64)
    return HeadPicture(
        HeadRequest(0, stop, "keys", 3, 1, first, stop, columns), "live cache", "float32",
        values.astype(np.float32), values.astype(np.float32) + (0.5 if per_column > 1 else 0),
        first + np.arange(columns) * per_column, per_column, counts, edges.astype(np.float32), 2.0, -1.0, 4.0, 0, 0,
        (2, 3), "K", "", 0.0,
    )  # fmt: skip


def newest(weights: np.ndarray, per_column: int = 1, first: int = 0) -> AttentionPicture:
    positions = first + np.arange(weights.shape[1]) * per_column
    query = first + weights.shape[1] * per_column - 1
    request = AttentionRequest(0, 5, 2, 512)
    return AttentionPicture(request, "live cache", weights.astype(np.float32), positions, per_column, 2, query, "", 0.0)


def test_the_readout_names_the_cell_and_its_exact_value() -> None:
    values = np.zeros((20, 8))
    values[13, 5] = np.float32(-1.8342)
    picture = head(values)
    cell = matrix_of(picture).at(13.7, 5.2)
    assert cell is not None
    assert readout(picture, cell) == "K[3, 1, 13, 5] = -1.8342"


def test_a_cell_of_several_tokens_tells_both_extremes() -> None:
    picture = head(np.ones((5, 2)), per_column=4, num_tokens=18)
    cell = matrix_of(picture).at(17, 0)
    assert cell is not None
    assert (cell.first, cell.last) == (16, 17)
    assert readout(picture, cell) == "K[3, 1, 16…17, 0] = 1.0 … 1.5"


@pytest.mark.parametrize("point", [(-1, 0), (20, 0), (3, -0.1), (3, 8), (9.9, 3)])
def test_beside_the_tile_there_is_no_cell(point: tuple[float, float]) -> None:
    assert matrix_of(head(np.zeros((10, 8)), first=10)).at(*point) is None


def test_a_tile_that_starts_late_keeps_absolute_positions() -> None:
    picture = head(np.arange(40).reshape(10, 4), first=100)
    cell = matrix_of(picture).at(103.5, 2)
    assert cell is not None
    assert (cell.first, cell.low) == (103, 14.0)
    assert matrix_of(picture).span_of(103) == (103, 104)
    assert matrix_of(picture).span_of(99) is None
    assert matrix_of(picture).span_of(110) is None


def test_values_are_channels_by_columns_and_keep_the_larger_magnitude() -> None:
    picture = head(np.array([[-3.0, 1.0], [0.2, 5.0]]), per_column=2)
    assert matrix_of(picture).values.tolist() == [[-3.0, pytest.approx(0.7)], [1.5, 5.5]]


def test_the_histogram_puts_large_values_at_the_top() -> None:
    values = np.concatenate([np.full(90, 1.9), np.full(10, -1.9)]).reshape(-1, 1)
    lengths = histogram(head(values), -2.0, 2.0, 40)
    assert lengths[:20].max() == 1.0
    assert 0 < lengths[20:].max() < 1
    assert int(lengths.argmax()) < 4
    assert histogram(head(values), -2.0, 2.0, 0).size == 0


def test_a_histogram_of_equal_values_is_not_empty() -> None:
    assert histogram(head(np.full((9, 1), 1.0)), -2.0, 2.0, 50).max() == 1.0


def test_ticks_fit_and_name_real_cells() -> None:
    found = axis.ticks(3.5, 96.0, 900, 58, str)
    assert [tick.text for tick in found][:3] == ["10", "20", "30"]
    assert len(axis.ticks(0, 10, 900, 58, str)) == 10
    assert axis.ticks(5, 5, 900, 58, str) == ()
    assert [axis.nice_step(v) for v in (0.1, 1, 1.1, 2.5, 6, 21, 900)] == [1, 1, 2, 5, 10, 50, 1000]


def test_decades_lift_small_weights_and_keep_the_order() -> None:
    picture = newest(np.array([[0.9, 0.01, 0.09, 0.0]]), per_column=100)  # of 400 tokens
    linear, log = att.attention_indices(picture, att.LINEAR)[0], att.attention_indices(picture, att.LOG)[0]
    assert linear.argsort(kind="stable").tolist() == log.argsort(kind="stable").tolist()
    assert log.tolist() == [round(254 * (1 - np.log10(w) / np.log10(0.05 / 400))) for w in (0.9, 0.01, 0.09)] + [0]
    assert linear.tolist() == [229, 3, 23, 0]


def test_per_head_colours_reach_to_the_largest_weight_behind_the_first_token() -> None:
    weights = np.array([[0.8, 0.02, 0.1, 0.08], [0.1, 0.6, 0.1, 0.2]], np.float32)
    picture = replace(
        newest(weights), top_positions=np.array([[0, 2], [1, 3]]), top_weights=np.array([[0.8, 0.1], [0.6, 0.2]])
    )
    assert att.attention_indices(picture, att.PER_HEAD).tolist() == [[254, 51, 254, 203], [42, 254, 42, 85]]


def test_nine_hundred_tokens_leave_no_head_black() -> None:
    """A sink with half of the mass, and the rest spread: pooled to 300 columns, drawn as the newest row draws it."""
    row = np.full((2, 900), 0.4 / 898, np.float32)
    row[:, 0], row[:, 640] = 0.5, 0.1
    weights = row.reshape(2, 300, 3).max(2)
    picture = replace(
        newest(weights, per_column=3),
        query_position=899,
        top_positions=np.array([[0, 640], [0, 640]]),
        top_weights=np.array([[0.5, 0.1], [0.5, 0.1]], np.float32),
    )
    log = att.attention_indices(picture, att.LOG)
    table = magnitude_table("#121417", "#62b5ff", "#eaf5ff", "#ff2fd0")
    away = np.abs(table[log][..., :3].astype(int) - table[0][:3].astype(int)).max(2)
    assert (away > 40).all()  # every cell stands out from the ground
    assert (log[:, 213] > log[:, 100] + 80).all()  # and large weights stand out from the rest
    assert (log[:, 0] > log[:, 213]).all()
    assert [one.position for one in att.sinks_of(picture)] == [0]
    assert att.sinks_of(picture)[0].weight == pytest.approx(0.5)
    assert [(one.position, round(one.weight, 2)) for one in att.top_positions(picture, 1)] == [(0, 0.5), (640, 0.1)]


def test_groups_and_weights() -> None:
    eight = newest(np.zeros((8, 1)))
    assert matrix_of(eight).borders == (2, 4, 6)
    assert matrix_of(replace(eight, group_size=1)).borders == ()
    picture = newest(np.array([[0.25, 0.75], [0.5, 0.5]]), per_column=3, first=30)
    cell = matrix_of(picture).at(34.5, 0.5)
    assert cell is not None
    assert (cell.row, cell.first, cell.last, cell.low) == (0, 33, 35, 0.75)
    assert matrix_of(picture).at(29.9, 0) is None
    assert matrix_of(picture).at(31, 2) is None
    assert received(picture, 31) is None  # pooled with its neighbours
    assert received(newest(np.array([[0.25, 0.75], [0.5, 0.5]])), 1).tolist() == [0.75, 0.5]


def test_masses_of_a_layer_that_was_measured() -> None:
    numbers = np.array([[0.5, 0.25], [0.125, 1.0]], np.float32)
    summary = AttentionSummary((0, 4), numbers, numbers / 2)
    assert [(m.head, m.first, m.recent) for m in att.masses_of(summary, 4, np.array([2.0, 0.25]))] == [
        (0, 0.125, 0.0625),
        (1, 1.0, 0.5),
    ]
    assert att.masses_of(summary, 1, None) == ()
    assert att.masses_of(summary, 4, None) == (), "an absent row has no entropy"
