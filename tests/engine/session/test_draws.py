"""Random numbers from a seed, a position and a token: the published SplitMix64, evenly spread, the same on a GPU."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
import torch

from engine.session.sampler import drawn, exponentials, number, numbers
from engine.spec.sampling import DrawRule, SamplingParams
from tests.engine.card import CARD, card, has_card
from tests.engine.card_streams import Card

CPU = torch.device("cpu")
# printed by other implementations of SplitMix64
PUBLISHED = {
    0: (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B),
    1234567: (
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", PUBLISHED)
def test_numbers_are_those_that_were_published(seed: int) -> None:
    assert tuple(number(seed, index) for index in range(5)) == PUBLISHED[seed]
    assert tuple(each % 2**64 for each in numbers(seed, 5, CPU).tolist()) == PUBLISHED[seed]


def test_numbers_of_the_largest_seeds_are_the_same_one_by_one_and_together() -> None:
    for seed in (2**63 - 1, 2**63, 2**64 - 1):
        assert [number(seed, index) for index in range(9)] == [each % 2**64 for each in numbers(seed, 9, CPU).tolist()]


def test_exponentials_have_their_distribution_and_none_is_zero() -> None:
    found = exponentials(3, 7, 400_001, CPU)
    assert (found.shape, found.dtype) == ((400_001,), torch.float32)
    assert float(found.min()) > 0
    for quantile in (1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999):
        share = float((found < -torch.log1p(torch.tensor(-quantile))).double().mean())
        assert share == pytest.approx(quantile, abs=5 * (quantile * (1 - quantile) / len(found)) ** 0.5)
    halves = found[:-1].view(-1, 2)  # two of each number
    assert abs(float(torch.corrcoef(halves.T)[0, 1])) < 0.01


def test_numbers_of_neighbouring_seeds_positions_and_tokens_are_uncorrelated() -> None:
    rows = torch.stack([exponentials(seed, position, 4000, CPU) for seed in (0, 1, 2) for position in (0, 1, 2)])
    shifted = torch.cat([rows, rows.roll(1, 1), rows.roll(2, 1)])
    correlations = torch.corrcoef(shifted) - torch.eye(len(shifted))
    assert float(correlations.abs().max()) < 0.08, "five standard deviations"


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    probs, sampling = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.04, 0.01]), SamplingParams(1.0, seed=5, draws="counter")
    found = torch.bincount(torch.stack([drawn(probs, sampling, position) for position in range(4000)]), minlength=6)
    deviations = (probs * (1 - probs) * 4000).sqrt()
    assert torch.all((found - 4000 * probs).abs() <= 4 * deviations), found


def test_a_position_draws_the_same_token_again_under_each_rule_alone() -> None:
    """A script outside the program draws them from a snapshot, too: `tests/engine/snapshot/test_convert.py`."""
    probs = torch.rand(999, generator=torch.Generator().manual_seed(0)).softmax(-1)
    drawn_by = {
        rule: [int(drawn(probs, SamplingParams(1.0, seed=seed, draws=rule), 7)) for seed in (1, 2, 1)]
        for rule in get_args(DrawRule)
    }
    assert all(one == again != other for one, other, again in drawn_by.values())
    assert drawn_by["torch"] != drawn_by["counter"]
    assert msgspec.json.decode(b'{"temperature": 0.5, "seed": 3}', type=SamplingParams).draws == "torch"


@pytest.mark.skipif(not has_card(), reason="this torch keeps its devices elsewhere")
def test_a_card_makes_the_same_numbers_and_is_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made, expected = Card(), exponentials(5, 9, 1001, CPU)
    with card(monkeypatch, made):
        found = exponentials(5, 9, 1001, CARD)
        assert not made.waits
        assert made.launches <= 20
        assert torch.equal(found.cpu(), expected)
