"""How many pages fit, and what connectors demand."""

from __future__ import annotations

import pytest

from engine.max.capacity import (
    GIB,
    InsufficientMemoryError,
    capacity_warnings,
    compute_max_seq_len_fitting_in_cache,
    compute_num_device_blocks,
    compute_num_host_blocks,
    estimated_memory_size,
    host_bytes_per_block,
    require_manager_page_size,
    resolve_connector,
)
from engine.max.params import KVCacheParams, KVConnectorConfig
from tests.engine.max.parameters import deepseek, llama


def test_capacity_of_llama_8b() -> None:
    assert compute_num_device_blocks(llama(), GIB) == 64
    assert compute_max_seq_len_fitting_in_cache(llama(), GIB) == 8192
    assert compute_num_device_blocks(llama(), GIB, 4, 1000) == 32
    assert estimated_memory_size(llama(), GIB, 4, 1000) == 512 * 1024**2
    assert compute_num_device_blocks(llama(2, 2), GIB) == 32
    assert estimated_memory_size(llama(2, 2), GIB, 1000, 10**6) == GIB
    assert compute_num_device_blocks(llama(), 16_777_216) == 1


def test_one_limit_alone_does_not_cap() -> None:
    assert compute_num_device_blocks(llama(), GIB, max_batch_size=1) == 64
    assert compute_num_device_blocks(llama(), GIB, max_seq_len=1) == 64


def test_less_than_a_page_is_insufficient() -> None:
    with pytest.raises(InsufficientMemoryError, match=r"16777215.*16777216") as refusal:
        compute_num_device_blocks(llama(), 16_777_215)
    assert isinstance(refusal.value, RuntimeError)
    with pytest.raises(InsufficientMemoryError, match="0"):
        compute_num_device_blocks(llama(), 0)


@pytest.mark.parametrize("arguments", [(-1,), (GIB, 0, 10), (GIB, 1, 0)])
def test_impossible_capacity_questions(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"0|-1"):
        compute_num_device_blocks(llama(), *arguments)


def test_capacity_warnings() -> None:
    assert capacity_warnings(llama(), 64, 4, 1000) == ()
    assert capacity_warnings(llama(), 8, 8, 1024) == (), "as many pages as requests, and as a request needs"
    assert len(capacity_warnings(llama(), 8, 9, 1025)) == 2
    few, long = capacity_warnings(llama(), 2, 4, 1000)
    assert "4" in few
    assert "2" in few
    assert "8 pages" in long


TIERED = {"kv_connector": "tiered", "enable_prefix_caching": True}


def test_host_blocks() -> None:
    assert compute_num_host_blocks(llama(**TIERED, host_kvcache_swap_space_gb=10.5)) == 672
    latent = deepseek(8, **TIERED, host_kvcache_swap_space_gb=1.0)
    assert host_bytes_per_block(latent) == 8_994_816
    assert compute_num_host_blocks(latent) == 119
    two = llama(2, **TIERED, host_kvcache_swap_space_gb=10.5)
    assert host_bytes_per_block(two) == two.bytes_per_block, "each device has heads of its own: all of them are kept"
    assert compute_num_host_blocks(llama(kv_connector="null", host_kvcache_swap_space_gb=10.5)) == 0
    assert compute_num_host_blocks(llama(host_kvcache_swap_space_gb=10.5)) == 0


def test_host_memory_that_holds_no_page_is_insufficient() -> None:
    with pytest.raises(InsufficientMemoryError, match=r"0\.001 GiB"):
        compute_num_host_blocks(llama(**TIERED, host_kvcache_swap_space_gb=0.001))


@pytest.mark.parametrize("page_size", [128, 256, 1024])
def test_the_manager_takes_multiples_of_128(page_size: int) -> None:
    require_manager_page_size(page_size)


@pytest.mark.parametrize("page_size", [0, 1, 16, 64, 127, 129, 192, -128])
def test_the_manager_refuses_other_pages(page_size: int) -> None:
    with pytest.raises(ValueError, match=str(page_size)):
        require_manager_page_size(page_size)


def test_tiers_of_each_connector() -> None:
    assert resolve_connector(llama()).tiers == ("device",)
    assert resolve_connector(llama(kv_connector="null")).tiers == ("device",)
    local = resolve_connector(llama(**{**TIERED, "kv_connector": "local"}, host_kvcache_swap_space_gb=1.0))
    assert (local.tiers, local.num_host_blocks, local.num_disk_blocks) == (("device", "host"), 64, None)
    settings = KVConnectorConfig(disk_offload_dir="/var/kv", disk_offload_max_gb=50.0)
    tiered = resolve_connector(llama(**TIERED, host_kvcache_swap_space_gb=1.0, kv_connector_config=settings))
    assert (tiered.tiers, tiered.num_disk_blocks) == (("device", "host", "disk"), 50 * 10**9 // 16_777_216)
    store = KVConnectorConfig(block_store_endpoint="tcp://store:9000")
    assert resolve_connector(llama(kv_connector="dkv", kv_connector_config=store)).block_store_endpoint == (
        "tcp://store:9000"
    )


@pytest.mark.parametrize(
    ("params", "num_host_blocks", "said"),
    [
        (llama(**{**TIERED, "kv_connector": "local"}, host_kvcache_swap_space_gb=1.0), 0, "at least one host page"),
        (llama(**TIERED, host_kvcache_swap_space_gb=1.0), None, "disk_offload_dir"),
        (llama(kv_connector="dkv"), None, "block_store_endpoint is None"),
        (
            llama(kv_connector="dkv", kv_connector_config=KVConnectorConfig(block_store_endpoint="http://x")),
            None,
            "http://x",
        ),
    ],
)
def test_what_a_connector_lacks(params: KVCacheParams, num_host_blocks: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        resolve_connector(params, num_host_blocks)
