"""Tensors of a step side by side in one buffer, so that they leave the device as one copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 16  # bytes: every place can be viewed as any dtype

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class PackedTensor:
    """Where a tensor of a shape lies in the buffer, from byte `offset` on. What NumPy has no dtype for is bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class Packing:
    """The places of all tensors of one step, and how many bytes they take."""

    places: tuple[PackedTensor, ...]
    num_bytes: int

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Packing:
        """One after the other, in the order given."""
        places, offset = [], 0
        for name, tensor in tensors.items():
            places.append(PackedTensor(name, tuple(tensor.shape), tensor.dtype, offset, tensor.nbytes))
            offset += -(-places[-1].num_bytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(places), offset)

    def pack(self, tensors: Mapping[str, torch.Tensor], buffer: torch.Tensor) -> None:
        """Copy them into the buffer `[…, num_bytes or more]` of bytes, on its device; each tensor has the axes of the
        buffer in front of its own. Nothing is read by the host."""
        for place in self.places:
            self.view(place, buffer).copy_(tensors[place.name])

    def view(self, place: PackedTensor, buffer: torch.Tensor) -> torch.Tensor:
        """The tensor of a place, where it lies in the buffer."""
        room = buffer.narrow(-1, place.offset, place.num_bytes).view(place.dtype)
        return room.view((*buffer.shape[:-1], *place.shape))

    def unpack(self, buffer: npt.NDArray[np.uint8]) -> Arrays:
        """Copies of them, out of what has left the device."""
        found = {}
        for place in self.places:
            content = buffer[place.offset : place.offset + place.num_bytes].copy()
            kind = NUMPY.get(place.dtype)
            found[place.name] = content if kind is None else content.view(kind).reshape(place.shape)
        return found


NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.uint8: np.uint8,
}
