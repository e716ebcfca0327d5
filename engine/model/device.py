"""Chooses the device and dtype of a model, and lists the devices of this computer."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch

from engine.device import free_and_total
from engine.errors import InputError, first_line
from engine.predict.loading import WeightTensor, choose_device, dtype_of, weight_bytes
from engine.spec.model import AUTO_DEVICE, SPLIT, WEIGHTS, ModelSpec, WeightFormat, usable_cores
from engine.wire.devices import Device, FormatHere

TRIED_DTYPES = ("bfloat16", "float16")
NATIVE_BFLOAT16 = 8  # the least compute capability with bfloat16 units: older NVIDIA GPUs emulate it in float32


NEXT_BEST: Mapping[WeightFormat, WeightFormat] = {"int4": "int8", "int8": "stored"}


@dataclass(frozen=True)
class Placement:
    """Where and how a model is loaded. `device` gets its inputs, and all of the model unless `is_split`. `notes` say in
    which respects this is not what the user asked for."""

    device: torch.device
    dtype: torch.dtype
    weights: WeightFormat = "stored"
    is_split: bool = False
    why_device: str = ""
    notes: tuple[str, ...] = ()

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def with_next_best_weights(self, why: str) -> Placement:
        """The same placement with the next weight format, which takes more memory and is supported more widely."""
        weights = NEXT_BEST[self.weights]
        note = f"{self.weights} weights cannot be made here ({why}): {WEIGHTS[weights].label} is used"
        return replace(self, weights=weights, notes=(*self.notes, note))


def place(spec: ModelSpec, own_dtype: torch.dtype | None, tensors: Callable[[], Iterable[WeightTensor]]) -> Placement:
    """The placement for a spec, as close to it as this computer allows. Raises `InputError` for a device that is not
    there. `own_dtype` is the dtype of the weight files; `tensors` is called only where their sizes matter."""
    own = str(own_dtype).removeprefix("torch.") if own_dtype is not None else "float32"
    name, why = spec.device, ""
    if name == AUTO_DEVICE:
        devices = devices_here()
        has_gpu = any(device.is_gpu for device in devices)
        wanted = own if spec.dtype == "auto" else spec.dtype
        needed = weight_bytes(tensors(), wanted, spec.weights) if has_gpu else 0
        name, why = choose_device(devices, needed, why_no_split())
    is_split = name == SPLIT
    if is_split and (problem := why_no_split()):
        raise InputError(f"The model cannot be split over several devices: {problem}.")
    device = split_devices()[0] if is_split else checked_device(name)
    dtype, note = dtype_of(spec.dtype, own, described(device))
    notes = [note] if note else []
    weights = spec.weights
    if problem := why_no_format(weights):
        notes.append(f"{weights} weights were asked for, and {problem}: they are as stored")
        weights = "stored"
    return Placement(device, getattr(torch, dtype), weights, is_split, why, tuple(notes))


def checked_device(name: str) -> torch.device:
    """The device of that name; raises `InputError` if it cannot be used."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # refuses devices like meta, which hold no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # torch's message about a missing back end is about its own dispatcher, and no help
        why = "this torch is built without it" if isinstance(error, NotImplementedError) else first_line(error)
        raise InputError(f"The device '{name}' cannot be used here ({why}): use cpu.") from None
    return device


def split_devices() -> list[torch.device]:
    """The devices over which a model is split; the first gets its inputs. Without a GPU, the CPU alone."""
    return [*gpus()] or [torch.device("cpu")]


# ---- devices of this computer ----------------------------------------------------------------------------------------


def devices_here() -> tuple[Device, ...]:
    """Every device that torch can use, GPUs first."""
    return tuple(map(described, [*gpus(), torch.device("cpu")]))


def gpus() -> Iterator[torch.device]:
    """CUDA devices (ROCm's have the same name), then Apple's."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield torch.device("cuda", index)
    if torch.backends.mps.is_available():
        yield torch.device("mps")


def described(device: torch.device) -> Device:
    """A device with its memory, free and in total, and the dtypes that it lacks."""
    free, total = free_and_total(device)
    is_cpu = device.type == "cpu"
    label, threads = (_cpu_label(), usable_cores()) if is_cpu else (_gpu_label(device), 0)
    return Device(str(device), label, total, free, missing_dtypes(device), threads)


def _gpu_label(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "Apple GPU" if device.type == "mps" else str(device)


def _cpu_label() -> str:
    """The processor's name as the system gives it, else its architecture."""
    with contextlib.suppress(OSError, StopIteration, UnicodeDecodeError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"


def missing_dtypes(device: torch.device) -> tuple[str, ...]:
    """The dtypes in which the device does not compute."""
    return tuple(name for name in TRIED_DTYPES if not computes_in(device, getattr(torch, name)))


def computes_in(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device multiplies matrices in that dtype, on units of its own."""
    if device.type == "cuda" and dtype == torch.bfloat16 and torch.version.hip is None:
        return torch.cuda.get_device_capability(device)[0] >= NATIVE_BFLOAT16
    try:
        numbers = torch.ones(2, 2, dtype=dtype, device=device)
        return bool(torch.isfinite((numbers @ numbers).float()).all())
    except (RuntimeError, TypeError):
        return False


def why_no_split() -> str:
    """The reason why a model cannot be split over several devices; empty where it can."""
    return "" if find_spec("accelerate") else "accelerate is not installed (pip install 'kvloupe[split]')"


def why_no_format(name: str) -> str:
    """The reason why weights cannot be held in that format here; empty where they can."""
    needed = WEIGHTS[name].needs
    missing = [package for package in (needed, "accelerate") if needed and not find_spec(package)]
    return f"{' and '.join(missing)} is not installed (pip install 'kvloupe[weights]')" if missing else ""


def formats_here() -> tuple[FormatHere, ...]:
    """Every weight format, and why it cannot be used here, if so."""
    return tuple(FormatHere(name, why_no_format(name)) for name in WEIGHTS)
