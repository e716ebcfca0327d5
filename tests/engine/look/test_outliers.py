"""The tokens attended to most, and the token at which a channel is largest, in numbers worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from engine.geometry.dimensions import CacheGeometry
from engine.look.magnitude_counts import LayerCount, counted
from engine.look.outliers import largest, most_attended
from engine.look.source import Rows


def test_rows_of_different_lengths_end_at_the_newest_token() -> None:
    """The second layer holds the latest three of five tokens."""
    attention = {
        0: torch.tensor([[0.5, 0.1, 0.1, 0.1, 0.2], [0.6, 0.0, 0.1, 0.1, 0.2]]),
        1: torch.tensor([[0.1, 0.8, 0.1], [0.2, 0.7, 0.1]]),
    }
    geometry = CacheGeometry.uniform(2, 1, 4)
    heads = SimpleNamespace(layers=[SimpleNamespace(num_heads=2, num_kv_heads=1)] * geometry.num_layers)
    first, second = most_attended(attention, cast(Any, heads), 2, 5)
    assert (first.position, first.layer, first.head, first.kv_head) == (3, 1, 0, 0)
    assert (round(first.weight, 3), round(first.most, 3)) == (0.425, 0.8)
    assert (second.position, second.layer, second.head) == (0, 0, 1)


def test_a_row_of_a_later_token_is_none_of_then() -> None:
    """The third of four scattered rows is of the token after the five that there were."""
    values = torch.zeros(1, 1, 4, 2)
    values[0, 0, :, 1] = torch.tensor([1.0, -3.0, 9.0, 8.0])
    rows = Rows(values[0], 0, torch.tensor([[0, 4, 5, 6]]))
    for num_tokens, position, value in ((5, 4, -3.0), (6, 5, 9.0)):
        past = SimpleNamespace(num_tokens=num_tokens, rows=lambda *_, **__: rows, exact_from=lambda *_: 0)
        count = LayerCount(counted(values, torch.tensor([[[0, 4, 5, 6]]]), num_tokens), 0)
        (found,) = largest({0: count}, cast(Any, past), "keys", 1)
        assert (found.position, found.value) == (position, value)
