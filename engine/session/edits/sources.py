"""Rows of another moment, or of another sequence, to be written over those of now."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.cache.contract import HeldRows
from engine.geometry.dimensions import LayerGeometry
from engine.look.rows_at import chosen, places_of
from engine.session.edits.numbers import check_shapes
from engine.session.edits.places import places_among
from engine.spec.codec import Part
from engine.spec.edit import Overwrite


@dataclass(frozen=True, eq=False)
class RowsOfMoment:
    """Rows held by layer, as attention read them; `where` says of what moment."""

    held: dict[int, HeldRows]
    where: str

    def numbers(self, layer: LayerGeometry, part: Part, edit: Overwrite) -> torch.Tensor:
        held = self.held.get(layer.index)
        positions = torch.zeros(layer.num_kv_heads, 0, dtype=torch.long) if held is None else places_of(held)
        places = places_among(positions, layer, edit.rows, edit.rows.start + edit.shift, self.where)
        assert held is not None, "rows without places are refused"
        return check_shapes(chosen(held, part)[0][places.heads[:, None], places.slots], layer, part, self.where)
