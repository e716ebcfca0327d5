"""How much of the newest query's attention goes to a span of tokens."""

from __future__ import annotations

import torch

from engine.cache.stacking import on_one_device
from engine.spec.condition import Span
from engine.wire.condition_values import Attention


def attention_mass(rows: dict[int, torch.Tensor], num_tokens: int, span: Span) -> Attention | None:
    """Of rows `[H, S]` by layer, whose last entry is that of the newest of `num_tokens` tokens; what was dropped (NaN)
    receives nothing. None where there are no rows, or the span is of tokens that were not fed yet."""
    first, stop = (span.first, span.last + 1) if span.newest is None else (max(0, num_tokens - span.newest), num_tokens)
    if not rows or first >= num_tokens:
        return None
    masses = torch.cat(on_one_device(_mass(row, num_tokens, first, stop) for row in rows.values()))
    mean, peak = torch.stack([masses.mean(), masses.amax()]).tolist()
    return Attention(mean, peak)


def _mass(row: torch.Tensor, num_tokens: int, first: int, stop: int) -> torch.Tensor:
    """The mass of every head `[H]`; a row of a window has none of the tokens before it."""
    base = num_tokens - row.shape[1]
    return row[:, max(0, first - base) : max(0, stop - base)].float().nansum(-1)
