"""Tensors of several layers as one, wherever they stand."""

from __future__ import annotations

import torch

from engine.cache.stacking import on_one_device


def test_tensors_that_stand_elsewhere_are_brought_to_the_first() -> None:
    here, there = torch.ones(2), torch.ones(2, device="meta")
    assert [each.device.type for each in on_one_device([there, here, here])] == ["meta"] * 3
    same = on_one_device([here, here])
    assert same[0] is here
    assert same[1] is here
    assert on_one_device([]) == []
