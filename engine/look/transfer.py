"""Transfers what steps measured from the device to the host: packed into one buffer, one copy a step, read some steps
later.

On a GPU the copy runs on its own stream into pinned memory while the next step computes, so that reading it a step or
two later does not wait. On a CPU, where every step is read before the next one begins, nothing is packed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct

Arrays = dict[str, npt.NDArray[Any]]
SMALLEST_BYTES = 1 << 16  # least size of a slot on a GPU
LATE_STEPS = 2  # on a GPU, by how many steps reading may lag behind
TIMEOUT_S = 2.0  # after which a copy is no longer waited for, but repeated on the stream of the forward
SPIN_S = 2e-3  # for which a copy is polled without a pause


@dataclass(eq=False)
class PendingCopy:
    """A step whose measurements are being copied; on a CPU they are `arrived` at once."""

    slot: Slot
    packing: Packing | None = None
    arrived: Arrays | None = None


class ObservationRing:
    """Slots that are packed and read in turn. `late_steps`: how many steps may be in transfer at once; with 0 every
    step is read before the next one begins. `note` says why ordinary copies are used where pinned ones were wanted;
    `num_bytes` is the size of the newest step's copy."""

    def __init__(self, device: torch.device, late_steps: int | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._device, self._timeout_s = device, timeout_s
        is_gpu = device.type == "cuda"
        self.late_steps = (LATE_STEPS if is_gpu else 0) if late_steps is None else late_steps
        self.note = ""
        self.num_bytes = 0
        self._slots = self._stream_slots() if is_gpu else self._plain_slots()
        self._packed: dict[Slot, PackedBuffer] = {}
        self._next = 0

    def _plain_slots(self) -> list[Slot]:
        return [PlainSlot(self._device) for _ in range(self.late_steps + 1)]

    def _stream_slots(self) -> list[Slot]:
        try:
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            return [StreamSlot(self._device, stream) for _ in range(self.late_steps + 1)]
        except RuntimeError as error:
            self.note = f"what is measured is copied step by step: there is no pinned memory ({str(error)[:80]})"
            return self._plain_slots()

    def send(self, tensors: Mapping[str, torch.Tensor]) -> PendingCopy:
        """Pack what a step measured and start to copy it. At most `late_steps` others may be in transfer."""
        slot = self._slots[self._next]
        if self.late_steps == 0 and self._device.type == "cpu":
            self.num_bytes = sum([-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors.values()])
            return PendingCopy(slot, arrived={name: on_host(tensor) for name, tensor in tensors.items()})
        packed = self._packed.get(slot)
        if packed is None or not packed.packing.is_of(tensors):
            packing = Packing.of(tensors)
            packed = self._packed[slot] = PackedBuffer(packing, slot.buffer(packing.num_bytes))
        packing = packed.packing
        packed.pack(tensors)
        slot.send(packing.num_bytes)
        self._next = (self._next + 1) % len(self._slots)
        self.num_bytes = packing.num_bytes
        return PendingCopy(slot, packing)

    def undo_send(self, sent: PendingCopy) -> None:
        """Discard the newest step, which failed: the next step gets its slot, as the other slots may still be in
        transfer."""
        if sent.slot in self._slots:  # else the slots were replaced after a timeout
            self._next = self._slots.index(sent.slot)

    def read(self, sent: PendingCopy) -> Arrays:
        """The arrays of a step; waits until they have arrived. If that takes too long, this copy is repeated on the
        stream of the forward, and all later ones are ordinary copies."""
        if sent.packing is None:
            return sent.arrived or {}
        began = time.perf_counter()
        while not sent.slot.has_arrived:
            waited_s = time.perf_counter() - began
            if waited_s > self._timeout_s:
                return self._read_late(sent, sent.packing)
            if waited_s > SPIN_S:
                time.sleep(SPIN_S / 10)
        return sent.packing.unpack(sent.slot.bytes())

    def _read_late(self, sent: PendingCopy, packing: Packing) -> Arrays:
        found = packing.unpack(sent.slot.copy_again())
        if not self.note:
            self.note = f"what is measured is copied step by step: a copy did not come within {self._timeout_s:g} s"
        self._slots, self._packed = self._plain_slots(), {}
        self._next = 0
        return found


# ---- slots ----------------------------------------------------------------------------------------------------------


# A slot is a buffer on the device for one packed step, and its bytes on the host once they have arrived: `buffer` is to
# be packed into (its former contents have been read), `send` starts to copy its first bytes to the host, `bytes` are
# those that have arrived, and `copy_again` gives the same by an ordinary copy, which waits.


class PlainSlot:
    """A slot whose copy is complete at once: for devices without pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._arrived = self._buffer

    def buffer(self, num_bytes: int) -> torch.Tensor:
        if len(self._buffer) < num_bytes:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return self._buffer

    def send(self, num_bytes: int) -> None:
        self._arrived = self._buffer[:num_bytes].cpu()

    @property
    def has_arrived(self) -> bool:
        return True

    def bytes(self) -> npt.NDArray[np.uint8]:
        return self._arrived.numpy()

    def copy_again(self) -> npt.NDArray[np.uint8]:
        return self._buffer.cpu().numpy()


class StreamSlot:
    """A slot whose copy runs on its own stream, into pinned memory. `send` makes that stream wait for the packing,
    which runs on the current one. The buffer is packed again only after it was read, so it never changes during a
    copy."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device, self._stream = device, stream
        self._packed, self._done = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]
        self._allocate(0)

    def _allocate(self, num_bytes: int) -> None:
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        self._arrived = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def buffer(self, num_bytes: int) -> torch.Tensor:
        if len(self._buffer) < num_bytes:
            self._stream.synchronize()  # the old buffer may still be being copied
            # with spare room, so that the first evicted rows do not make it wait again
            self._allocate(max(SMALLEST_BYTES, 1 << (num_bytes - 1).bit_length()))
        return self._buffer

    def send(self, num_bytes: int) -> None:
        self._packed.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._packed)
            self._arrived[:num_bytes].copy_(self._buffer[:num_bytes], non_blocking=True)
            self._done.record(self._stream)

    @property
    def has_arrived(self) -> bool:
        return bool(self._done.query())  # type: ignore[no-untyped-call]

    def bytes(self) -> npt.NDArray[np.uint8]:
        return self._arrived.numpy()

    def copy_again(self) -> npt.NDArray[np.uint8]:
        return self._buffer.cpu().numpy()


Slot = PlainSlot | StreamSlot


# ---- packing --------------------------------------------------------------------------------------------------------


ALIGNMENT = 16  # bytes, so that every tensor can be viewed in its dtype


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
    """A buffer `[…, num_bytes or more]` of bytes with a view for each tensor of a packing, which has the buffer's
    leading axes before its own; steps pack the same tensors again and again."""

    def __init__(self, packing: Packing, buffer: torch.Tensor) -> None:
        self.packing = packing
        self._views = [packing.view(place, buffer) for place in packing.places]

    def pack(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy tensors into the buffer, on their device: nothing is read by the host."""
        for view, tensor in zip(self._views, tensors.values(), strict=True):
            view.copy_(tensor)


def on_host(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A copy of a tensor of a CPU, as `unpack` gives it."""
    return (tensor if tensor.dtype in NUMPY else tensor.contiguous().view(-1).view(torch.uint8)).numpy().copy()


NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.uint8: np.uint8,
}
