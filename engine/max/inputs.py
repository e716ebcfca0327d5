"""Descriptions of the inputs that a cache adds to MAX's graph: names, dtypes, shapes and devices."""

from __future__ import annotations

from dataclasses import dataclass

from engine.max.buffers import DeviceRef


@dataclass(frozen=True)
class SymbolicTensor:
    """The description of one graph input; a dimension is a number, or a name if it is known only at run time."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    device: DeviceRef


@dataclass(frozen=True)
class SymbolicInputs:
    """The cache inputs of one device of one data-parallel replica."""

    replica: int
    device: DeviceRef
    tensors: tuple[SymbolicTensor, ...]


def dispatch_metadata(name: str, is_mla: bool, device: DeviceRef) -> SymbolicTensor:
    """The packed dispatch key as a graph input: three numbers on the device under MLA, otherwise four on the host."""
    return (
        SymbolicTensor(name, "int64", (3,), device) if is_mla else SymbolicTensor(name, "int64", (4,), DeviceRef.CPU())
    )
