"""Weights of the newest query of many layers, from their keys where these lie."""

from __future__ import annotations

import pytest
import torch

from engine.cache.attention_probe import MAX_COPIED_ROWS, NewestQuery, joined_keys, newest_weights

LAYERS, KV_HEADS, HEADS, DIM, ROOM = 3, 2, 4, 8, MAX_COPIED_ROWS + 30
COUNT = MAX_COPIED_ROWS + 7  # more than are copied


@pytest.fixture
def room() -> torch.Tensor:
    return torch.randn(LAYERS, 1, KV_HEADS, ROOM, DIM, generator=torch.Generator().manual_seed(0))


def test_keys_in_one_room_are_multiplied_where_they_lie(room: torch.Tensor) -> None:
    keys = [layer.narrow(2, 0, COUNT) for layer in room]
    found = joined_keys(keys)
    assert found is not None
    assert found.data_ptr() == room.data_ptr()
    assert torch.equal(found, torch.cat(keys).flatten(0, 1))


def test_others_are_multiplied_layer_by_layer_unless_they_are_few(room: torch.Tensor) -> None:
    apart = [layer.narrow(2, 0, COUNT).clone() for layer in room]
    assert joined_keys(apart) is None
    assert joined_keys([layer.narrow(2, 0, COUNT).to(torch.bfloat16) for layer in room]) is None
    assert joined_keys(list(room.to(torch.bfloat16).narrow(3, 0, COUNT))) is None, "all would be widened at once"
    assert joined_keys([layer.expand(2, -1, -1, -1) for layer in room]) is None
    few = joined_keys([layer.narrow(2, 0, MAX_COPIED_ROWS) for layer in apart])
    assert few is not None
    assert torch.equal(few, room.narrow(3, 0, MAX_COPIED_ROWS).flatten(0, 2))


def test_the_weights_are_those_of_every_layer_alone(room: torch.Tensor) -> None:
    queries = torch.randn(LAYERS, 1, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    seen = [
        NewestQuery(query, layer.narrow(2, 0, COUNT), None, 0.3) for query, layer in zip(queries, room, strict=True)
    ]
    found = newest_weights(seen)
    for weights, query, layer in zip(found, queries, room, strict=True):
        keys = layer.narrow(2, 0, COUNT).repeat_interleave(HEADS // KV_HEADS, 1)
        expected = (query[:, :, None] @ keys.mT * 0.3).softmax(-1)[:, :, 0]
        torch.testing.assert_close(weights, expected)
