"""Rows of another moment, of another sequence, or of a snapshot file, to be written over those of now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.cache.contract import HeldRows
from engine.geometry.dimensions import LayerGeometry
from engine.look.rows_at import chosen, places_of
from engine.session.edits.numbers import check_shapes
from engine.session.edits.places import heads_of, places_among
from engine.snapshot.read import SnapshotFile
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


@dataclass(frozen=True, eq=False)
class RowsOfFile:
    """Rows of an open snapshot file."""

    file: SnapshotFile

    def numbers(self, layer: LayerGeometry, part: Part, edit: Overwrite) -> torch.Tensor:
        where = f"'{self.file.path}'"
        found = []
        for head in heads_of(edit.rows, layer):
            positions = torch.tensor(np.array(self.file.positions(layer.index, head), np.int64))
            one = edit.rows
            places = places_among(
                positions[None].expand(layer.num_kv_heads, -1), layer, one, one.start + edit.shift, where
            )
            slots = places.slots[0]
            rows = self.file.rows(layer.index, part, head, range(int(slots[0]), int(slots[-1]) + 1))
            numbers = torch.from_numpy(np.array(rows, np.float32))[slots - slots[0]]
            found.append(check_shapes(numbers, layer, part, where))
        return torch.stack(found)
