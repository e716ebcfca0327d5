"""Attention of the difference of two runs."""

from __future__ import annotations

import torch

from engine.analysis.duel.compare import aligned
from engine.geometry.dimensions import LayerGeometry
from engine.look.reductions import missing_rows
from engine.look.slices import NewestQuery, held_columns


@torch.inference_mode()
def attention_difference(
    row: torch.Tensor | None, other: torch.Tensor | None, query_position: int, layer: LayerGeometry
) -> NewestQuery:
    """The weights `[H, S]` of A minus those of B. Positions that a side had dropped have no difference: they are
    NaN."""
    if row is None or other is None:
        note = "The attention of that step is not kept on both sides."
        return NewestQuery(None, query_position, "difference", note)
    one, two = aligned(*(held_columns(weights, layer, query_position)[0] for weights in (row, other)))
    is_gone = missing_rows(one) | missing_rows(two)
    difference = (one.nan_to_num(0.0) - two.nan_to_num(0.0)).masked_fill(is_gone, torch.nan)
    return NewestQuery(difference, query_position, "difference")
