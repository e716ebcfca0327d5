"""MAX's cache parameters and what follows from them, under MAX's own names: numbers only, no widgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.geometry.dimensions import CacheGeometry
from engine.max.arch import HuggingFaceArchConfig
from engine.max.buffers import DeviceRef
from engine.max.capacity import (
    InsufficientMemoryError,
    compute_max_seq_len_fitting_in_cache,
    compute_num_device_blocks,
    compute_num_host_blocks,
    require_manager_page_size,
    resolve_connector,
)
from engine.max.params import KVCacheParams, KVConnectorConfig, KVConnectorType

Json = dict[str, Any]


@dataclass
class LoadedArchConfig(HuggingFaceArchConfig):
    """The architecture of a model that is already loaded: its dimensions are known without its config."""

    known: CacheGeometry | None = None

    @property
    def geometry(self) -> CacheGeometry:
        assert self.known is not None
        return self.known


def devices(count: int) -> list[DeviceRef]:
    return [DeviceRef.GPU(number) for number in range(count)]


def connector_config(swap_gib: float | None, folder: str, endpoint: str) -> KVConnectorConfig:
    return KVConnectorConfig(swap_gib, folder or None, block_store_endpoint=endpoint or None)


def capacity_values(params: KVCacheParams, available: int) -> tuple[Json, list[str]]:
    """Return what fits in a memory and in the tiers below, and all refusals on the way, word for word."""
    found: Json = {}
    refusals: list[str] = []
    asked: list[tuple[str, Callable[[], Any]]] = [
        ("num_device_blocks", lambda: compute_num_device_blocks(params, available)),
        ("max_seq_len_fitting_in_cache", lambda: compute_max_seq_len_fitting_in_cache(params, available)),
        ("num_host_blocks", lambda: compute_num_host_blocks(params)),
        ("tiers", lambda: list(resolve_connector(params).tiers)),
        ("", lambda: require_manager_page_size(params.page_size)),
    ]
    for name, ask in asked:
        try:
            value = ask()
        except (ValueError, InsufficientMemoryError) as refusal:
            if str(refusal) not in refusals:
                refusals.append(str(refusal))
            continue
        if name:
            found[name] = value
    return found, refusals


def buffer_values(params: KVCacheParams, num_pages: int) -> list[tuple[str, str]]:
    """Return where each buffer for so many pages would be allocated, and its shape and dtype."""
    lines = []
    for replica, buffer in enumerate(params.allocate_buffers(num_pages)):
        for kind, parts in (("values", buffer.values), ("scales", buffer.scales or ())):
            for part in parts:
                lines.append((f"replica {replica} {kind} {part.device}", f"{list(part.shape)} {part.dtype}"))
    return lines


def input_values(params: KVCacheParams) -> list[tuple[str, str]]:
    """List the graph's inputs on the first device; symbolic dimensions lose their prefix."""
    tensors = params.get_symbolic_inputs()[0].tensors
    return [
        (t.name, f"[{', '.join(str(d).removeprefix('replica_0_') for d in t.shape)}] {t.dtype} {t.device}")
        for t in tensors
    ]


def connector_of(name: str) -> KVConnectorType | None:
    """Return the connector named in a field; None for an empty field."""
    return name or None  # type: ignore[return-value]
