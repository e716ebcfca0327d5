"""How many pages of a MAX cache fit in memory, and the rules of its manager and connectors beyond the parameters.

Memory is in bytes; host swap is in GiB per replica in spite of its name. Too little memory raises
:class:`InsufficientMemoryError`, a ``RuntimeError`` as in MAX; a broken rule raises a ``ValueError``.
"""

from __future__ import annotations

from typing import Final

from engine.max.params import KVCacheParams, KVConnectorConfig

GIB: Final = 1024**3

_MANAGER_PAGE_MULTIPLE: Final = 128


class InsufficientMemoryError(RuntimeError):
    """The given memory is too small for a single page."""


def require_manager_page_size(page_size: int) -> None:
    """Raise ValueError unless the page size is 128, 256, 384, …: a rule of the cache manager, not of the parameters."""
    if page_size < _MANAGER_PAGE_MULTIPLE or page_size % _MANAGER_PAGE_MULTIPLE:
        raise ValueError(
            f"The KV cache manager needs a page_size of at least {_MANAGER_PAGE_MULTIPLE} that is a multiple of "
            f"{_MANAGER_PAGE_MULTIPLE}, not {page_size}."
        )


def compute_num_device_blocks(params: KVCacheParams, available_cache_memory: int) -> int:
    """How many pages fit in one replica's share of the memory."""
    if available_cache_memory < 0:
        raise ValueError(f"Available memory must be 0 bytes or more, not {available_cache_memory}.")
    per_replica = available_cache_memory // params.data_parallel_degree
    fitting = per_replica // params.bytes_per_block
    if fitting == 0:
        raise InsufficientMemoryError(
            f"{per_replica} bytes per replica hold no KV cache page of {params.bytes_per_block} bytes; "
            f"give at least {params.bytes_per_block * params.data_parallel_degree} bytes."
        )
    return fitting


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


def tiers_of(params: KVCacheParams) -> tuple[str, ...]:
    """Where the pages of the connector can be, from the device down; raises ValueError if a setting is missing."""
    kind = params.kv_connector or "null"
    settings = params.kv_connector_config or KVConnectorConfig()
    if kind == "null":
        return ("device",)
    if kind == "dkv":
        _check_endpoint(settings.block_store_endpoint)
        return ("device", "block store")
    compute_num_host_blocks(params)  # raises if the host tier holds no page
    if kind == "local":
        return ("device", "host")
    if not settings.disk_offload_dir:
        raise ValueError("The tiered KV connector requires a folder on disk; disk_offload_dir is None.")
    return ("device", "host", "disk")


def _check_endpoint(endpoint: str | None) -> None:
    if not endpoint:
        raise ValueError("The dkv KV connector requires a block store; block_store_endpoint is None.")
    if not endpoint.startswith(("ipc://", "tcp://")):
        raise ValueError(f"block_store_endpoint must start with ipc:// or tcp://, not {endpoint!r}.")
