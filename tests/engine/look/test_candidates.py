"""What is told of the next token against numpy: of several sequences at once, in vocabularies small and large."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.look.candidates import GROUP, NUM_CANDIDATES, Sample, candidate_measures, largest, next_token


def told(samples: list[Sample]) -> list[object]:
    return [
        next_token({name: part.numpy() for name, part in measured.items()}, one.token_id, lambda i: f"t{i}")
        for measured, one in zip(candidate_measures(samples), samples, strict=True)
    ]


def logprobs_of(size: int, seed: int) -> torch.Tensor:
    made = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3
    made[[3, 8]] = made.max()  # the first two are equally probable
    return made.log_softmax(0)


@pytest.mark.parametrize("size", [7, 300, GROUP * NUM_CANDIDATES, GROUP * NUM_CANDIDATES + 1, 9_000])
def test_the_most_probable_the_entropy_and_the_chosen_one(size: int) -> None:
    rows = [logprobs_of(size, seed) if size > 8 else logprobs_of(9, seed)[:size].log_softmax(0) for seed in range(3)]
    worst = [int(row.argmin()) for row in rows]
    drawn = [row.exp().masked_fill(torch.arange(size) == 1, 0.0) for row in rows]
    samples = [
        Sample(rows[0].argmax(), rows[0], None),
        Sample(torch.tensor(worst[1]), rows[1], drawn[1]),
        Sample(torch.tensor(2), rows[2], drawn[2]),
    ]
    for number, (sample, found) in enumerate(zip(samples, told(samples), strict=True)):
        row = rows[number].numpy().astype(np.float64)
        order = sorted(range(size), key=lambda i, row=row: (-row[i], i))[:NUM_CANDIDATES]
        if sample.token_id not in order:
            order[-1] = sample.token_id
        assert [c.token_id for c in found.candidates] == order  # type: ignore[attr-defined]
        for c in found.candidates:  # type: ignore[attr-defined]
            assert (c.text, c.logprob) == (f"t{c.token_id}", pytest.approx(row[c.token_id], abs=1e-6))
            assert c.prob == pytest.approx(math.exp(row[c.token_id]), rel=1e-5)
            own = float(c.token_id == sample.token_id) if sample.probs is None else float(sample.probs[c.token_id])
            assert c.sampled_prob == pytest.approx(own)
        assert found.entropy == pytest.approx(-(np.exp(row) * row).sum(), rel=1e-4)  # type: ignore[attr-defined]


def test_what_is_no_number_has_no_entropy_and_that_of_certainty_is_zero() -> None:
    certain = torch.full((40,), -math.inf)
    certain[7] = 0.0
    (found,) = told([Sample(torch.tensor(7), certain, None)])
    assert (found.entropy, found.candidates[0].token_id) == (0.0, 7)  # type: ignore[attr-defined]
    assert str(found.entropy) == "0.0"  # type: ignore[attr-defined]
    bad = certain.clone()
    bad[[2, 3]] = math.nan
    (found,) = told([Sample(torch.tensor(7), bad, None)])
    assert math.isnan(found.entropy)  # type: ignore[attr-defined]
    assert candidate_measures([]) == []


def test_the_largest_of_a_large_vocabulary_are_exact() -> None:
    """All of them in one group, or each in a group of its own, the last of which is not full."""
    rows = torch.zeros(2, GROUP * 7 + 5)
    rows[0, GROUP + torch.arange(5)] = torch.arange(5.0) + 1
    places = torch.tensor([0, GROUP * 2 - 1, GROUP * 3, GROUP * 7 + 4, GROUP * 6])
    rows[1, places] = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0])
    ids, values = largest(rows, 5)
    assert ids.tolist() == [[GROUP + 4 - n for n in range(5)], places.tolist()]
    assert values.tolist() == [[5, 4, 3, 2, 1], [9, 8, 7, 6, 5]]
