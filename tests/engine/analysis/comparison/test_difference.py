"""The difference of two runs, row by row and weight by weight, against loops over the positions that both hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from engine.analysis.comparison import attention_distance, first_difference, row_differences
from engine.analysis.tolerance import TOLERANCES
from engine.geometry.dimensions import CacheGeometry
from engine.look.reductions import farthest_from_zero, in_columns
from engine.look.source import Rows, subtracted

RUN = "run"
PARTS = {"keys": 6, "values": 3}
SCATTERED = [[0, 1, 4, 7, 9], [0, 2, 4, 8, 10]]  # of each head
OTHERS = [[1, 4, 5, 9, 11], [3, 4, 6, 8, 12]]
Part = dict[tuple[int, int], torch.Tensor]
Both = dict[str, Rows]  # K and V of one layer


def held(seed: int, first: int, positions: list[list[int]] | None, count: int = 5) -> Both:
    """Keys of six and values of three channels."""
    made = torch.Generator().manual_seed(seed)
    places = None if positions is None else torch.tensor(positions)
    return {part: Rows(torch.randn(2, count, dims, generator=made), first, places) for part, dims in PARTS.items()}


def by_place(rows: Rows) -> Part:
    found = {}
    for head, slot in np.ndindex(rows.numbers.shape[:2]):
        found[head, int(rows.places[head, slot])] = rows.numbers[head, slot]
    return {place: row for place, row in found.items() if place[1] < 1000}  # beyond it there is none


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, None), (5, None)),
        ((5, None), (3, None)),
        ((0, SCATTERED), (0, OTHERS)),
        ((0, OTHERS), (0, SCATTERED)),
        ((0, SCATTERED), (2, None)),
        ((2, None), (0, SCATTERED)),
    ],
)
def test_rows_are_subtracted_where_both_hold_them(a: Any, b: Any) -> None:
    one, other = held(1, *a), held(2, *b)
    for part in PARTS:
        found = subtracted(one[part], other[part])
        assert found is not None
        mine, theirs, differences = by_place(one[part]), by_place(other[part]), by_place(found)
        assert differences.keys() == mine.keys() & theirs.keys()
        for place, row in differences.items():
            assert torch.equal(row, mine[place] - theirs[place])
    nothing = subtracted(held(1, 0, None)["keys"], held(2, 5, None)["keys"])
    assert nothing is None, "they have no position in common"


def test_of_a_column_the_weight_that_is_farthest_from_zero() -> None:
    row = torch.tensor([[0.1, -0.4, 0.3, 0.2, -0.1], [0.0, 0.0, -0.2, 0.2, 0.5]])
    assert torch.equal(in_columns(row, 2, farthest_from_zero), torch.tensor([[-0.4, 0.3, -0.1], [0.0, -0.2, 0.5]]))
    assert torch.equal(in_columns(row, 1, farthest_from_zero), row)


def source(layers: dict[int, Both]) -> Any:
    return SimpleNamespace(rows=lambda layer, part: layers[layer][part])


def test_the_first_departure_is_at_the_lowest_position_and_of_that_in_the_lowest_layer() -> None:
    layers = CacheGeometry.uniform(3, 2, 6).layers
    mine = {layer: held(layer, 0, SCATTERED) for layer in range(3)}

    def departing(*changes: tuple[int, str, int, int, int]) -> Any:
        theirs = {
            n: {part: Rows(rows.numbers.clone(), 0, rows.positions) for part, rows in both.items()}
            for n, both in mine.items()
        }
        for layer, part, head, slot, channel in changes:
            theirs[layer][part].numbers[head, slot, channel] += 1.0
        return first_difference(source(mine), source(theirs), layers, TOLERANCES["float32"])

    assert departing() is None
    found = departing((0, "keys", 1, 3, 4), (2, "values", 0, 2, 1), (1, "values", 1, 2, 2), (1, "keys", 0, 4, 0))
    assert (found.position, found.layer, found.tensor, found.kv_head, found.channel) == (4, 1, "values", 1, 2)
    assert found.other_number - found.number == pytest.approx(1.0)
    assert found.number == pytest.approx(float(mine[1]["values"].numbers[1, 2, 2]))
    both = departing((0, "values", 0, 1, 1), (0, "keys", 1, 2, 5))
    assert (both.position, both.tensor, both.kv_head) == (1, "values", 0)


def test_what_is_told_of_each_layer_is_of_that_layer() -> None:
    """Layer 1 is the only one that differs, in the second head; of layer 2 one side has nothing."""
    geometry = CacheGeometry.uniform(3, 2, 6)
    made = torch.Generator().manual_seed(4)
    rows = {layer: tuple(torch.randn(2, dims, generator=made) for dims in (6, 3)) for layer in range(3)}
    changed = {layer: tuple(part.clone() for part in pair) for layer, pair in rows.items() if layer != 2}
    changed[1][1][1] *= 1.5
    weights = {layer: torch.tensor([[0.5, 0.5], [0.2, 0.8]]) for layer in range(3)}
    others = {0: weights[0], 1: torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.1, 0.4]])}
    a, b = (
        cast(Any, SimpleNamespace(geometry=geometry, newest=lambda n, r=r: r, attention=lambda n, w=w: w))
        for r, w in ((rows, weights), (changed, others))
    )
    keys, values = row_differences(a, b, 7)
    assert keys[:2].tolist() == [0, 0]
    assert values[:2].tolist() == [0, pytest.approx(0.5)]
    assert np.isnan([keys[2], values[2]]).all()
    distance = attention_distance(a, b, 7)
    # |0.25| + |0| + |0.25| of the first head, |0.5| + |0.1| + |0.4| of the second, whose row had one weight more
    assert distance[:2].tolist() == [0, pytest.approx(0.5)]
    assert np.isnan(distance[2])
