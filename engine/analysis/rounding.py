"""How rounding is told from a fault: where rows depart further than the table in `tolerance` allows.

Logits of few bits hide a wrong row of many, and a lossy code of all of them:
rows are compared as well, and more sharply. Rows of layer 0 are made of the tokens and nothing else, and must agree to
the last bit or two. What a layer rounds differently goes on into the next ones: errors of as many independent layers
add up like the square root of their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from engine.analysis.tolerance import TOLERANCES
from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.geometry.dimensions import LayerGeometry

Tensor = Literal["keys", "values"]


@dataclass(frozen=True)
class WrongRow:
    """The first position, in the lowest layer that has any, whose row departs beyond rounding or was lost."""

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
    """Compare the rows of both caches, layer by layer; None where all are the same within rounding.

    A row that the next token would read and that is not there is wrong, unless one of them drops rows by a rule, or
    keeps none between steps.
    """
    keeps_all = all(each.spec.retention.keeps_all and not each.spec.recomputes for each in (cache, truth))
    for layer in layers:
        held, true = cache.rows(layer.index), truth.rows(layer.index)
        if true is None or not true.keys.shape[2]:
            continue
        required = max(0, true.stop - layer.window + 1) if layer.window is not None else 0
        if held is None or not held.keys.shape[2]:
            if keeps_all:
                return WrongRow(layer.index, "keys", max(required, int(positions_of(true).min())))
            continue
        tolerance = TOLERANCES[dtype].of_row(layer.index)
        names: tuple[Tensor, Tensor] = ("keys", "values")
        found = [
            (position, name)
            for name in names
            if (position := first_wrong(held, true, name, tolerance, required if keeps_all else None)) is not None
        ]
        if found:
            position, name = min(found)
            return WrongRow(layer.index, name, position)
    return None


def first_wrong(
    mine: HeldRows, true: HeldRows, name: Tensor, tolerance: float, required: int | None = None
) -> int | None:
    """The first position where a head's row departs from the truth by more than the tolerance, of those both hold, or
    is missing though it stands at `required` or later."""
    rows, expected = getattr(mine, name)[0].float(), getattr(true, name)[0].float()
    here, there = positions_of(mine), positions_of(true)
    slots = torch.searchsorted(here, there).clamp(max=here.shape[1] - 1)
    is_held = here.gather(1, slots) == there
    rows = rows.gather(1, slots[..., None].expand(-1, -1, rows.shape[2]))
    is_wrong = ~(row_errors(rows, expected) <= tolerance) & is_held  # a NaN is wrong
    if required is not None:
        is_wrong |= ~is_held & (there >= required)
    return int(there[is_wrong].min()) if bool(is_wrong.any()) else None


def row_errors(rows: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How far rows `[H, S, D]` are off, `[H, S]`, as a part of their own size.

    Both are root mean squares over the channels, each in units of its own size over all rows: a channel much larger
    than the others would else decide alone. A channel smaller than most counts as if it were of their size.
    """
    sizes = expected.square().mean(1, keepdim=True).sqrt()  # [H, 1, D]
    units = torch.maximum(sizes, sizes.median(2, keepdim=True).values).clamp(min=1e-6)
    own = (expected / units).square().mean(2).sqrt().clamp(min=1e-6)
    return ((rows - expected) / units).square().mean(2).sqrt() / own


def positions_of(held: HeldRows) -> torch.Tensor:
    """Where the rows held stand, `[H_kv, S]`, ascending."""
    if held.positions is not None:
        return held.positions.contiguous()
    heads, count = held.keys.shape[1], held.keys.shape[2]
    return torch.arange(held.first, held.first + count, device=held.keys.device).repeat(heads, 1)
