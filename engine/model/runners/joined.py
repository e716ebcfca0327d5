"""Linear layers of one input as one matrix product, and products of a few tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import linear

JOINED_BYTES = 64 << 20  # products of larger matrices take so long that one more call makes no difference
FEW = range(4, 16)  # tokens
PART = 1024  # rows of the weight matrix


def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`linear`, the same to the last bit. For one token each of several sequences, `[B, 1, D]`, a CPU takes twice as
    long for a large matrix as for its parts: a part stays in the processor's caches while it is read again for each
    token."""
    batch, count = rows.shape[:2]
    is_slow = batch in FEW and count == 1 and bias is None and weight.shape[0] > PART
    is_usual = not is_slow or torch.compiler.is_compiling() or weight.dtype != torch.float32
    if is_usual or weight.device.type != "cpu":
        return linear(rows, weight, bias)
    flat, made = rows[:, 0], rows.new_empty(batch, len(weight))
    for out, part in zip(made.split(PART, 1), weight.split(PART), strict=True):  # type: ignore[no-untyped-call]
        torch.mm(flat, part.t(), out=out)
    return made[:, None]


class Joined:
    """Several linear layers of one input as one product; their results are concatenated. `views` are the parameters
    that must lie at their `places` in it."""

    def __init__(self, maps: Sequence[nn.Linear], is_joined: bool) -> None:
        self._maps = maps
        biases = [m.bias for m in maps if m.bias is not None]
        is_small = sum(m.weight.nbytes for m in maps) <= JOINED_BYTES
        self._matrix = self._bias = None
        if is_joined and is_small and len(biases) in (0, len(maps)):
            self._matrix = joined([m.weight for m in maps])
            self._bias = joined(biases) if biases else None
        self.views = [*(m.weight for m in maps), *biases]
        self.places = [view.data_ptr() for view in self.views]

    def __call__(self, rows: torch.Tensor, is_in_place: bool) -> torch.Tensor:
        """The results for rows `[B, T, D]`; `is_in_place`: all views are still where they were."""
        if self._matrix is not None and is_in_place:
            return product(rows, self._matrix, self._bias)
        return torch.cat(self.separate(rows), -1)

    def separate(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """The results of the layers as separate tensors."""
        return [product(rows, m.weight, m.bias) for m in self._maps]


@torch.inference_mode(False)  # tensors made in inference mode could not be changed in place outside of it
@torch.no_grad()
def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate parameters of one width into one tensor, of which each parameter becomes a view."""
    whole = torch.cat([part.data for part in parts])
    for part, view in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
        part.data = view
    return whole
