"""The growing layer: what it returns, what it copies, and what a failed allocation leaves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.layers import layer as layer_module
from engine.cache.layers.layer import SHARED_CAPACITY, GrowingLayer, LayerBuffers
from engine.cache.stacking import stacked_view
from engine.predict.capacity import grown_capacity


def new_rows(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, count, 4, generator=generator), torch.randn(1, 2, count, 6, generator=generator)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["append", "crop"]), st.integers(0, 150)), min_size=1, max_size=12))
def test_any_appends_and_crops_hold_what_concatenation_holds(program: list[tuple[str, int]]) -> None:
    layer = GrowingLayer()
    keys, values = torch.empty(1, 2, 0, 4), torch.empty(1, 2, 0, 6)
    for number, (name, count) in enumerate(program):
        if name == "append":
            new = new_rows(count + 1, seed=number)
            held = layer.update(*new)
            keys, values = torch.cat([keys, new[0]], 2), torch.cat([values, new[1]], 2)
            assert torch.equal(held[0], keys)
            assert torch.equal(held[1], values)
        else:
            layer.crop(count)
            keys, values = keys[:, :, :count], values[:, :, :count]
        assert layer.get_seq_length() == keys.shape[2]
        assert layer.get_mask_sizes(3) == (keys.shape[2] + 3, 0)
        if layer.is_initialized:
            assert torch.equal(layer.held_keys, keys)
            assert torch.equal(layer.held_values, values)


@pytest.mark.parametrize(("num_rows", "capacity"), [(1, 64), (64, 64), (65, 128), (129, 256)])
def test_room_is_made_for_the_rows_however_wide_they_are(num_rows: int, capacity: int) -> None:
    layer = GrowingLayer()
    layer.update(torch.ones(1, 2, num_rows, 160), torch.ones(1, 2, num_rows, 80))
    assert (layer.keys.shape[2], layer.values.shape[2]) == (capacity, capacity)
    assert layer.reserved_bytes == 4 * 2 * capacity * (160 + 80)


def test_a_new_row_moves_no_other() -> None:
    layer = GrowingLayer()
    layer.update(*new_rows(1))
    addresses = set()
    for step in range(1, 1000):
        layer.update(*new_rows(1, seed=step))
        addresses.add(layer.keys.data_ptr())
    assert layer.keys.shape[2] == 1024
    assert len(addresses) == 5, "64, 128, 256, 512, 1024: four moves in a thousand steps"


@pytest.mark.parametrize(("tokens", "capacity"), [(1, 64), (64, 64), (65, 128), (128, 128), (129, 256), (5000, 8192)])
def test_capacity_is_the_next_power_of_two(tokens: int, capacity: int) -> None:
    assert grown_capacity(tokens) == capacity


@pytest.mark.parametrize("failing", ["keys", "values"])
def test_a_failed_allocation_changes_nothing(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    layer = GrowingLayer()
    layer.update(*new_rows(64))
    keys, values = layer.keys, layer.values
    calls = iter([False, True] if failing == "values" else [True])
    real = layer_module.grown

    def grown(*args: object) -> torch.Tensor:
        if next(calls):
            raise MemoryError("no room")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(layer_module, "grown", grown)
    with pytest.raises(MemoryError):
        layer.reserve(1)
    assert layer.keys is keys
    assert layer.values is values
    assert layer.get_seq_length() == 64


def test_the_layers_of_a_small_cache_lie_side_by_side_and_are_read_as_one() -> None:
    room = LayerBuffers(3)
    layers = [GrowingLayer(room, index) for index in range(3)]
    for step, count in enumerate((1, 64, 3)):
        for index, layer in enumerate(layers):
            layer.update(*new_rows(count, seed=10 * step + index))
        held = stacked_view([layer.held_keys for layer in layers])
        assert held.data_ptr() == layers[0].keys.data_ptr(), "a view, no copy"
        assert torch.equal(held, torch.stack([layer.held_keys for layer in layers]))


def test_a_large_buffer_and_one_of_another_shape_stand_alone() -> None:
    room = LayerBuffers(2)
    small, other = GrowingLayer(room, 0), GrowingLayer(room, 1)
    keys, values = new_rows(5)
    small.update(keys, values)
    other.update(keys[..., :2].clone(), values)
    assert other.keys.shape == (1, 2, 64, 2)
    assert torch.equal(small.held_keys, keys)
    assert torch.equal(other.held_keys, keys[..., :2])
    small.update(*new_rows(SHARED_CAPACITY))
    assert small.keys.untyped_storage().nbytes() == small.keys.nbytes
    assert torch.equal(small.held_keys[:, :, :5], keys)


def test_tensors_that_are_not_evenly_spaced_are_copied() -> None:
    block = torch.randn(4, 3, 5)
    uneven = [block[0], block[1], block[3]]
    assert torch.equal(stacked_view(uneven), torch.stack(uneven))
    backwards = [block[2], block[1]]
    assert torch.equal(stacked_view(backwards), torch.stack(backwards))
    mixed = [block[0], block.transpose(1, 2).contiguous().transpose(1, 2)[1]]
    assert torch.equal(stacked_view(mixed), torch.stack(mixed))
    apart = [torch.ones(2), torch.zeros(2)]
    assert torch.equal(stacked_view(apart), torch.stack(apart))
    assert torch.equal(stacked_view([block[1]]), block[1:2])
