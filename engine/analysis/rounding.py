"""Tells rounding from faults: finds rows that differ by more than the table in `tolerance` allows.

Logits in few bits can hide one wrong row among many, or a lossy code of all rows. Therefore rows are compared as well,
with smaller tolerances. Rows of layer 0 depend on the tokens alone and must agree to the last bit or two. Rounding
errors of a layer propagate to the next ones; errors of independent layers add up like the square root of their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from engine.analysis.tolerance import TOLERANCES
from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.geometry.dimensions import LayerGeometry
from engine.look.source import PARTS, Rows, gather_rows, slots_of
from engine.spec.codec import Part


@dataclass(frozen=True)
class WrongRow:
    """The first position, in the lowest layer that has one, whose row differs by more than rounding or is missing."""

    layer: int
    tensor: Part
    position: int


def largest(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference; a value that is not finite on one side only is infinitely far. Equal infinities,
    such as -inf for padded vocabulary entries, do not differ."""
    difference = (logits - expected).abs().masked_fill(logits == expected, 0.0)
    return float(difference.nan_to_num(torch.inf, torch.inf).max())


@torch.inference_mode()
def first_wrong_row(
    layers: Iterable[LayerGeometry], cache: SequenceCache, truth: SequenceCache, dtype: str
) -> WrongRow | None:
    """Compare the rows of both caches, layer by layer; None if all are equal within rounding.

    A missing row that the next token would read is wrong, unless one of the caches evicts rows by a rule or keeps none
    between steps.
    """
    keeps_all = all(each.spec.retention.keeps_all and not each.spec.recomputes for each in (cache, truth))
    for layer in layers:
        held, true = cache.rows(layer.index), truth.rows(layer.index)
        if true is None or not true.keys.shape[2]:
            continue
        required = max(0, true.stop - layer.window + 1) if layer.window is not None else 0
        if held is None or not held.keys.shape[2]:
            if keeps_all:
                return WrongRow(layer.index, "keys", max(required, int(numbers_of(true, "keys")[1].min())))
            continue
        tolerance = TOLERANCES[dtype].of_row(layer.index)
        found = [
            (position, name)
            for name in PARTS
            if (position := first_wrong(held, true, name, tolerance, required if keeps_all else None)) is not None
        ]
        if found:
            position, name = min(found)
            return WrongRow(layer.index, name, position)
    return None


def first_wrong(
    mine: HeldRows, true: HeldRows, name: Part, tolerance: float, required: int | None = None
) -> int | None:
    """The first position where a head's row differs from the true one by more than the tolerance, among the rows that
    both hold, or where a row at `required` or later is missing."""
    (rows, here), (expected, there) = (numbers_of(each, name) for each in (mine, true))
    slots, is_held = slots_of(here, there)
    is_wrong = ~(row_errors(gather_rows(rows, slots), expected) <= tolerance) & is_held  # NaN counts as wrong
    if required is not None:
        is_wrong |= ~is_held & (there >= required)
    return int(there[is_wrong].min()) if bool(is_wrong.any()) else None


def numbers_of(held: HeldRows, name: Part) -> tuple[torch.Tensor, torch.Tensor]:
    """K or V `[H_kv, S, D]` in float32, and the positions `[H_kv, S]`, ascending."""
    rows = Rows.of(held, name)
    assert rows is not None
    return rows.numbers.float(), rows.places


def row_errors(rows: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Errors `[H, S]` of rows `[H, S, D]`, relative to the size of each row.

    Both are root mean squares over the channels, after dividing each channel by its own size over all rows: else a
    channel much larger than the others would decide alone. A channel smaller than the median is divided by the median.
    """
    sizes = expected.square().mean(1, keepdim=True).sqrt()  # [H, 1, D]
    units = torch.maximum(sizes, sizes.median(2, keepdim=True).values).clamp(min=1e-6)
    own = (expected / units).square().mean(2).sqrt().clamp(min=1e-6)
    return ((rows - expected) / units).square().mean(2).sqrt() / own
