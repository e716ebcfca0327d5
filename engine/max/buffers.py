"""Descriptions of the buffers that MAX would allocate for a KV cache: shapes, dtypes, devices and bytes. Nothing is
allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from engine.geometry.dimensions import dtype_bytes


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
    """A buffer that would be allocated. ``pinned`` host memory is page-locked, so that copies can be asynchronous."""

    shape: tuple[int, ...]
    dtype: str
    device: DeviceRef
    pinned: bool = False

    @property
    def num_elements(self) -> int:
        """The product of the shape."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the buffer in bytes."""
        return self.num_elements * dtype_bytes(self.dtype)

    def as_pages(self) -> BufferDescription:
        """The same buffer viewed as ``[num_pages, bytes_per_page]``."""
        num_pages = self.shape[0]
        return BufferDescription((num_pages, self.nbytes // num_pages), "uint8", self.device, self.pinned)


@dataclass(frozen=True)
class KVCacheMemory:
    """A unit of copies between tiers: read from the root, written to the root and to all peers, which hold the same
    bytes."""

    root: BufferDescription
    peers: tuple[BufferDescription, ...] = ()

    def __post_init__(self) -> None:
        for unit in (self.root, *self.peers):
            if len(unit.shape) != 2 or unit.dtype != "uint8":
                raise ValueError(
                    f"KV cache memory must be uint8 [num_pages, bytes_per_page], not {unit.dtype} {list(unit.shape)}."
                )


@dataclass(frozen=True)
class KVCacheBuffer:
    """The pool of one data-parallel replica: ``values[i]`` and ``scales[i]`` are on its i-th tensor-parallel shard.

    ``values[i]`` is ``[total_num_pages, *shape_per_block]``. ``replicated``: every shard holds the same bytes (MLA).
    """

    values: tuple[BufferDescription, ...]
    scales: tuple[BufferDescription, ...] | None = None
    replicated: bool = False

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("A KV cache buffer needs at least one value buffer; 0 were given.")
        if self.replicated and len(self.values) <= 1:
            raise ValueError(f"A replicated KV cache needs more than one shard; {len(self.values)} was given.")
        _require_alike("value", self.values)
        if self.scales is not None:
            self._check_scales(self.scales)
        if len({buffer.pinned for buffer in self.all_buffers}) > 1:
            raise ValueError("Either all buffers of a KV cache are pinned or none is.")

    def _check_scales(self, scales: tuple[BufferDescription, ...]) -> None:
        if len(scales) != len(self.values):
            raise ValueError(f"{len(self.values)} value buffers need as many scale buffers; {len(scales)} were given.")
        _require_alike("scale", scales)
        if scales[0].shape[0] != self.total_num_pages:
            raise ValueError(f"Values have {self.total_num_pages} pages and scales have {scales[0].shape[0]}.")
        for value, scale in zip(self.values, scales, strict=True):
            if value.device != scale.device:
                raise ValueError(f"A value buffer is on {value.device} and its scales are on {scale.device}.")

    @property
    def total_num_pages(self) -> int:
        """Pages in each shard."""
        return self.values[0].shape[0]

    @property
    def all_buffers(self) -> tuple[BufferDescription, ...]:
        """The value buffers, then the scale buffers."""
        return self.values + (self.scales or ())

    @property
    def nbytes(self) -> int:
        """Bytes of the whole replica, all shards."""
        return sum(buffer.nbytes for buffer in self.all_buffers)

    def to_memory(self) -> tuple[KVCacheMemory, ...]:
        """The units that are copied between tiers: one per shard, or, if shards hold the same bytes, one with peers."""
        groups = [self.values] if self.scales is None else [self.values, self.scales]
        if self.replicated:
            return tuple(KVCacheMemory(group[0].as_pages(), _pages(group[1:])) for group in groups)
        return tuple(KVCacheMemory(buffer.as_pages()) for group in groups for buffer in group)


def _pages(buffers: tuple[BufferDescription, ...]) -> tuple[BufferDescription, ...]:
    return tuple(buffer.as_pages() for buffer in buffers)


def _require_alike(what: str, buffers: tuple[BufferDescription, ...]) -> None:
    dtypes = sorted({buffer.dtype for buffer in buffers})
    shapes = sorted({buffer.shape for buffer in buffers})
    if len(dtypes) > 1:
        raise ValueError(f"All {what} buffers of a KV cache must have one dtype, not {', '.join(dtypes)}.")
    if len(shapes) > 1:
        raise ValueError(f"All {what} buffers of a KV cache must have one shape, not {[list(s) for s in shapes]}.")
