"""The inputs of MAX's graph that a cache brings, described: names, dtypes, shapes and devices."""

from __future__ import annotations

from dataclasses import dataclass

from engine.max.buffers import DeviceRef


@dataclass(frozen=True)
class SymbolicTensor:
    """One graph input, described; a dimension is a number, or a name where it is decided at run time."""

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
    """The packed key as an input: three numbers on the device under MLA, four on the host otherwise."""
    return (
        SymbolicTensor(name, "int64", (3,), device) if is_mla else SymbolicTensor(name, "int64", (4,), DeviceRef.CPU())
    )
