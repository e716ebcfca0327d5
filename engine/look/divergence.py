"""How far one distribution of the next token stands from another."""

from __future__ import annotations

import math

import torch


def divergence(before: torch.Tensor, after: torch.Tensor) -> float:
    """KL(before || after) in nats of the distributions of two rows of logits `[V]`, in their precision; NaN where one
    of them is no distribution: it has a NaN, or a logit of +Inf. What has no probability before counts nothing."""
    expected, found = before.log_softmax(-1), after.log_softmax(-1)
    kl = float(torch.where(expected == -torch.inf, 0.0, expected.exp() * (expected - found)).sum())
    return kl if math.isnan(kl) else max(0.0, kl)
