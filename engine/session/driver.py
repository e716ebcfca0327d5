"""One forward of one cache."""

from __future__ import annotations

import torch

from engine.cache.attention_probe import Probe
from engine.cache.sequence_cache import SequenceCache
from engine.model.loader import LoadedModel


def feed(
    model: LoadedModel, cache: SequenceCache, fed: list[int], num_new: int, probe: Probe | None, all_logits: bool
) -> torch.Tensor:
    """Feed one sequence whose cache has room; logits `[T or 1, V]`."""
    cache.plan_forward(num_new)
    ids = torch.tensor([fed], device=model.device)
    return model.forward(ids, cache.live, probe, all_logits)[0]
