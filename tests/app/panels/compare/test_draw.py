"""Pictures as matrices: every number stands at its place."""

from __future__ import annotations

import numpy as np

from app.panels.compare.draw import Place, matrix_of
from engine.wire.commands import AttentionRequest, HeadRequest, WallRequest
from tests.app import samples


def test_a_wall_is_one_matrix_of_layers_heads_and_channels() -> None:
    piece = samples.wall_slice(WallRequest(0, 20, 20, "keys", False, 10, 8))
    matrix = matrix_of(piece)
    rows = piece.low.shape[3]
    row = matrix.row_of(1, 1, 3 * piece.dims_per_row)
    assert row == (samples.KV_HEADS + 1) * rows + 3
    assert matrix.places[row] == Place(1, 1, 3 * piece.dims_per_row, 4 * piece.dims_per_row - 1)
    np.testing.assert_array_equal(matrix.high[row], piece.high[1, 1, :, 3])
    assert matrix.names(samples.KV_HEADS * rows) == "L1"
    assert matrix.names(rows) == ""
    assert matrix.borders[0] == rows
    assert matrix.positions(1) == (piece.tokens_per_column, 2 * piece.tokens_per_column - 1)


def test_a_head_has_channels_below_each_other_and_ends_with_its_tokens() -> None:
    piece = samples.head_slice(HeadRequest(0, 21, "keys", 1, 1, 4, 21, 6))
    matrix = matrix_of(piece)
    np.testing.assert_array_equal(matrix.low, piece.low.T)
    assert (matrix.start, matrix.stop) == (4, 21)
    assert matrix.positions(matrix.low.shape[1] - 1)[1] == 20
    assert matrix.cell(4 + piece.tokens_per_column + 0.5, 2.9) == (2, 1)
    assert matrix.cell(3.9, 0) is None
    assert matrix.cell(5, matrix.low.shape[0]) is None


def test_attention_has_a_row_a_query_head() -> None:
    piece = samples.attention_slice(AttentionRequest(0, 3, 1, 100), 12)
    matrix = matrix_of(piece)
    assert matrix.places[-1] == Place(1, samples.HEADS - 1)
    assert matrix.borders == tuple(range(piece.group_size, samples.HEADS, piece.group_size))
    assert matrix.row_of(1, 2, None) == 2
    assert matrix.row_of(0, 2, None) is None
