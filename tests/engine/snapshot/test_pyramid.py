"""How coarse the extremes beside large layers are."""

from __future__ import annotations

import pytest

from engine.snapshot.format import LayerEntry
from engine.snapshot.write import MAX_COLUMNS, MAX_ROWS, pyramid_for


def layer(num_tokens: int, key_dim: int = 64, value_dim: int = 128) -> LayerEntry:
    return LayerEntry(0, "full", 1, (0,), key_dim, value_dim, "float32", num_tokens)


@pytest.mark.parametrize(
    ("num_tokens", "per_column"),
    [(MAX_COLUMNS, 1), (MAX_COLUMNS + 1, 2), (2 * MAX_COLUMNS, 2), (2 * MAX_COLUMNS + 1, 4), (5 * MAX_COLUMNS, 8)],
)
def test_a_column_has_the_least_power_of_two_of_tokens_that_fits(num_tokens: int, per_column: int) -> None:
    found = pyramid_for(num_tokens, [layer(num_tokens, 64 * 64, 128 * 64)])
    assert found is not None
    assert found.tokens_per_column == per_column
    assert (found.channels("keys"), found.channels("values")) == (64 * 64 // MAX_ROWS, 128 * 64 // MAX_ROWS)


def test_small_layers_have_none() -> None:
    assert pyramid_for(64, [layer(64, 16, 16)]) is None
