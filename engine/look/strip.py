"""Measurements of a decode step that are recorded together with its forward: one strip of bytes for each sequence.

The numbers are those that `engine.session.observe` measures after a forward. None of them depends on decisions of the
host, so that a recording is valid for every step of its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.cache.contract import Pair
from engine.look.candidates import likely_tokens
from engine.look.new_rows import NewRows
from engine.look.packing import Packing
from engine.look.probe import RECENT

ROUNDING = 1e-5  # tolerance between two ways of summing the same numbers


@dataclass(frozen=True)
class Wanted:
    """What is measured beside the new rows and the most probable tokens. `attention`: the newest row of attention.
    `new_rows`: the new rows themselves, bit for bit, instead of their measurements. It is constant in a recorded
    step."""

    attention: bool
    new_rows: bool


@dataclass(frozen=True, eq=False)
class StripLayout:
    """The places of the measurements in each strip, and the new rows that they describe."""

    packing: Packing
    new_rows: NewRows


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements of B sequences in one forward: `packed` bytes `[B, bytes]`, and log-probabilities `[B, V]`; or
    of one of them, without that axis."""

    layout: StripLayout
    packed: torch.Tensor
    logprobs: torch.Tensor

    def clone(self) -> Measured:
        """A copy, which the next forward does not overwrite."""
        return Measured(self.layout, self.packed.clone(), self.logprobs.clone())

    def of_each(self) -> list[Measured]:
        return [Measured(self.layout, *pair) for pair in zip(self.packed, self.logprobs, strict=True)]

    def tensor(self, name: str) -> torch.Tensor:
        """One of the tensors of the strip, as a view."""
        place = next(place for place in self.layout.packing.places if place.name == name)
        return self.layout.packing.view(place, self.packed)

    def agrees(self, other: Measured) -> bool:
        """Whether two measurements of the same step are equal but for rounding. The host waits for the answer."""
        for place in self.layout.packing.places:
            mine, others = (self.layout.packing.view(place, each.packed) for each in (self, other))
            if not (near(mine, others) if mine.is_floating_point() else torch.equal(mine, others)):
                return False
        return near(self.logprobs, other.logprobs)


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding; NaN equals NaN."""
    return torch.allclose(found, expected, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)


def measured_step(
    wanted: Wanted,
    logits: torch.Tensor,
    rows: Mapping[int, Pair],
    weights: torch.Tensor | None,
    positions: torch.Tensor,
) -> Measured:
    """Measure a step of B sequences at `positions` `[B, 1]`: logits `[B, V]`, new rows `[B, H_kv, 1, D]` by layer, and,
    if wanted, the newest row of attention `[L, B, H, S]`, zero after the position."""
    logprobs = torch.log_softmax(logits.float(), -1)
    rows_of = [{layer: (keys[n], values[n]) for layer, (keys, values) in rows.items()} for n in range(len(logits))]
    new_rows = NewRows.of(rows_of[0], 1)
    tensors = new_rows.measure_together(rows_of, with_rows=wanted.new_rows) | likely_tokens(logprobs)
    if wanted.attention:
        assert weights is not None
        tensors["attention"] = masses(weights, positions)
    packing = Packing.of({name: tensor[0] for name, tensor in tensors.items()})
    packed = torch.empty(len(logits), packing.num_bytes, dtype=torch.uint8, device=logits.device)
    packing.pack(tensors, packed)
    return Measured(StripLayout(packing, new_rows), packed, logprobs)


def masses(weights: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The mass of attention rows `[L, B, H, S]` on position 0 and on the last 16 up to `positions` `[B, 1]`:
    `[B, L, H, 2]`."""
    columns = positions + torch.arange(1 - RECENT, 1, device=positions.device)  # [B, 16]
    index = columns.clamp_min(0)[None, :, None].expand(*weights.shape[:3], RECENT)
    recent = weights.gather(3, index).masked_fill_((columns < 0)[:, None], 0.0).sum(-1)
    return torch.stack([weights[..., 0], recent], -1).transpose(0, 1)
