"""Weights by their shapes, and where a model goes when nobody says: numbers alone, with GPUs that are made up."""

from __future__ import annotations

import pytest

from engine.predict.loading import WeightTensor, choose_device, dtype_of, weight_bytes
from engine.wire.devices import Device

GIB = 2**30
CPU = Device("cpu", "A CPU", 64 * GIB, 40 * GIB, (), 8)
SMALL = Device("cuda:0", "Small", 8 * GIB, 6 * GIB, ("bfloat16",))
LARGE = Device("cuda:1", "Large", 24 * GIB, 20 * GIB)
TENSORS = (WeightTensor((100, 64)), WeightTensor((64, 64), True), WeightTensor((32, 48), True), WeightTensor((64,)))


def test_weights_by_hand() -> None:
    assert weight_bytes(TENSORS, "float32") == 4 * (6400 + 4096 + 1536 + 64)
    assert weight_bytes(TENSORS, "bfloat16") == 2 * (6400 + 4096 + 1536 + 64)
    # codes of one byte, and for each row a scale and an offset of a byte
    assert weight_bytes(TENSORS, "bfloat16", "int8") == 2 * 6464 + (4096 + 64 * 3) + (1536 + 32 * 3)
    # two codes a byte, a scale and an offset for 32; 48 columns are no whole groups
    assert weight_bytes(TENSORS, "bfloat16", "int4") == 2 * 6464 + (2048 + 64 * 2 * 2 * 2) + 1536 * 2


@pytest.mark.parametrize(
    ("devices", "needed", "no_split", "device", "why"),
    [
        ((CPU,), 5 * GIB, "", "cpu", "finds no GPU"),
        ((SMALL, CPU), 5 * GIB, "", "cuda:0", "the only GPU: 6.0 GiB of 8.0 GiB free"),
        ((SMALL, LARGE, CPU), 5 * GIB, "", "cuda:1", "of 2 GPUs the one with the most free memory"),
        ((SMALL, CPU), 6 * GIB, "", "cpu", "6.6 GiB are needed and cuda:0 has 6.0 GiB free"),
        ((SMALL, LARGE, CPU), 22 * GIB, "", "split", "all 2 GPUs together 26.0 GiB"),
        ((SMALL, LARGE, CPU), 22 * GIB, "accelerate is not here", "cpu", "accelerate is not here"),
        ((SMALL, LARGE, CPU), 30 * GIB, "", "cpu", "33.0 GiB are needed and cuda:1 has 20.0 GiB free"),
        ((Device("cuda:0", "Just enough", 8 * GIB, 1100),), 1000, "", "cuda:0", "the only GPU"),
        ((Device("cuda:0", "Nearly enough", 8 * GIB, 1099),), 1000, "", "cpu", "are needed"),
        ((Device("cuda:0", "A", GIB, 600), Device("cuda:1", "B", GIB, 500)), 1000, "", "split", "all 2 GPUs"),
        ((Device("cuda:0", "A", GIB, 600), Device("cuda:1", "B", GIB, 499)), 1000, "", "cpu", "are needed"),
    ],
)
def test_where_a_model_goes(devices: tuple[Device, ...], needed: int, no_split: str, device: str, why: str) -> None:
    found = choose_device(devices, needed, no_split)
    assert found.device == device
    assert why in found.why


def test_a_dtype_that_a_device_lacks_gives_way_to_the_next_best_by_name() -> None:
    assert dtype_of("bfloat16", "float32", LARGE) == ("bfloat16", "")
    dtype, why = dtype_of("bfloat16", "float32", SMALL)
    assert (dtype, why) == ("float16", "Small does not compute in bfloat16: float16 is used")
    assert dtype_of("auto", "bfloat16", SMALL)[0] == "float16"
    assert dtype_of("auto", "bfloat16", CPU) == ("float32", "")
    neither = Device("mps", "Apple GPU", 1, 1, ("bfloat16", "float16"))
    assert dtype_of("float16", "float16", neither)[0] == "float32"
