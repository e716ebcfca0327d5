"""What each codec writes, and the scales it writes by, in numbers that can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from engine.cache.compressed.codecs import row_codec
from engine.cache.compressed.kivi import Kivi
from engine.spec.codec import Coding


@pytest.mark.parametrize(
    ("name", "scales"),
    [
        ("fp8", [[896 / 448, 896 / 448]]),  # one for the tensor
        ("fp8-head", [[4 / 448, 896 / 448]]),  # one for each head
    ],
)
def test_a_frozen_scale_is_the_largest_number_of_what_shares_it(name: str, scales: list[list[float]]) -> None:
    rows = torch.tensor([[[[1.0, -4.0], [2.0, 0.5]], [[7.0, 0.0], [-896.0, 1.0]]]])  # [1, 2, 2, 2]
    codec = row_codec(Coding(name)).freeze(rows)  # type: ignore[arg-type]
    (codes,) = codec.encode(rows)
    steps = codes.view(torch.float8_e4m3fn).float()
    expected = (rows / torch.tensor(scales).reshape(1, 2, 1, 1)).to(torch.float8_e4m3fn).float()
    assert torch.equal(steps, expected)
    assert codec.shared is not None
    assert codec.shared.nbytes == (4 if name == "fp8" else 8)


def test_int8_reaches_its_largest_code_and_no_further() -> None:
    rows = torch.tensor([[[[12.7, -6.3, 0.1, 0.0]]]])
    codes, scales = row_codec(Coding("int8")).encode(rows)
    assert codes.tolist() == [[[[127, -63, 1, 0]]]]
    assert float(scales) == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("largest", [1.0, 3.0, 448.0, 449.0, 1000.0])
def test_an_e8m0_scale_is_the_power_of_two_that_holds_its_group(largest: float) -> None:
    rows = torch.zeros(1, 1, 1, 32)
    rows[..., 5] = largest
    _, exponents = row_codec(Coding("fp8-max-e8m0", group=32)).encode(rows)
    assert 2.0 ** (int(exponents) - 127) == 2.0 ** math.ceil(math.log2(largest / 448))


def uneven_rows() -> torch.Tensor:
    """`[1, 2, 16, 32]`: every head, token and channel of another size, and above or below zero as a whole."""
    made = torch.randn(1, 2, 16, 32, generator=torch.Generator().manual_seed(5))
    sizes = torch.arange(1.0, 3.0).view(2, 1, 1) * torch.arange(1.0, 17.0).view(16, 1) * torch.arange(1.0, 33.0)
    return made * sizes + sizes.sqrt() * 2


@pytest.mark.parametrize(
    ("coding", "group", "most"),
    [(Coding("int8"), 32, 127), (Coding("fp8-token-head"), 32, 448), (Coding("fp8-max", 8), 8, 448)],
    ids=str,
)
def test_a_scale_of_a_row_is_that_of_the_numbers_that_share_it(coding: Coding, group: int, most: int) -> None:
    rows = uneven_rows()
    codes, scales = row_codec(coding).encode(rows)
    assert codes.shape == rows.shape
    expected = rows.view(1, 2, 16, -1, group).abs().amax(-1) / most
    assert scales.shape == expected.shape
    assert torch.allclose(scales.float(), expected, rtol=1e-3)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_kivis_groups_are_tokens_of_a_channel_and_channels_of_a_token(bits: int) -> None:
    """Scales are rounded up and offsets down in float16, so that no number is beyond its codes."""
    rows = uneven_rows()
    of_keys = rows.view(1, 2, 2, 8, 32).transpose(3, 4)  # [1, 2, groups of tokens, channels, 8]
    of_values = rows.view(1, 2, 16, 4, 8)
    for (_, scales, offsets), groups in (
        (Kivi(bits, 8, "keys").encode(rows), of_keys),
        (Kivi(bits, 8, "values").encode(rows), of_values),
    ):
        low, high = groups.amin(-1), groups.amax(-1)
        assert scales.shape == offsets.shape == low.shape
        assert bool((offsets.float() <= low).all())
        assert torch.allclose(offsets.float(), low, rtol=2e-3, atol=1e-4)
        step = (high - offsets.float()) / (2**bits - 1)
        assert bool((scales.float() >= step).all())
        assert torch.allclose(scales.float(), step, rtol=2e-3, atol=1e-4)
