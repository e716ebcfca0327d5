"""The divergence between two distributions of the next token."""

from __future__ import annotations

import math

import torch


def kl_divergence(before: torch.Tensor, after: torch.Tensor) -> float:
    """KL(before || after) in nats of the distributions of two rows of logits `[V]`, computed in their dtype; NaN if one
    of them has a NaN or a logit of +Inf. Tokens without probability before do not count."""
    expected, found = before.log_softmax(-1), after.log_softmax(-1)
    kl = float(torch.where(expected == -torch.inf, 0.0, expected.exp() * (expected - found)).sum())
    return kl if math.isnan(kl) else max(0.0, kl)
