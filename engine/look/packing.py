"""Packs the tensors that a step measured into one buffer, so that they leave the device in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct

ALIGNMENT = 16  # bytes, so that every tensor can be viewed in its dtype

Arrays = dict[str, npt.NDArray[Any]]


class PackedTensor(Struct, frozen=True):
    """The place of a tensor in the buffer, from byte `offset` on. A dtype that NumPy does not have is unpacked as
    bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    num_bytes: int


class Packing(Struct, frozen=True):
    """The places of all tensors of one step, and how many bytes they take together."""

    places: tuple[PackedTensor, ...]
    num_bytes: int

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Packing:
        """The tensors one after the other, in the order given."""
        places, offset = [], 0
        for name, tensor in tensors.items():
            places.append(PackedTensor(name, tuple(tensor.shape), tensor.dtype, offset, tensor.nbytes))
            offset += -(-places[-1].num_bytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(places), offset)

    def is_of(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether it is the packing of these tensors, as it is in most steps of those of the step before."""
        form = [(place.name, place.shape, place.dtype) for place in self.places]
        return form == [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]

    def pack(self, tensors: Mapping[str, torch.Tensor], buffer: torch.Tensor) -> None:
        """Copy tensors into the buffer `[…, num_bytes or more]` of bytes on their device; each tensor has the buffer's
        leading axes before its own. Nothing is read by the host."""
        PackedBuffer(self, buffer).pack(tensors)

    def view(self, place: PackedTensor, buffer: torch.Tensor) -> torch.Tensor:
        """A tensor as a view of the buffer."""
        room = buffer.narrow(-1, place.offset, place.num_bytes).view(place.dtype)
        return room.view((*buffer.shape[:-1], *place.shape))

    def unpack(self, buffer: npt.NDArray[np.uint8]) -> Arrays:
        """Copies of all tensors, from the buffer on the host."""
        found = {}
        for place in self.places:
            content = buffer[place.offset : place.offset + place.num_bytes].copy()
            kind = NUMPY.get(place.dtype)
            found[place.name] = content if kind is None else content.view(kind).reshape(place.shape)
        return found


class PackedBuffer:
    """A buffer of bytes with a view for each tensor of a packing; steps pack the same tensors again and again."""

    def __init__(self, packing: Packing, buffer: torch.Tensor) -> None:
        self.packing = packing
        self._views = [packing.view(place, buffer) for place in packing.places]

    def pack(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for view, tensor in zip(self._views, tensors.values(), strict=True):
            view.copy_(tensor)


NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.uint8: np.uint8,
}
