"""How many pages of a MAX cache fit in memory, and the rules of its manager and connectors beyond the parameters.

Memory is in bytes; host swap is in GiB per replica in spite of its name. Too little memory raises
:class:`InsufficientMemoryError`, a ``RuntimeError`` as in MAX; a broken rule raises a ``ValueError``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from engine.max.params import KVCacheParams, KVConnectorConfig

GIB: Final = 1024**3
GB: Final = 10**9

_MANAGER_PAGE_MULTIPLE: Final = 128


class InsufficientMemoryError(RuntimeError):
    """The given memory is too small for a single page."""


@dataclass(frozen=True)
class KVConnector:
    """The tiers of a cache: where pages can be, and how many fit in the tiers below the device. None: no such tier."""

    kind: Literal["null", "local", "tiered", "dkv"]
    tiers: tuple[str, ...]
    num_host_blocks: int | None = None
    num_disk_blocks: int | None = None
    disk_offload_dir: str | None = None
    block_store_endpoint: str | None = None


def require_manager_page_size(page_size: int) -> None:
    """Raise ValueError unless the page size is 128, 256, 384, …: a rule of the cache manager, not of the parameters."""
    if page_size < _MANAGER_PAGE_MULTIPLE or page_size % _MANAGER_PAGE_MULTIPLE:
        raise ValueError(
            f"The KV cache manager needs a page_size of at least {_MANAGER_PAGE_MULTIPLE} that is a multiple of "
            f"{_MANAGER_PAGE_MULTIPLE}, not {page_size}."
        )


def compute_num_device_blocks(
    params: KVCacheParams,
    available_cache_memory: int,
    max_batch_size: int | None = None,
    max_seq_len: int | None = None,
) -> int:
    """How many pages fit in one replica's share of the memory, limited to what a batch can use if both limits are
    given."""
    _require_memory(available_cache_memory)
    per_replica = available_cache_memory // params.data_parallel_degree
    fitting = per_replica // params.bytes_per_block
    if fitting == 0:
        raise InsufficientMemoryError(
            f"{per_replica} bytes per replica hold no KV cache page of {params.bytes_per_block} bytes; "
            f"give at least {params.bytes_per_block * params.data_parallel_degree} bytes."
        )
    if max_batch_size is None or max_seq_len is None:
        return fitting
    if max_batch_size < 1 or max_seq_len < 1:
        raise ValueError(f"A batch of {max_batch_size} requests of {max_seq_len} tokens needs both to be at least 1.")
    return min(fitting, math.ceil(max_seq_len / params.page_size) * max_batch_size)


def capacity_warnings(params: KVCacheParams, num_blocks: int, max_batch_size: int, max_seq_len: int) -> tuple[str, ...]:
    """Warnings as in MAX: if a batch has fewer pages than requests, and if the longest request does not fit."""
    warnings = []
    if max_batch_size > num_blocks:
        warnings.append(f"A batch of {max_batch_size} requests has only {num_blocks} pages to share.")
    per_request = math.ceil(max_seq_len / params.page_size)
    if per_request > num_blocks:
        warnings.append(f"A request of {max_seq_len} tokens needs {per_request} pages and there are {num_blocks}.")
    return tuple(warnings)


def estimated_memory_size(
    params: KVCacheParams, available_cache_memory: int, max_batch_size: int, max_seq_len: int
) -> int:
    """Bytes that the caches of all replicas take."""
    num_blocks = compute_num_device_blocks(params, available_cache_memory, max_batch_size, max_seq_len)
    return num_blocks * params.bytes_per_block * params.data_parallel_degree


def compute_max_seq_len_fitting_in_cache(params: KVCacheParams, available_cache_memory: int) -> int:
    """The length of the longest single request that fits in the memory, in tokens."""
    return compute_num_device_blocks(params, available_cache_memory) * params.page_size


def host_bytes_per_block(params: KVCacheParams) -> int:
    """Bytes of one page in host memory. K and V that every device holds identically are stored there once."""
    repeats = params.tensor_parallel_degree if params.replicates_kv_across_tp else 1
    return params.bytes_per_block // repeats


def compute_num_host_blocks(params: KVCacheParams) -> int:
    """Number of host pages of one replica; 0 if its connector has no host tier."""
    if params.kv_connector not in ("local", "tiered") or params.host_kvcache_swap_space_gb is None:
        return 0
    per_block = host_bytes_per_block(params)
    num_blocks = int(params.host_kvcache_swap_space_gb * GIB) // per_block
    if num_blocks == 0:
        raise InsufficientMemoryError(
            f"host_kvcache_swap_space_gb of {params.host_kvcache_swap_space_gb} GiB holds no KV cache page of "
            f"{per_block} bytes; give at least {per_block / GIB:.4f} GiB."
        )
    return num_blocks


def resolve_connector(params: KVCacheParams, num_host_blocks: int | None = None) -> KVConnector:
    """The tiers of the connector; raises ValueError if a setting is missing. Host pages are computed unless given."""
    kind = params.kv_connector or "null"
    settings = params.kv_connector_config or KVConnectorConfig()
    if kind == "null":
        return KVConnector(kind, ("device",))
    if kind == "dkv":
        return KVConnector(kind, ("device", "block store"), block_store_endpoint=_endpoint(settings))
    host = compute_num_host_blocks(params) if num_host_blocks is None else num_host_blocks
    if host <= 0:
        raise ValueError(f"The {kind} KV connector needs at least one host page; there are {host}.")
    if kind == "local":
        return KVConnector(kind, ("device", "host"), host)
    if not settings.disk_offload_dir:
        raise ValueError("The tiered KV connector requires a folder on disk; disk_offload_dir is None.")
    num_disk = int(settings.disk_offload_max_gb * GB) // host_bytes_per_block(params)
    return KVConnector(kind, ("device", "host", "disk"), host, num_disk, settings.disk_offload_dir)


def _endpoint(settings: KVConnectorConfig) -> str:
    endpoint = settings.block_store_endpoint
    if not endpoint:
        raise ValueError("The dkv KV connector requires a block store; block_store_endpoint is None.")
    if not endpoint.startswith(("ipc://", "tcp://")):
        raise ValueError(f"block_store_endpoint must start with ipc:// or tcp://, not {endpoint!r}.")
    return endpoint


def _require_memory(num_bytes: int) -> None:
    if num_bytes < 0:
        raise ValueError(f"Available memory must be 0 bytes or more, not {num_bytes}.")
