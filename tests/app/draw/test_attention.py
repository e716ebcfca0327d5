"""The newest row in numbers: what is a sink, what colours are measured against, and where a point leads."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.draw.matrix import matrix_of
from app.panels import attention as draw
from engine.spec.edit import Rows
from engine.wire.pictures import AttentionPicture, AttentionRequest
from tests.app import samples


def row(positions: list[list[int]], weights: list[list[float]], num_tokens: int = 12) -> AttentionPicture:
    """Two heads over twelve tokens, with the positions they looked at most."""
    request = AttentionRequest(0, 3, 1, num_tokens)
    picture = samples.attention_picture(request, num_tokens)
    return replace(picture, top_positions=np.array(positions), top_weights=np.array(weights, np.float32))


def test_a_sink_takes_a_quarter_of_the_mass_and_three_even_shares_and_is_not_near_the_query() -> None:
    newest = 11
    picture = row([[0, newest, 4], [0, newest, 5]], [[0.4, 0.5, 0.05], [0.2, 0.7, 0.05]])
    assert picture.query_position == newest
    found = draw.sinks_of(picture)
    assert [(one.position, pytest.approx(one.weight)) for one in found] == [(0, 0.3)]
    near = row([[3, 7], [3, 8]], [[0.3, 0.6], [0.1, 0.6]])
    assert draw.sinks_of(near) == (), "heads that look at what is near"
    far = replace(near, query_position=40)
    assert draw.sinks_of(far) == tuple(draw.PositionWeight(place, pytest.approx(0.3)) for place in (7, 8))
    few = replace(row([[0, 1], [0, 1]], [[0.4, 0.3], [0.4, 0.3]]), query_position=3)
    assert draw.sinks_of(few) == (), "of four tokens each takes a quarter"
    assert [one.position for one in draw.sinks_of(replace(few, query_position=7))] == [0], (
        "of eight tokens it takes three even shares"
    )


def test_colours_are_measured_against_the_largest_weight_behind_the_first_token() -> None:
    picture = row([[0, 4, 9], [5, 0, 2]], [[0.9, 0.06, 0.02], [0.5, 0.4, 0.1]])
    assert draw.head_limits(picture).tolist() == pytest.approx([0.06, 0.5])
    assert draw.head_limits(row([[0], [0]], [[1.0], [0.0]])).tolist() == [1, 1]


def test_an_area_reaches_from_cell_to_cell_and_names_the_kv_heads_that_its_heads_read() -> None:
    picture = samples.attention_picture(AttentionRequest(0, 3, 1, 12), 12)
    group, last = picture.group_size, len(picture.weights) - 1
    assert area_between(picture, (3.2, 0.5), (6.7, group + 0.5)) == Rows(3, 7, (1,), (0, 1))
    assert area_between(picture, (6.7, group + 0.5), (3.2, 0.5)) == Rows(3, 7, (1,), (0, 1))
    assert area_between(picture, (4.0, 0.0), (4.0, last)) == Rows(4, 5, (1,)), "all of them have no names"
    pooled = samples.attention_picture(AttentionRequest(0, 3, 1, 4), 11)  # three positions a column, the last of two
    assert area_between(pooled, (4.0, 0.0), (10.0, 0.0)) == Rows(3, 11, (1,), (0,))
    assert matrix_of(pooled).at(11.0, 0.0) is None


def area_between(picture: AttentionPicture, start: tuple[float, float], stop: tuple[float, float]) -> Rows:
    matrix = matrix_of(picture)
    first, last = matrix.at(*start), matrix.at(*stop)
    assert first is not None
    assert last is not None
    return matrix.rows_between(first, last, "attention", picture.group_size)
