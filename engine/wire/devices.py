"""Messages about devices: which there are, what a model will take there before it is loaded, and unloading the
model."""

from __future__ import annotations

from typing import ClassVar

from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.message import Answer, Command, Event, Facts, Nested


class Device(Nested, frozen=True):
    """A device of this computer. `name` is torch's name, `label` the one for people; `lacks` are the dtypes it cannot
    compute in; `num_threads` is 0 except for the CPU."""

    name: str
    label: str
    total_bytes: int
    free_bytes: int
    lacks: tuple[str, ...] = ()
    num_threads: int = 0

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"


class FormatHere(Nested, frozen=True):
    """A weight format by its name, and the reason why it cannot be used on this computer; empty if it can."""

    name: str
    why_not: str


class FindDevices(Command, frozen=True):
    """List the devices that a model can be loaded on."""

    facts: ClassVar[Facts] = Facts("looking for devices", needs="nothing", answers="one", effect="looks")


class DevicesFound(Answer, frozen=True):
    """The devices, the CPU last. `why_no_split` says why a model cannot be split over several GPUs; empty if it can."""

    devices: tuple[Device, ...]
    weights: tuple[FormatHere, ...]
    why_no_split: str


class ForecastLoad(Command, frozen=True):
    """Predict what a model and its cache would take, without loading it. `context` is in tokens (None: the model's
    own)."""

    facts: ClassVar[Facts] = Facts(
        "measuring a model", needs="nothing", answers="one", effect="looks", newest=type, is_quiet=True
    )

    model: ModelSpec
    cache: CacheSpec
    context: int | None = None


class LoadForecast(Answer, frozen=True):
    """What a model would take: `weight_bytes`, and `cache_bytes` of one sequence of `context` tokens in that cache, or
    of the whole pool.

    It would be loaded on `device` in `dtype`; `why_device` gives the reason. `free_bytes` are free there now;
    `freed_bytes` of the present model and its caches become free when the new model replaces it. `notes` say what
    differs from the request; `problem` says why it cannot be loaded at all, empty if it can.
    """

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
        """Whether it fits beside the present model, which stays loaded until the new one is complete."""
        return self.needed_bytes <= self.free_bytes


class UnloadModel(Command, frozen=True):
    """Unload the model with its sequences and all kept checkpoints, and free their memory. The recorded history stays
    with the window and can be repeated."""

    facts: ClassVar[Facts] = Facts("letting the model go", needs="nothing", interrupts=True, ends_trial=True)


class Unloaded(Event, frozen=True):
    """The model was unloaded: which one, how much its weights and caches took, and how much memory the device or the
    operating system reports as freed."""

    name: str
    device: str
    weight_bytes: int
    cache_bytes: int
    freed_bytes: int
