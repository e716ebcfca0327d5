"""How far one distribution stands from another: a number where both are distributions, and none where they are not."""

from __future__ import annotations

import math

import pytest
import torch

from engine.look.candidates import kl_divergence

LOGITS = torch.tensor([2.0, 0.5, -1.0, 0.0])


def test_it_is_the_sum_that_defines_it_and_never_below_zero() -> None:
    other = torch.tensor([0.0, 1.0, 0.5, -2.0])
    p, q = LOGITS.double().softmax(-1), other.double().softmax(-1)
    assert kl_divergence(LOGITS, other) == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)
    assert kl_divergence(LOGITS, LOGITS + 7) == pytest.approx(0.0, abs=1e-6)
    assert kl_divergence(LOGITS, LOGITS) == 0.0


def test_what_has_no_probability_counts_where_it_had_some() -> None:
    padded = torch.cat([LOGITS, torch.tensor([-torch.inf])])
    assert kl_divergence(padded, padded) == 0.0
    assert kl_divergence(padded, torch.cat([LOGITS, torch.tensor([1.0])])) > 0
    assert kl_divergence(torch.cat([LOGITS, torch.tensor([1.0])]), padded) == math.inf


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_numbers_that_are_no_distribution_are_not_said_to_be_the_same(broken: float) -> None:
    other = LOGITS.clone()
    other[2] = broken
    assert math.isnan(kl_divergence(LOGITS, other))
    assert math.isnan(kl_divergence(other, LOGITS))
