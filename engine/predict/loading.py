"""Predicts what a model takes before it is loaded, and chooses its device and dtype: weights from the shapes of their
tensors, the cache by formula, the device by its free memory. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.geometry.dimensions import CacheGeometry, dtype_bytes
from engine.predict.bytes import BudgetSpec, budget_of
from engine.predict.capacity import context_length
from engine.spec.cache import CacheSpec
from engine.spec.model import INT4_GROUP, SPLIT, WEIGHTS, WeightFormat
from engine.wire.devices import Device

DEFAULT_CONTEXT = 4096  # most tokens that a forecast assumes unless asked for more
HEADROOM = 0.1  # share of the needed bytes that is added for activations and the allocator


class WeightTensor(NamedTuple):
    """The shape of a weight. `is_linear`: the matrix of a linear layer other than the LM head; only these are
    quantised."""

    shape: tuple[int, ...]
    is_linear: bool = False

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def weight_bytes(tensors: Iterable[WeightTensor], dtype: str, weights: WeightFormat = "stored") -> int:
    """Bytes of all weights in the dtype, with linear layers in the format `weights`."""
    return sum(tensor_bytes(tensor, dtype_bytes(dtype), weights) for tensor in tensors)


def tensor_bytes(tensor: WeightTensor, width: int, weights: WeightFormat) -> int:
    """Bytes of one weight `[out, in]`; a quantised one is counted as torchao holds it: codes, scales and offsets. int4
    leaves a matrix as it is if its columns are not a multiple of the group."""
    bits = WEIGHTS[weights].bits if tensor.is_linear else 0
    if not bits:
        return tensor.num_elements * width
    rows, columns = tensor.shape
    if bits == 8:
        return rows * columns + rows * (width + 1)
    if columns % INT4_GROUP:
        return tensor.num_elements * width
    return rows * columns // 2 + 2 * rows * (columns // INT4_GROUP) * width


def context_of(geometry: CacheGeometry, asked: int | None) -> int:
    """How many tokens a forecast assumes: `asked`, else 4,096; in both cases at most the model's context length."""
    return min(asked, context_length(geometry)) if asked else min(context_length(geometry), DEFAULT_CONTEXT)


def cache_bytes(geometry: CacheGeometry, cache: CacheSpec, dtype: str, context: int) -> int:
    """Bytes of the cache of one sequence of `context` tokens, or of the pool that all sequences share, if that is
    more."""
    budget = budget_of(geometry, BudgetSpec(cache, context, dtype=dtype))
    return max(budget.pool_bytes, budget.bytes_per_sequence)


class DeviceChoice(NamedTuple):
    """The name of a device, and why it was chosen."""

    device: str
    why: str


def choose_device(devices: Sequence[Device], needed_bytes: int, why_no_split: str) -> DeviceChoice:
    """Choose the device for `needed_bytes` if the user names none: the GPU with the most free memory if they fit there,
    all GPUs if they fit only there, else the CPU. `why_no_split` says why the model cannot be split; empty if it
    can."""
    gpus = sorted((device for device in devices if device.is_gpu), key=lambda device: -device.free_bytes)
    if not gpus:
        return DeviceChoice("cpu", "torch finds no GPU here")
    best, room = gpus[0], needed_bytes + int(needed_bytes * HEADROOM)
    if room <= best.free_bytes:
        why = "the only GPU" if len(gpus) == 1 else f"of {len(gpus)} GPUs the one with the most free memory"
        return DeviceChoice(best.name, f"{why}: {size(best.free_bytes)} of {size(best.total_bytes)} free")
    needs = f"{size(room)} are needed and {best.name} has {size(best.free_bytes)} free"
    free = sum(gpu.free_bytes for gpu in gpus)
    if len(gpus) > 1 and not why_no_split and room <= free:
        return DeviceChoice(SPLIT, f"{needs}, all {len(gpus)} GPUs together {size(free)}")
    no_split = f", and {why_no_split}" if len(gpus) > 1 and why_no_split else ""
    return DeviceChoice("cpu", needs + no_split)


def dtype_of(asked: str, own: str, device: Device) -> tuple[str, str]:
    """The dtype to compute in and, if it is not the one asked for, the reason. `auto` is float32 on a CPU, where half
    precision is rarely faster, and the model's `own` dtype elsewhere."""
    wanted = asked if asked != "auto" else "float32" if device.name == "cpu" else own
    if wanted not in device.lacks:
        return wanted, ""
    order = ("float16", "float32") if wanted == "bfloat16" else ("bfloat16", "float32")
    best = next((name for name in order if name not in device.lacks), "float32")
    return best, f"{device.label} does not compute in {wanted}: {best} is used"


def size(num_bytes: int) -> str:
    """Bytes in words: `12.3 GiB`."""
    return f"{num_bytes / 2**30:,.1f} GiB"
