"""Where a model may be loaded and what it will take there: asked before anything is loaded; and the model let go."""

from __future__ import annotations

from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.message import CommandMessage, EventMessage, Part


class Device(Part, frozen=True):
    """A device of this computer. `name` is torch's, `label` what people call it; `lacks` are the dtypes that it does
    not compute in; `num_threads` is 0 but of a CPU."""

    name: str
    label: str
    total_bytes: int
    free_bytes: int
    lacks: tuple[str, ...] = ()
    num_threads: int = 0

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"


class FormatHere(Part, frozen=True):
    """A way to hold weights, by its name, and why it cannot be had here; empty where it can."""

    name: str
    why_not: str


class FindDevices(CommandMessage, frozen=True):
    """List the devices that a model can be loaded to."""


class DevicesFound(EventMessage, frozen=True):
    """The devices, the CPU last. `why_no_split` says why a model cannot be split over several, empty where it can."""

    devices: tuple[Device, ...]
    weights: tuple[FormatHere, ...]
    why_no_split: str


class ForecastLoad(CommandMessage, frozen=True):
    """Say what a model and its cache would take, without loading it. `context` is in tokens, None: the model's own."""

    model: ModelSpec
    cache: CacheSpec
    context: int | None = None


class LoadForecast(EventMessage, frozen=True):
    """What a model would take: `weight_bytes`, and `cache_bytes` of one sequence of `context` tokens in that cache, or
    of the whole pool. It would be loaded to `device` in `dtype`, for the reason in `why_device`; `free_bytes` are free
    there now, `freed_bytes` of the present model and its caches become free when the new one takes its place. `notes`
    are what is not as it was asked for; `problem` says why it cannot be loaded at all, empty where it can."""

    model: ModelSpec
    device: str = ""
    dtype: str = ""
    weight_bytes: int = 0
    cache_bytes: int = 0
    context: int = 0
    free_bytes: int = 0
    freed_bytes: int = 0
    why_device: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes

    @property
    def fits(self) -> bool:
        """While the present model still stands beside it, as it does until the new one is whole."""
        return self.needed_bytes <= self.free_bytes


class UnloadModel(CommandMessage, frozen=True):
    """Let the model, its sequences and every kept moment go, and give their memory back. What was done is known to
    whoever recorded it, and can be done once more."""


class Unloaded(EventMessage, frozen=True):
    """The model is gone: what was held until then by whom, and what became free, as the device or the system says."""

    name: str
    device: str
    weight_bytes: int
    cache_bytes: int
    freed_bytes: int
