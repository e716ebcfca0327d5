"""What a forward lets us see of attention: the newest row always, more where a rule for dropping rows watches more."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(eq=False)
class Probe:
    """Per layer index: the newest query's weights `[B, H, S]`; the latest `num_rows` queries' `[B, H, t, S]`; the sum
    over all queries of the forward `[B, H, S]`."""

    num_rows: int = 1
    wants_sums: bool = False
    weights: dict[int, torch.Tensor] = field(default_factory=dict)
    rows: dict[int, torch.Tensor] = field(default_factory=dict)
    sums: dict[int, torch.Tensor] = field(default_factory=dict)

    def num_watched(self, num_queries: int) -> int:
        """How many of the latest queries it wants the weights of."""
        return num_queries if self.wants_sums else min(self.num_rows, num_queries)

    def take(self, layer: int, weights: torch.Tensor) -> None:
        """Weights `[B, H, t, S]` of the latest queries."""
        newest = weights[:, :, -1]
        # a row of a large matrix would keep all of it
        self.weights[layer] = newest if weights.shape[2] == 1 else newest.clone()
        if self.wants_sums:
            self.sums[layer] = weights.sum(2)
        if self.num_rows > 1:
            self.rows[layer] = weights[:, :, -self.num_rows :].clone()
