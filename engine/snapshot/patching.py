"""Rows of a snapshot file as the source of an `Overwrite` edit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.geometry.dimensions import LayerGeometry
from engine.session.edits import RowsFrom, check_shapes, heads_of, places_among
from engine.snapshot.read import SnapshotFile
from engine.spec.codec import Part
from engine.spec.edit import Overwrite


@contextmanager
def rows_of_file(path: str) -> Iterator[RowsFrom]:
    """The rows of a file while the context is open; raises `InputError` if it is no snapshot."""
    with SnapshotFile(Path(path)) as file:
        yield RowsOfFile(file)


@dataclass(frozen=True, eq=False)
class RowsOfFile:
    """The rows of an open snapshot file, as the source of an edit."""

    file: SnapshotFile

    def numbers(self, layer: LayerGeometry, part: Part, edit: Overwrite) -> torch.Tensor:
        """The rows that an edit writes to one layer, `[heads, T, D]`; raises `InputError` if the file lacks them."""
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
