"""Descriptions of the buffers that MAX would allocate for a KV cache: shapes, dtypes, devices. Nothing is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, order=True)
class DeviceRef:
    """One device, by kind and index."""

    device_type: Literal["cpu", "gpu"]
    id: int = 0

    @classmethod
    def CPU(cls, id: int = 0) -> DeviceRef:
        """The host processor."""
        return cls("cpu", id)

    @classmethod
    def GPU(cls, id: int = 0) -> DeviceRef:
        """The accelerator with that index."""
        return cls("gpu", id)

    def is_cpu(self) -> bool:
        """Whether this is the host processor."""
        return self.device_type == "cpu"

    def __str__(self) -> str:
        return f"{self.device_type}:{self.id}"


@dataclass(frozen=True)
class BufferDescription:
    """A buffer that would be allocated."""

    shape: tuple[int, ...]
    dtype: str
    device: DeviceRef


@dataclass(frozen=True)
class KVCacheBuffer:
    """The pool of one data-parallel replica: ``values[i]`` and ``scales[i]`` are on its i-th tensor-parallel shard.

    ``values[i]`` is ``[total_num_pages, *shape_per_block]``. ``scales`` is empty if values have none.
    """

    values: tuple[BufferDescription, ...]
    scales: tuple[BufferDescription, ...] = ()
