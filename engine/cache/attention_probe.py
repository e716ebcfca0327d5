"""What a forward lets us see of attention: the newest row always, more where a rule for dropping rows watches more."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(eq=False)
class Probe:
    """Per layer index: the newest query's weights `[B, H, S]`, or its scores still to be normalised; the latest
    `num_rows` queries' weights `[B, H, t, S]`; the sum over all queries of the forward `[B, H, S]`.

    Scores of all layers are turned into weights together: thirty small softmaxes cost more than one.
    """

    num_rows: int = 1
    wants_sums: bool = False
    weights: dict[int, torch.Tensor] = field(default_factory=dict)
    scores: dict[int, torch.Tensor] = field(default_factory=dict)
    latest: dict[int, torch.Tensor] = field(default_factory=dict)
    sums: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def wants_more(self) -> bool:
        """Whether the newest row alone is not enough."""
        return self.wants_sums or self.num_rows > 1

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
            self.latest[layer] = weights[:, :, -self.num_rows :].clone()

    def rows(self) -> dict[int, torch.Tensor]:
        """The newest query's weights of every layer that reported, in order of layers."""
        by_shape: dict[torch.Size, list[int]] = {}
        for layer, scores in self.scores.items():
            by_shape.setdefault(scores.shape, []).append(layer)
        for layers in by_shape.values():
            together = torch.stack([self.scores[layer] for layer in layers]).float().softmax(-1)
            self.weights.update(zip(layers, together, strict=True))
        self.scores.clear()
        return dict(sorted(self.weights.items()))
