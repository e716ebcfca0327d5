"""What a step measures of its rows and its attention, in numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from engine.look.measures import (
    NewRows,
    NewRowStatistics,
    attention_measures,
    attention_summary,
    bit_sums,
    entropy_of,
    keepable_rows,
    row_checksums,
)
from engine.wire.records import AttentionSummary


def summary_of(weights: dict[int, torch.Tensor], num_tokens: int) -> AttentionSummary | None:
    measured = attention_measures(keepable_rows(weights, num_tokens), num_tokens)
    return attention_summary({name: numbers.numpy() for name, numbers in measured.items()}, tuple(weights))


def told_of(rows: dict[int, tuple[torch.Tensor, torch.Tensor]], first_position: int = 0) -> NewRowStatistics:
    """What is told of rows of which the last three are new."""
    new = NewRows.of(rows, 3)
    return new.statistics({name: found.numpy() for name, found in new.measure(rows).items()}, first_position)


EVEN = torch.full((2, 20), 0.05)  # two heads that look at twenty tokens alike


def test_mass_on_the_first_token_and_on_the_latest() -> None:
    summary = summary_of({3: EVEN}, 20)
    assert summary is not None
    assert summary.layers == (3,)
    assert summary.first_mass[0].tolist() == pytest.approx([0.05, 0.05])
    assert summary.recent_mass[0].tolist() == pytest.approx([0.8, 0.8])
    assert keepable_rows({3: EVEN}, 20)[3] is EVEN, "what is new is not copied because it is long"


def test_a_window_that_has_left_the_first_token_gives_it_no_mass() -> None:
    """Its first weight is of another token; layers of both kinds stand in one summary."""
    summary = summary_of({0: EVEN, 1: torch.full((1, 4), 0.25)}, 20)
    assert summary is not None
    assert summary.first_mass[0].tolist() == pytest.approx([0.05, 0.05])
    assert summary.first_mass[1, 0] == 0
    assert math.isnan(summary.first_mass[1, 1]), "one head is not there"
    assert summary.recent_mass[1, 0] == pytest.approx(1)


def test_room_behind_the_last_token_is_cut_off() -> None:
    padded = torch.cat([EVEN, torch.zeros(2, 32)], 1)
    rows, summary = keepable_rows({0: padded}, 20), summary_of({0: padded}, 20)
    assert summary is not None
    assert rows[0].shape == (2, 20)
    assert summary.recent_mass[0].tolist() == pytest.approx([0.8, 0.8])
    assert rows[0].data_ptr() != padded.data_ptr(), "a view would keep all of the room"


def test_layers_and_sequences_that_share_a_tensor_keep_no_more_than_they_need() -> None:
    together = torch.rand(4, 3, 2, 20)  # layers, sequences
    mine = {layer: together[layer, 1] for layer in range(4)}
    assert keepable_rows(mine, 20, num_together=3)[2].data_ptr() == mine[2].data_ptr(), "the others keep theirs"
    assert keepable_rows(mine, 20)[2].data_ptr() != mine[2].data_ptr(), "two thirds would be nobody's"


def test_entropy_of_even_and_of_certain_weights_and_of_rows_that_were_dropped() -> None:
    row = torch.zeros(3, 9)
    row[0, 4], row[1], row[2] = 1, 1 / 9, torch.tensor([0.5, 0.5, *[math.nan] * 7])
    assert entropy_of(row).tolist() == pytest.approx([0, math.log(9), math.log(2)], abs=1e-6)


def test_nothing_watched_is_no_summary() -> None:
    assert summary_of({}, 9) is None


@pytest.mark.parametrize("held", [3, 2])
def test_values_that_are_no_numbers_are_found_where_they_stand(held: int) -> None:
    """Three new rows from position 10 on; a window of two holds the last two of them."""
    keys, values = torch.ones(2, held, 4), torch.ones(2, held, 4)
    keys[1, held - 2, :3] = math.nan
    values[0, held - 1, 2] = math.inf
    rows = {5: (keys, values)}
    found = told_of(rows, first_position=10).non_finite
    assert [(one.tensor, one.layer, one.kv_head, one.position, one.count) for one in found] == [
        ("keys", 5, 1, 11, 3),
        ("values", 5, 0, 12, 1),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_checksum_sees_one_bit_and_two_that_changed_places(dtype: torch.dtype) -> None:
    rows = torch.randn(3, 2, 5, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    first = bit_sums(rows)
    assert first.tolist() == [int(bit_sums(one[None])) for one in rows]
    other = rows.clone()
    other.view(torch.uint8)[1, 0, 3, 2] ^= 1
    assert (bit_sums(other) != first).tolist() == [False, True, False]
    exchanged = rows.clone()
    exchanged[2, 1, 4, 6], exchanged[2, 1, 4, 7] = rows[2, 1, 4, 7], rows[2, 1, 4, 6]
    assert (bit_sums(exchanged) != first).tolist() == [False, False, True]


def test_checksums_are_the_same_with_statistics_and_without_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.Generator().manual_seed(2)
    rows = {layer: (torch.randn(2, 3, 8, generator=made), torch.randn(2, 3, 8, generator=made)) for layer in (0, 2)}
    ragged = {**rows, 3: (torch.randn(1, 2, 8, generator=made), torch.randn(1, 2, 4, generator=made))}
    for each in (rows, ragged):
        assert told_of(each).checksums == row_checksums(each)
    whole = row_checksums(rows)
    monkeypatch.setattr("engine.look.measures.AT_ONCE", 50)
    assert row_checksums(rows) == told_of(rows).checksums == whole
    assert all(-(1 << 63) <= checksum < 1 << 63 for checksum in whole.values())


def test_the_bits_of_many_numbers_have_the_sums_that_they_have_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(5, 2, 7, 3, generator=torch.Generator().manual_seed(0))
    at_once = bit_sums(rows)
    monkeypatch.setattr("engine.look.measures.AT_ONCE", 50)
    assert torch.equal(bit_sums(rows), at_once)
    assert len(set(at_once.tolist())) == 5


def test_rows_of_layers_side_by_side_are_told_as_rows_apart() -> None:
    weights = torch.rand(3, 4, 40, generator=torch.Generator().manual_seed(0)).softmax(-1)
    apart = {layer: row.clone() for layer, row in enumerate(weights)}
    together, alone = (attention_measures(rows, 40)["attention"] for rows in (dict(enumerate(weights)), apart))
    assert torch.equal(together, alone)
    torch.testing.assert_close(together, torch.stack([weights[..., 0], weights[..., -16:].sum(-1)], -1))


def test_the_entropy_of_one_weight_is_zero_and_not_minus_zero() -> None:
    found = entropy_of(torch.tensor([[1.0, 0.0], [1.0 + 1e-6, 0.0], [0.5, 0.5]]))
    assert [math.copysign(1, each) for each in found.tolist()] == [1, 1, 1]
    assert found.tolist() == pytest.approx([0.0, 0.0, math.log(2)])
