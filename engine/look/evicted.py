"""The rows that a step evicted: measured for all layers at once on the device, and made into records on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from engine.cache.contract import Evicted, EvictedRows
from engine.cache.stacking import on_one_device, stacked_view
from engine.look.packing import Arrays
from engine.wire.records import NUM_QUANTILES, Eviction, Survivors, read_only

MEASURED = ("positions", "scores", "quantiles", "on_merit")


@dataclass(frozen=True, eq=False)
class EvictedInStep:
    """What one step evicted, in the order of its record. Evictions that the host already knows go into the record
    unchanged."""

    evicted: Sequence[Evicted] = ()

    @property
    def _alike(self) -> list[dict[int, EvictedRows]]:
        """Groups of layers that evicted equally many rows of equally many, each by place in `evicted`."""
        found: dict[tuple[object, ...], dict[int, EvictedRows]] = {}
        for place, each in enumerate(self.evicted):
            if isinstance(each, EvictedRows):
                found.setdefault((each.scores.shape, each.kept.shape), {})[place] = each
        return list(found.values())

    def measure(self) -> dict[str, torch.Tensor]:
        """Measure which rows were evicted, and the scores of these and of the rows kept, by name; nothing is read by
        the host."""
        return {
            f"{group}.{name}": tensor
            for group, rows in enumerate(self._alike)
            for name, tensor in zip(MEASURED, measured(list(rows.values())), strict=True)
        }

    def evictions(self, arrays: Arrays) -> tuple[Eviction, ...]:
        """The evictions as records, from the measured arrays on the host."""
        found: dict[int, tuple[Eviction, ...]] = {
            place: (each,) for place, each in enumerate(self.evicted) if isinstance(each, Eviction)
        }
        for group, rows in enumerate(self._alike):
            numbers = zip(*(arrays[f"{group}.{name}"] for name in MEASURED), strict=True)
            found |= {
                place: layer_evictions(each, *own) for (place, each), own in zip(rows.items(), numbers, strict=True)
            }
        return tuple(eviction for place in sorted(found) for eviction in found[place])


def measured(rows: Sequence[EvictedRows]) -> tuple[torch.Tensor, ...]:
    """For N layers: positions `[N, H_kv, E]` of the evicted rows, their scores, quantiles `[N, H_kv, Q]` (ascending) of
    the scores of the unprotected rows kept, and how many of these there are in each head, `[N]`. Q is at most
    `NUM_QUANTILES`; where there are fewer such rows, the last columns mean nothing."""

    def stacked(name: str) -> torch.Tensor:
        return stacked_view(on_one_device(getattr(each, name) for each in rows))

    scores, kept, is_on_merit = stacked("scores").float(), stacked("kept"), stacked("on_merit")
    num_merit = is_on_merit[:, 0].gather(1, kept[:, 0]).sum(1)
    ranked = scores.masked_fill(~is_on_merit, torch.inf).gather(2, kept).sort(2).values
    order = torch.arange(min(NUM_QUANTILES, kept.shape[2]), device=scores.device)
    last = num_merit[:, None] - 1
    spaced = (order * last / (NUM_QUANTILES - 1)).round().long()
    places = torch.where(last >= NUM_QUANTILES, spaced, order)[:, None].expand(-1, ranked.shape[1], -1)
    return stacked("positions"), scores.gather(2, stacked("evicted")), ranked.gather(2, places), num_merit


def layer_evictions(
    rows: EvictedRows, positions: Any, scores: Any, quantiles: Any, on_merit: Any
) -> tuple[Eviction, ...]:
    """The records of one layer's evictions `[H_kv, E]`: one for each head, or a single one where all heads evicted the
    same."""
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
