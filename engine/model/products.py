"""Measures the time that the matrix products of a model take alone: a lower bound for a forward of one token."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import nn

from engine.device import device_now

TIMES = 5


@torch.inference_mode()
def products_ms(model: nn.Module, device: torch.device) -> float:
    """Milliseconds to multiply one vector with every weight of every linear layer and nothing else: the median of a few
    runs after a warm-up. 0 where a model has no plain linear layers."""
    maps = [module for module in model.modules() if type(module) is nn.Linear]
    if not maps:
        return 0.0
    vectors = {(m.in_features, m.weight.dtype, m.weight.device): m.weight.new_ones(1, m.in_features) for m in maps}
    work = [(m.weight, vectors[m.in_features, m.weight.dtype, m.weight.device]) for m in maps]
    times = [_once(work, device) for _ in range(TIMES + 1)]
    return statistics.median(times[1:])


def _once(work: Sequence[tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> float:
    began = device_now(device)
    for weight, vector in work:
        nn.functional.linear(vector, weight)
    return device_now(device).ms_since(began)
