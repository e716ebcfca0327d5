"""What was measured of the latest steps, on its way from the device: one packed copy a step, read some steps later.

On a GPU the copy goes on a stream of its own into pinned memory while the next step computes, and whoever reads it a
step or two later waits for nothing. On a CPU the same packing is copied at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.look.packing import Arrays, Packing

SMALLEST_BYTES = 1 << 16  # of a slot on a GPU
LATE_STEPS = 2  # so many steps behind are read on a GPU while it runs
TIMEOUT_S = 2.0  # a copy that takes longer is not waited for: it is made again on the stream of the forward
SPIN_S = 2e-3  # so long a copy is asked for without a pause


class Slot(Protocol):
    """One packed step: room for it on the device, and the bytes once they have arrived."""

    def buffer(self, num_bytes: int) -> torch.Tensor:
        """Bytes on the device to pack into; what lay there has been read."""

    def send(self, num_bytes: int) -> None:
        """Begin to copy so many bytes of the buffer."""

    @property
    def has_arrived(self) -> bool: ...

    def bytes(self) -> npt.NDArray[np.uint8]:
        """What has arrived."""

    def copy_again(self) -> npt.NDArray[np.uint8]:
        """The same bytes by a plain copy that is waited for."""


class PlainSlot:
    """A copy that is there at once: of a CPU, and of a device without pinned memory."""

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
    """A copy into pinned memory on a stream of its own. `send` makes that stream wait for what is packed on the current
    one; the buffer is packed anew only after it was read, so that nothing overtakes the copy."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device, self._stream = device, stream
        self._packed, self._done = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]
        self._allocate(0)

    def _allocate(self, num_bytes: int) -> None:
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        self._arrived = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def buffer(self, num_bytes: int) -> torch.Tensor:
        if len(self._buffer) < num_bytes:
            self._stream.synchronize()  # the old memory may still be on its way
            # with room to spare: the first rows that a step drops are no reason to wait again
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


@dataclass(eq=False)
class Sent:
    """A step whose measurements are on their way."""

    slot: Slot
    packing: Packing


class ObservationRing:
    """Slots that are packed and read in turn. `late_steps`: how many steps may be on their way at once while nobody
    waits for them; 0: every step is read before the next begins. `note` says why the plain copy is used where a better
    one was wanted; `num_bytes` is what left the device with the newest step."""

    def __init__(self, device: torch.device, late_steps: int | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._device, self._timeout_s = device, timeout_s
        is_gpu = device.type == "cuda"
        self.late_steps = (LATE_STEPS if is_gpu else 0) if late_steps is None else late_steps
        self.note = ""
        self.num_bytes = 0
        self._slots = self._stream_slots() if is_gpu else self._plain_slots()
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

    def send(self, tensors: Mapping[str, torch.Tensor]) -> Sent:
        """Pack what a step measured and begin to copy it. At most `late_steps` others may be on their way."""
        packing = Packing.of(tensors)
        slot = self._slots[self._next]
        packing.pack(tensors, slot.buffer(packing.num_bytes))
        slot.send(packing.num_bytes)
        self._next = (self._next + 1) % len(self._slots)
        self.num_bytes = packing.num_bytes
        return Sent(slot, packing)

    def take_back(self, sent: Sent) -> None:
        """What was sent last is not read: its step failed. The next has its slot, since others are on their way in
        those behind it."""
        if sent.slot in self._slots:  # else others have taken their place
            self._next = self._slots.index(sent.slot)

    def read(self, sent: Sent) -> Arrays:
        """The arrays of a step, once they are there; a copy that does not come is made again, on the stream of the
        forward, and so are all that follow."""
        began = time.perf_counter()
        while not sent.slot.has_arrived:
            waited_s = time.perf_counter() - began
            if waited_s > self._timeout_s:
                return self._read_late(sent)
            if waited_s > SPIN_S:
                time.sleep(SPIN_S / 10)
        return sent.packing.unpack(sent.slot.bytes())

    def _read_late(self, sent: Sent) -> Arrays:
        found = sent.packing.unpack(sent.slot.copy_again())
        if not self.note:
            self.note = f"what is measured is copied step by step: a copy did not come within {self._timeout_s:g} s"
        self._slots = self._plain_slots()
        self._next = 0
        return found
