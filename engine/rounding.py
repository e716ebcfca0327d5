"""What the order of additions may change, by dtype, and where a cache departs further than that.

`verify` and Parity judge by these numbers. Roundings are 2^-8 of a number in bfloat16 and 2^-11 in float16, so float16
is allowed an eighth of bfloat16. Healthy caches of the bundled model stay below half of it. A wrong row of few among
many hardly moves a logit: rows are compared as well, and more sharply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import torch

from engine.cache.adapter import HeldRows, SequenceCache
from engine.geometry import LayerGeometry

# of a logit; and of a row of K or V, over the largest number of that row
LOGIT_TOLERANCE: Final = {"float32": 1e-3, "float16": 1e-1, "bfloat16": 8e-1}
ROW_TOLERANCE: Final = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}

Tensor = Literal["keys", "values"]


@dataclass(frozen=True)
class WrongRow:
    """The first position, in the lowest layer that has any, whose row departs beyond rounding."""

    layer: int
    tensor: Tensor
    position: int


def largest(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference; what is not finite on one side alone is infinitely far. A vocabulary may be padded with
    -inf on both sides, which differs by nothing."""
    difference = (logits - expected).abs().masked_fill(logits == expected, 0.0)
    return float(difference.nan_to_num(torch.inf, torch.inf).max())


@torch.inference_mode()
def first_wrong_row(
    layers: Iterable[LayerGeometry], cache: SequenceCache, truth: SequenceCache, dtype: str
) -> WrongRow | None:
    """Compare the rows that both caches hold, layer by layer; None where all are the same within rounding."""
    for layer in layers:
        held, true = cache.rows(layer.index), truth.rows(layer.index)
        if held is None or true is None:
            continue
        names: tuple[Tensor, Tensor] = ("keys", "values")
        found = [(p, n) for n in names if (p := first_wrong(held, true, n, ROW_TOLERANCE[dtype])) is not None]
        if found:
            position, name = min(found)
            return WrongRow(layer.index, name, position)
    return None


def first_wrong(mine: HeldRows, true: HeldRows, name: Tensor, tolerance: float) -> int | None:
    """The first position where a head's row departs from the truth by more than the tolerance, of those both hold."""
    rows, expected = getattr(mine, name)[0].float(), getattr(true, name)[0].float()
    here, there = positions_of(mine), positions_of(true)
    slots = torch.searchsorted(there, here).clamp(max=there.shape[1] - 1)
    is_shared = there.gather(1, slots) == here
    expected = expected.gather(1, slots[..., None].expand(-1, -1, expected.shape[2]))
    scale = expected.abs().amax(-1).clamp(min=1e-6)
    error = (rows - expected).abs().amax(-1) / scale
    is_wrong = ~(error <= tolerance) & is_shared  # a NaN is wrong
    return int(here[is_wrong].min()) if bool(is_wrong.any()) else None


def positions_of(held: HeldRows) -> torch.Tensor:
    """Where the rows held stand, `[H_kv, S]`, ascending."""
    if held.positions is not None:
        return held.positions.contiguous()
    heads, count = held.keys.shape[1], held.keys.shape[2]
    return torch.arange(held.first, held.first + count, device=held.keys.device).repeat(heads, 1)
