"""Checksums of a step: they never change, since saved sessions hold them."""

from __future__ import annotations

import torch

from engine.look.measures import bit_sums, row_checksums
from engine.session.observe import PLACES, checksums_of


def plain(values: list[int]) -> int:
    """The checksum in plain Python: each number's bits as an integer, times an odd number of its place, in 64 bits."""
    total = sum(bits * (2 * place + 1) * 0x5DEECE66D for place, bits in enumerate(values))
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)


def test_a_checksum_is_the_same_in_every_version() -> None:
    values = torch.tensor([1.5, -2.0, 0.25, 1e-9, float("inf")])
    bits = values.view(torch.int32).tolist()
    assert bit_sums(values[None]).tolist() == [plain(bits)]
    keys, rows = values.reshape(1, 5, 1), (2 * values).reshape(1, 5, 1)
    both = plain(bits) + 3 * plain(rows.view(torch.int32).flatten().tolist())
    found = row_checksums({4: (keys, rows)})  # type: ignore[dict-item]
    assert found[4] % (1 << 64) == both % (1 << 64)


def test_each_sequence_of_a_step_counts_at_its_place() -> None:
    one, other = {0: 5, 3: -7}, {3: 11}
    assert checksums_of((9, 2), (one, other)) == (5 * 19, -7 * 19 + 11 * (2 * (2 + PLACES) + 1))
    assert checksums_of((9,), (one,)) == (5 * 19, -7 * 19)
    assert checksums_of((0,), ({0: -(1 << 63)},)) == (-(1 << 63),), "no bit is lost"
    assert checksums_of((2,), ({0: -(1 << 63)},)) == (-(1 << 63),)
