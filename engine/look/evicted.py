"""The rows that a step dropped: measured of all layers at once where they are, told once that has left the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from engine.cache.contract import Evicted, EvictedRows
from engine.cache.stacking import on_one_device, stacked_view
from engine.look.packing import Arrays
from engine.wire.arrays import read_only
from engine.wire.evictions import NUM_QUANTILES, Eviction, Survivors

TOLD = ("positions", "scores", "quantiles", "on_merit")


@dataclass(frozen=True, eq=False)
class EvictedInStep:
    """What went in one step, in the order of its record. What the host knows already is told as it is."""

    evicted: Sequence[Evicted] = ()

    @property
    def _alike(self) -> list[dict[int, EvictedRows]]:
        """By their place, those of layers that dropped as many rows of as many."""
        found: dict[tuple[object, ...], dict[int, EvictedRows]] = {}
        for place, each in enumerate(self.evicted):
            if isinstance(each, EvictedRows):
                found.setdefault((each.scores.shape, each.kept.shape), {})[place] = each
        return list(found.values())

    def measure(self) -> dict[str, torch.Tensor]:
        """Which rows went, and the scores of those that went and of those that stayed, by name; nothing is read by the
        host."""
        return {
            f"{group}.{name}": tensor
            for group, rows in enumerate(self._alike)
            for name, tensor in zip(TOLD, measured(list(rows.values())), strict=True)
        }

    def told(self, arrays: Arrays) -> tuple[Eviction, ...]:
        """The same as a record tells it."""
        found: dict[int, tuple[Eviction, ...]] = {
            place: (each,) for place, each in enumerate(self.evicted) if isinstance(each, Eviction)
        }
        for group, rows in enumerate(self._alike):
            numbers = zip(*(arrays[f"{group}.{name}"] for name in TOLD), strict=True)
            found |= {place: told_of(each, *own) for (place, each), own in zip(rows.items(), numbers, strict=True)}
        return tuple(eviction for place in sorted(found) for eviction in found[place])


def measured(rows: Sequence[EvictedRows]) -> tuple[torch.Tensor, ...]:
    """Of N layers: positions `[N, H_kv, E]` of what went, its scores, the lowest `[N, H_kv, Q]` to the highest of the
    scores of what stayed on merit, and how many rows did, `[N]`: in every head as many. Q is `NUM_QUANTILES` at most;
    where fewer stayed on merit, the rest of it means nothing."""

    def stacked(name: str) -> torch.Tensor:
        return stacked_view(on_one_device(getattr(each, name) for each in rows))

    scores, kept, is_on_merit = stacked("scores").float(), stacked("kept"), stacked("on_merit")
    num_merit = is_on_merit[:, 0].gather(1, kept[:, 0]).sum(1)
    ranked = scores.masked_fill(~is_on_merit, torch.inf).gather(2, kept).sort(2).values
    order = torch.arange(min(NUM_QUANTILES, kept.shape[2]), device=scores.device)
    last = num_merit[:, None] - 1
    spaced = (order * last / (NUM_QUANTILES - 1)).round().long()
    places = torch.where(last >= NUM_QUANTILES, spaced, order)[:, None].expand(-1, ranked.shape[1], -1)
    return stacked("positions"), scores.gather(2, stacked("dropped")), ranked.gather(2, places), num_merit


def told_of(rows: EvictedRows, positions: Any, scores: Any, quantiles: Any, on_merit: Any) -> tuple[Eviction, ...]:
    """What one layer dropped, `[H_kv, E]`: head by head, or once where every head dropped the same."""
    num_merit = int(on_merit)
    staying = Survivors(num_merit, rows.kept.shape[1] - num_merit)
    return tuple(
        Eviction(
            rows.seq_id,
            rows.layer,
            head if rows.is_per_head else None,
            read_only(positions[head]),
            read_only(scores[head]),
            float(quantiles[head, 0]) if num_merit else None,
            rows.rule,
            replace(staying, quantiles=read_only(quantiles[head, :num_merit])),
        )
        for head in range(len(positions) if rows.is_per_head else 1)
    )
