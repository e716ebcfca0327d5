"""How many pages fit, and what connectors demand."""

from __future__ import annotations

import pytest

from engine.max import (
    GIB,
    InsufficientMemoryError,
    KVCacheParams,
    KVConnectorConfig,
    compute_max_seq_len_fitting_in_cache,
    compute_num_device_blocks,
    compute_num_host_blocks,
    host_bytes_per_block,
    require_manager_page_size,
    tiers_of,
)
from tests.engine.max.parameters import deepseek, llama


def test_capacity_of_llama_8b() -> None:
    assert compute_num_device_blocks(llama(), GIB) == 64
    assert compute_max_seq_len_fitting_in_cache(llama(), GIB) == 8192
    assert compute_num_device_blocks(llama(2, 2), GIB) == 32
    assert compute_num_device_blocks(llama(), 16_777_216) == 1


def test_less_than_a_page_is_insufficient() -> None:
    with pytest.raises(InsufficientMemoryError, match=r"16777215.*16777216") as refusal:
        compute_num_device_blocks(llama(), 16_777_215)
    assert isinstance(refusal.value, RuntimeError)
    with pytest.raises(InsufficientMemoryError, match="0"):
        compute_num_device_blocks(llama(), 0)


def test_memory_below_nothing_is_impossible() -> None:
    with pytest.raises(ValueError, match="-1"):
        compute_num_device_blocks(llama(), -1)


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
    assert tiers_of(llama()) == ("device",)
    assert tiers_of(llama(kv_connector="null")) == ("device",)
    local = llama(**{**TIERED, "kv_connector": "local"}, host_kvcache_swap_space_gb=1.0)
    assert tiers_of(local) == ("device", "host")
    settings = KVConnectorConfig(disk_offload_dir="/var/kv")
    tiered = llama(**TIERED, host_kvcache_swap_space_gb=1.0, kv_connector_config=settings)
    assert tiers_of(tiered) == ("device", "host", "disk")
    store = KVConnectorConfig(block_store_endpoint="tcp://store:9000")
    assert tiers_of(llama(kv_connector="dkv", kv_connector_config=store)) == ("device", "block store")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (llama(**TIERED, host_kvcache_swap_space_gb=1.0), "disk_offload_dir"),
        (llama(kv_connector="dkv"), "block_store_endpoint is None"),
        (
            llama(kv_connector="dkv", kv_connector_config=KVConnectorConfig(block_store_endpoint="http://x")),
            "http://x",
        ),
    ],
)
def test_what_a_connector_lacks(params: KVCacheParams, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tiers_of(params)
