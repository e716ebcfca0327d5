"""The errors of a codec as matrices: rows that exist, the largest of several columns, and where there is no error."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.draw.matrix import Matrix
from app.panels.damage import blank_words, error_matrix, exact_from, shared_limits
from engine.spec.cache import cache_named
from engine.spec.codec import Coding
from engine.wire.measurements import MapDamage
from tests.app import samples
from tests.app.answers import damage


@pytest.mark.parametrize(
    ("codec", "words"),
    [("kivi-2", "kept exact: residual"), ("exact", "not coded: exact"), ("int8", "no error"), ("fp8", "no error")],
)
def test_only_a_residual_is_called_one(codec: str, words: str) -> None:
    assert blank_words(Coding(codec)) == words


def errors(values: np.ndarray, per_column: int = 1, most: int = 100) -> Matrix:
    """`[L, H, columns]` of K by token, for layers 0 and 3; of the latter, only the first head exists."""
    codec = cache_named("int8").codec
    assert codec is not None
    found = damage(MapDamage(0, codec), 0.5)
    keys = replace(found.keys, by_token=values.astype(np.float32))
    found = replace(
        found, keys=keys, layers=(0, 3), tokens_per_column=per_column, num_rows=values.shape[2] * per_column - 1
    )
    shape = samples.geometry()
    layers = tuple(replace(layer, num_kv_heads=1 if layer.index == 3 else 2) for layer in shape.layers)
    return error_matrix(found, "K", replace(shape, layers=layers), by_token=True, most=most)


def test_there_is_a_row_for_every_head_that_exists_and_it_names_its_layer() -> None:
    values = np.arange(20).reshape(2, 2, 5) / 10
    matrix = errors(values)
    assert [(place.layer, place.head) for place in matrix.places] == [(0, 0), (0, 1), (3, 0)]
    assert [matrix.names(row) for row in range(4)] == ["L0·0", "L0·1", "L3·0", ""]
    assert matrix.borders == (2,)
    assert matrix.gone is None
    assert shared_limits(matrix).tolist() == pytest.approx([1.4] * 3)


@pytest.mark.parametrize("most", [9, 4, 3, 1])
def test_columns_without_a_pixel_of_their_own_show_the_largest_error_of_several(most: int) -> None:
    values = np.random.default_rng(0).random((2, 2, 9))
    values[0, 1, 4] = np.nan
    matrix = errors(values, per_column=4, most=most)
    assert matrix.values.shape[1] <= most
    for row, (layer, head) in enumerate(((0, 0), (0, 1), (1, 0))):
        for position in range(35):
            cell = matrix.at(position, row)
            assert cell is not None
            covered = values[layer, head, cell.first // 4 : cell.last // 4 + 1].astype(np.float32)
            np.testing.assert_equal(cell.high, float(covered.max()))
    last = matrix.at(34, 0)
    assert last is not None
    assert last.last == 34, "the last column is not full"


def test_where_a_codec_begins_to_keep_rows_exact() -> None:
    values = np.zeros((2, 2, 6))
    values[0, 0, :3] = 0.1
    values[1, 0, 3] = 0.2
    values[1, 1, 5] = 0.2  # of a head that does not exist
    assert exact_from(errors(values, per_column=2)) == 8
    values[0, 0, 5] = np.nan  # no number is an error, too
    assert exact_from(errors(values)) is None
    assert exact_from(errors(np.zeros((2, 2, 6)))) == 0
