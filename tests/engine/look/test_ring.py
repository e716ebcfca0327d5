"""What is measured leaves the device as one copy, is read when it is there, and is never waited for without end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.look.transfer import ObservationRing, PackedBuffer, Packing, PlainSlot

CPU = torch.device("cpu")


def tensors(seed: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {
        "norms": torch.rand(2, 3, 5, generator=made),
        "one": torch.tensor(float(seed)),
        "sums": torch.randint(-(2**62), 2**62, (3,), generator=made),
        "ids": torch.arange(seed, seed + 7, dtype=torch.int32),
        "bad": torch.tensor([[1, 0, 2]], dtype=torch.int16),
        "halves": torch.rand(3, generator=made).bfloat16(),
    }


def test_every_tensor_comes_out_as_it_went_in() -> None:
    packing = Packing.of(tensors(3))
    buffer = torch.zeros(packing.num_bytes + 64, dtype=torch.uint8)
    PackedBuffer(packing, buffer).pack(tensors(3))
    found = packing.unpack(buffer.numpy())
    buffer.zero_()  # the next step is packed into the same room
    for name, tensor in tensors(3).items():
        if tensor.dtype == torch.bfloat16:
            assert torch.equal(torch.from_numpy(found[name]).view(torch.bfloat16), tensor), "bytes, for NumPy has none"
        else:
            assert np.array_equal(found[name], tensor.numpy()), name
            assert found[name].shape == tuple(tensor.shape)


@pytest.mark.parametrize("late_steps", [0, 1, 2, 5])
def test_as_many_steps_may_be_on_their_way_as_the_ring_is_deep(late_steps: int) -> None:
    ring = ObservationRing(CPU, late_steps)
    under_way = []
    for step in range(9):
        under_way.append((step, ring.send(tensors(step))))
        if len(under_way) > late_steps:
            first, sent = under_way.pop(0)
            found = ring.read(sent)
            assert float(found["one"]) == first
            assert found["ids"].tolist() == list(range(first, first + 7))
    assert ring.num_bytes == Packing.of(tensors(0)).num_bytes


class StuckSlot(PlainSlot):
    """A copy that never arrives; `num_asked` is how often somebody asked."""

    num_asked = 0

    @property
    def has_arrived(self) -> bool:
        StuckSlot.num_asked += 1
        return False


def test_a_copy_that_does_not_come_is_made_again_and_the_ring_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("engine.look.transfer.PlainSlot", StuckSlot)
        ring = ObservationRing(CPU, 1, timeout_s=0.0)
    assert ring.note == ""
    assert float(ring.read(ring.send(tensors(4)))["one"]) == 4, "the bytes were there all along"
    assert "did not come within 0 s" in ring.note
    num_asked = StuckSlot.num_asked
    assert num_asked
    for step in (5, 6):
        assert float(ring.read(ring.send(tensors(step)))["one"]) == step
    assert StuckSlot.num_asked == num_asked, "it is not tried again"


def test_a_larger_step_gets_more_room_and_smaller_ones_send_no_more_than_they_have() -> None:
    ring = ObservationRing(CPU, 0)
    for count in (4, 4096, 8):
        found = ring.read(ring.send({"row": torch.arange(count)}))
        assert found["row"].tolist() == list(range(count))
        assert ring.num_bytes == count * 8


def test_steps_that_measure_the_same_are_packed_in_one_room_and_others_in_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One step in five also measures an evicted row, in the form of another tensor."""
    ring, made, of = ObservationRing(CPU, 2), list[int](), Packing.of
    monkeypatch.setattr(Packing, "of", lambda measured: made.append(len(measured)) or of(measured))
    under_way = []
    for step in range(15):
        measured = tensors(step) | ({"evicted": torch.full((2, 3), float(step))} if step % 5 == 4 else {})
        under_way.append((measured, ring.send(measured)))
        if len(under_way) > 2:
            sent, pending = under_way.pop(0)
            found = ring.read(pending)
            assert found.keys() == sent.keys()
            assert all(np.array_equal(found[name], sent[name].numpy()) for name in sent if name != "halves")
    assert made == [6, 6, 6, 7, 6, 7, 6, 7]
