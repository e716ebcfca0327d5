"""MAX's parameters against published and derived vectors: heads, shapes, bytes, capacity, keys, refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InputError
from engine.max.arch import (
    ArchConfigWithAttentionKVCache,
    GPT2ArchConfig,
    HuggingFaceArchConfig,
    KVCacheConfig,
    MAXModelConfig,
    PipelineConfig,
)
from engine.max.buffers import BufferDescription, DeviceRef, KVCacheBuffer, KVCacheMemory
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
from engine.max.dispatch import AmdHeuristic, DecodeShape, MHAAttnKey, MLAAttnKey, NvidiaHeuristic, SinglePartition
from engine.max.params import KVCacheParams, KVCacheQuantizationConfig, KVConnectorConfig


def gpus(count: int) -> tuple[DeviceRef, ...]:
    return tuple(DeviceRef.GPU(i) for i in range(count))


def make(kv: int = 8, devices: int = 1, dp: int = 1, **more: Any) -> KVCacheParams:
    fields = {"dtype": "bfloat16", "head_dim": 128, "num_layers": 1, "page_size": 16} | more
    return KVCacheParams(n_kv_heads=kv, devices=gpus(devices), data_parallel_degree=dp, **fields)


def llama(devices: int = 1, dp: int = 1, **more: Any) -> KVCacheParams:
    return make(8, devices, dp, **({"num_layers": 32, "page_size": 128} | more))


def deepseek(devices: int = 1, dp: int = 1, **more: Any) -> KVCacheParams:
    mla = {"num_layers": 61, "head_dim": 576, "is_mla": True, "num_q_heads": 128, "page_size": 128}
    return make(1, devices, dp, **(mla | more))


# --- heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv", "devices", "dp", "per_device"),
    [(8, 1, 1, 8), (8, 2, 1, 4), (16, 4, 1, 4), (32, 8, 1, 4), (8, 4, 4, 8), (12, 2, 2, 12)],
)
def test_kv_heads_per_device(kv: int, devices: int, dp: int, per_device: int) -> None:
    params = make(kv, devices, dp)
    assert params.n_kv_heads_per_device == per_device
    assert params.n_devices == devices
    assert params.tensor_parallel_degree == devices // dp


@pytest.mark.parametrize(("dp", "q_per_device"), [(1, 32), (4, 128)])
def test_mla_keeps_one_head_on_every_device(dp: int, q_per_device: int) -> None:
    params = deepseek(devices=4, dp=dp)
    assert (params.n_kv_heads_per_device, params.num_q_heads_per_device) == (1, q_per_device)


def test_computed_heads_overwrite_what_is_passed() -> None:
    params = make(8, 2, n_kv_heads_per_device=99, num_q_heads=32, num_q_heads_per_device=99)
    assert (params.n_kv_heads_per_device, params.num_q_heads_per_device) == (4, 16)


def test_page_size_is_not_checked_by_the_parameters() -> None:
    assert [make(page_size=size).page_size for size in (1, 16, 32, 100)] == [1, 16, 32, 100]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: make(8, 2, 4), ["4", "2"]),
        (lambda: make(8, 1, 8), ["8", "1"]),
        (lambda: make(8, 4, 2), ["2", "4"]),
        (lambda: make(8, 6, 3), ["3", "6"]),
        (lambda: make(8, 3), ["8", "3"]),
        (lambda: make(8, 8, num_q_heads=12), ["12", "8"]),
        (lambda: deepseek(devices=3), ["128", "3"]),
        (lambda: make(1, is_mla=True), ["num_q_heads", "None"]),
        (lambda: make(kv_connector="local"), ["local", "prefix caching", "False"]),
        (lambda: make(kv_connector="tiered", host_kvcache_swap_space_gb=4.0), ["tiered", "prefix caching"]),
        (lambda: make(kv_connector="local", enable_prefix_caching=True), ["host_kvcache_swap_space_gb", "None"]),
        (lambda: make(kv_connector="tiered", enable_prefix_caching=True), ["host_kvcache_swap_space_gb", "None"]),
        (
            lambda: make(kv_connector="local", enable_prefix_caching=True, host_kvcache_swap_space_gb=float("inf")),
            ["finite"],
        ),
        (lambda: make(kv_connector="tape"), ["tape"]),
        (
            lambda: make(dtype="float8_e4m3fn", head_dim=64, kvcache_quant_config=KVCacheQuantizationConfig()),
            ["64", "128"],
        ),
        (
            lambda: deepseek(dtype="float8_e4m3fn", kvcache_quant_config=KVCacheQuantizationConfig()),
            ["576", "128"],
        ),
        (lambda: make(0), ["n_kv_heads", "0"]),
        (lambda: make(num_layers=-3), ["num_layers", "-3"]),
        (lambda: make(page_size=2**40), ["page_size", str(2**40)]),
        (lambda: make(head_dim=True), ["head_dim"]),
        (lambda: make(devices=0), ["0"]),
        (lambda: make(num_draft_tokens=-1), ["-1"]),
        (lambda: make(dtype="bf17"), ["bf17"]),
        (lambda: KVCacheQuantizationConfig(quantization_granularity=0), ["0"]),
        (lambda: make().shape_per_scale_block, ["None"]),
        (lambda: make().allocate_buffers(0), ["0"]),
        (lambda: make(8, 4, 4).copy_as_dp_1(4), ["4"]),
    ],
)
def test_refusals_are_value_errors_with_the_numbers(build: Any, said: list[str]) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the message is compared piece by piece
        build()
    assert all(piece in str(refusal.value) for piece in said)


def test_prefix_caching_is_asked_for_before_host_memory() -> None:
    with pytest.raises(ValueError, match="prefix caching"):
        make(kv_connector="local", enable_prefix_caching=False, host_kvcache_swap_space_gb=None)


@pytest.mark.parametrize("connector", [None, "null", "dkv"])
def test_the_other_connectors_require_nothing_of_the_parameters(connector: Any) -> None:
    assert make(kv_connector=connector).kv_connector == connector


# --- shapes and bytes -------------------------------------------------------------------------------------------------

GPT2 = {"num_layers": 12, "head_dim": 64, "page_size": 128}
FP8 = {"dtype": "float8_e4m3fn"}


@pytest.mark.parametrize(
    ("params", "shape", "num_bytes"),
    [
        (make(12, **GPT2, dtype="float32"), [2, 12, 128, 12, 64], 9_437_184),
        (make(12, **GPT2), [2, 12, 128, 12, 64], 4_718_592),
        (llama(), [2, 32, 128, 8, 128], 16_777_216),
        (llama(2), [2, 32, 128, 4, 128], 16_777_216),
        (llama(8), [2, 32, 128, 1, 128], 16_777_216),
        (llama(4, 4), [2, 32, 128, 8, 128], 16_777_216),
        (deepseek(), [1, 61, 128, 1, 576], 8_994_816),
        (deepseek(8), [1, 61, 128, 1, 576], 71_958_528),
        (llama(**FP8), [2, 32, 128, 8, 128], 8_388_608),
        (
            llama(**FP8, kvcache_quant_config=KVCacheQuantizationConfig("bfloat16")),
            [2, 32, 128, 8, 128],
            8_388_608,
        ),
        (llama(**FP8, kvcache_quant_config=KVCacheQuantizationConfig()), [2, 32, 128, 8, 128], 8_650_752),
        (
            llama(**FP8, kvcache_quant_config=KVCacheQuantizationConfig("float32", 32)),
            [2, 32, 128, 8, 128],
            9_437_184,
        ),
        (
            llama(**FP8, kvcache_quant_config=KVCacheQuantizationConfig("float8_e8m0fnu", 32)),
            [2, 32, 128, 8, 128],
            8_388_608 + 262_144,
        ),
    ],
)
def test_shape_and_bytes_per_block(params: KVCacheParams, shape: list[int], num_bytes: int) -> None:
    assert params.shape_per_block == shape
    assert params.bytes_per_block == num_bytes


@pytest.mark.parametrize(("granularity", "scales"), [(128, 1), (32, 4)])
def test_shape_per_scale_block(granularity: int, scales: int) -> None:
    params = llama(**FP8, kvcache_quant_config=KVCacheQuantizationConfig("float32", granularity))
    assert params.shape_per_scale_block == [2, 32, 128, 8, scales]


@pytest.mark.parametrize(
    ("dtype", "config", "quantized", "is_fp8"),
    [
        ("float8_e4m3fn", KVCacheQuantizationConfig("float32", 64), True, True),
        ("float8_e4m3fnuz", KVCacheQuantizationConfig("float8_e8m0fnu", 64), True, True),
        ("float8_e4m3fn", None, False, True),
        ("float8_e4m3fn", KVCacheQuantizationConfig("bfloat16", 64), False, True),
        ("float8_e5m2", KVCacheQuantizationConfig("float32", 64), False, False),
        ("bfloat16", KVCacheQuantizationConfig("float32", 64), False, False),
    ],
)
def test_when_a_cache_counts_as_quantised(dtype: str, config: Any, quantized: bool, is_fp8: bool) -> None:
    params = make(8, 2, 2, dtype=dtype, kvcache_quant_config=config)
    assert (params.quantized_kv_cache, params.is_fp8_kv_dtype) == (quantized, is_fp8)


def test_only_mla_under_tensor_parallelism_repeats_its_cache() -> None:
    assert deepseek(8).replicates_kv_across_tp
    assert not deepseek(1).replicates_kv_across_tp
    assert not deepseek(4, 4).replicates_kv_across_tp
    assert not llama(8).replicates_kv_across_tp


@pytest.mark.parametrize(
    ("dtype", "short"),
    [("bfloat16", "bf16"), ("float8_e4m3fn", "f8_m4e3fn"), ("float32", "f32"), ("float16", "f32"),
     ("float8_e4m3fnuz", "f32")],
)  # fmt: skip
def test_dtype_shorthand(dtype: str, short: str) -> None:
    assert make(dtype=dtype).dtype_shorthand == short


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_bytes_of_a_page_do_not_depend_on_how_heads_are_split(devices: int, other: int) -> None:
    assert llama(devices).bytes_per_block == llama(other).bytes_per_block
    assert deepseek(devices).bytes_per_block * other == deepseek(other).bytes_per_block * devices


# --- replicas ---------------------------------------------------------------------------------------------------------


def test_copy_as_dp_1_takes_one_group_of_devices() -> None:
    params = make(8, 4, 4, speculative_method="eagle", num_draft_tokens=3)
    copy = params.copy_as_dp_1(2)
    assert (copy.data_parallel_degree, copy.devices, copy.n_kv_heads_per_device) == (1, (DeviceRef.GPU(2),), 8)
    assert (copy.speculative_method, copy.num_draft_tokens) == (None, 0)
    assert (params.data_parallel_degree, params.n_devices, params.num_draft_tokens) == (4, 4, 3)


def test_copy_as_dp_1_leaves_devices_that_already_share_one_replica() -> None:
    copy = make(8, 2, 1).copy_as_dp_1()
    assert (copy.n_devices, copy.n_kv_heads_per_device) == (2, 4)


def test_copy_as_dp_1_refuses_an_uneven_split() -> None:
    params = make(8, 5, 5)
    object.__setattr__(params, "devices", gpus(7))
    with pytest.raises(ValueError, match=r"7 devices.*5"):
        params.copy_as_dp_1()


def test_each_replica_writes_to_a_folder_of_its_own() -> None:
    config = KVConnectorConfig(disk_offload_dir="/var/kv")
    assert make(8, 2, 2, kv_connector_config=config).copy_as_dp_1(1).kv_connector_config == replace(
        config, disk_offload_dir="/var/kv/replica_1"
    )
    assert make(8, 2, 2, kv_connector_config=KVConnectorConfig()).copy_as_dp_1(1).kv_connector_config == (
        KVConnectorConfig()
    )


def test_parameters_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        make().n_devices = 4  # type: ignore[misc]


# --- buffers ----------------------------------------------------------------------------------------------------------


def test_allocate_buffers_describes_one_pool_per_replica() -> None:
    buffers = llama(4, 4).allocate_buffers(10)
    assert len(buffers) == 4
    assert all(buffer.values[0].shape == (10, 2, 32, 128, 8, 128) for buffer in buffers)
    assert [buffer.values[0].device for buffer in buffers] == list(gpus(4))
    assert buffers[0].nbytes == 10 * llama().bytes_per_block


def test_allocate_buffers_shards_values_and_scales() -> None:
    params = llama(2, **FP8, kvcache_quant_config=KVCacheQuantizationConfig())
    (buffer,) = params.allocate_buffers(3)
    assert [value.shape for value in buffer.values] == [(3, 2, 32, 128, 4, 128)] * 2
    assert buffer.scales is not None
    assert [(scale.shape, scale.dtype) for scale in buffer.scales] == [((3, 2, 32, 128, 4, 1), "float32")] * 2
    assert buffer.total_num_pages == 3
    assert buffer.nbytes == 3 * params.bytes_per_block
    assert buffer.all_buffers == buffer.values + buffer.scales


def test_replicated_latents_move_as_one_unit() -> None:
    (buffer,) = deepseek(8).allocate_buffers(2)
    assert buffer.replicated
    (unit,) = buffer.to_memory()
    assert unit.root.shape == (2, 8_994_816)
    assert len(unit.peers) == 7
    assert len(llama(8).allocate_buffers(2)[0].to_memory()) == 8


ONE = BufferDescription((4, 2, 1, 16, 8, 64), "bfloat16", DeviceRef.GPU(0))
TWO = replace(ONE, device=DeviceRef.GPU(1))
SCALE = BufferDescription((4, 2, 1, 16, 8, 1), "float32", DeviceRef.GPU(0))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: KVCacheBuffer(()), "at least one"),
        (lambda: KVCacheBuffer((ONE,), replicated=True), "more than one shard"),
        (lambda: KVCacheBuffer((ONE, replace(TWO, dtype="float32"))), "one dtype"),
        (lambda: KVCacheBuffer((ONE, replace(TWO, shape=(5, 2, 1, 16, 8, 64)))), "one shape"),
        (lambda: KVCacheBuffer((ONE, replace(TWO, pinned=True))), "pinned"),
        (lambda: KVCacheBuffer((ONE, TWO), (SCALE,)), "2 value buffers need as many scale buffers; 1"),
        (lambda: KVCacheBuffer((ONE,), (replace(SCALE, shape=(5, 2, 1, 16, 8, 1)),)), "4 pages and scales have 5"),
        (
            lambda: KVCacheBuffer((ONE,), (replace(SCALE, device=DeviceRef.GPU(1)),)),
            "gpu:0 and its scales are on gpu:1",
        ),
        (lambda: KVCacheBuffer((ONE, TWO), (SCALE, replace(SCALE, dtype="bfloat16"))), "one dtype"),
        (lambda: KVCacheMemory(ONE), "uint8"),
        (lambda: KVCacheMemory(ONE.as_pages(), (replace(TWO.as_pages(), dtype="int8"),)), "uint8"),
    ],
)
def test_buffer_invariants(build: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()


# --- symbolic inputs --------------------------------------------------------------------------------------------------


def test_symbolic_inputs_go_replica_by_replica() -> None:
    inputs = llama(4, 4).get_symbolic_inputs("draft_")
    assert [(entry.replica, entry.device) for entry in inputs] == list(enumerate(gpus(4)))
    tensors = {tensor.name: tensor for tensor in inputs[2].tensors}
    assert tensors["kv_blocks"].shape == ("draft_replica_2_total_num_pages", 2, 32, 128, 8, 128)
    assert tensors["kv_blocks"].dtype == "bfloat16"
    assert tensors["lookup_table"].shape == ("draft_replica_2_batch_size", "draft_replica_2_max_num_pages")
    assert (tensors["max_lengths"].shape[1], tensors["max_lengths"].device) == (2, DeviceRef.CPU())
    assert (tensors["attention_dispatch_metadata"].shape, tensors["attention_dispatch_metadata"].device) == (
        (4,),
        DeviceRef.CPU(),
    )
    assert set(tensors) == {
        "kv_blocks", "cache_lengths", "lookup_table", "max_lengths", "attention_dispatch_metadata"
    }  # fmt: skip


def test_symbolic_inputs_under_tensor_parallelism_share_the_replica() -> None:
    assert [entry.replica for entry in llama(4).get_symbolic_inputs()] == [0, 0, 0, 0]


def test_symbolic_inputs_of_mla_scales_and_drafts() -> None:
    scaled = llama(**FP8, kvcache_quant_config=KVCacheQuantizationConfig())
    assert {t.name: t.shape for t in scaled.get_symbolic_inputs()[0].tensors}["kv_scales"] == (
        "replica_0_total_num_pages", 2, 32, 128, 8, 1
    )  # fmt: skip
    speculating = deepseek(speculative_method="eagle", num_draft_tokens=2)
    own = {t.name: t for t in speculating.get_symbolic_inputs()[0].tensors}
    assert own["attention_dispatch_metadata"].shape == (3,)
    assert own["attention_dispatch_metadata"].device == DeviceRef.GPU(0)
    assert own["mla_num_partitions"].shape == (1,)
    assert own["draft_attention_dispatch_metadata"].shape == (3,)
    other = speculating.get_symbolic_inputs(draft_attention_group=llama())[0].tensors
    assert {t.name: t.shape for t in other}["draft_attention_dispatch_metadata"] == (4,)


# --- capacity ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("arguments", [(-1,), (GIB, 0, 10), (GIB, 1, 0)])
def test_impossible_capacity_questions(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"0|-1"):
        compute_num_device_blocks(llama(), *arguments)


def test_capacity_warnings() -> None:
    assert capacity_warnings(llama(), 64, 4, 1000) == ()
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


# --- connectors -------------------------------------------------------------------------------------------------------


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


# --- dispatch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "length", "width", "expected"),
    [
        (llama(), 1000, 1, [1, 256, 512, 768, 1000]),
        (llama(), 256, 1, [1, 256]),
        (llama(), 1, 1, [1, 1]),
        (llama(), 256, 2, [1, 256]),
        (deepseek(), 256, 1, [1, 64, 128, 192, 256]),
        (deepseek(), 256, 2, [1, 64, 128, 192, 256, 63, 127, 191, 255]),
        (llama(num_draft_tokens=3), 1000, 1, [256, 512, 768, 1000]),
        (llama(num_draft_tokens=3), 7, 1, [7]),  # the shortest cache with two rounds of drafts and a token
        (llama(num_draft_tokens=3), 5, 1, []),
    ],
)
def test_graph_capture_probes(params: KVCacheParams, length: int, width: int, expected: list[int]) -> None:
    assert params.graph_capture_probe_cache_lengths(length, width) == expected


def test_attention_keys_pack() -> None:
    assert MHAAttnKey(2, 1, 5).pack(123) == (2, 1, 5, 123)
    assert MLAAttnKey(2, 1, 5).pack() == (2, 1, 5)
    assert MHAAttnKey(2, 1, 5) != MLAAttnKey(2, 1, 5)


def test_on_a_cpu_nothing_is_split() -> None:
    for params in (llama(), deepseek()):
        on_cpu = replace(params, devices=(DeviceRef.CPU(),))
        assert on_cpu.resolve_attn_key(1, 1, 131_072).num_partitions == 1
        assert params.resolve_attn_key(0, 1, 131_072).num_partitions == 1


def test_keys_on_a_gpu_follow_the_heuristic_that_is_plugged_in() -> None:
    params = llama()
    assert params.resolve_attn_key(1, 1, 131_072) == MHAAttnKey(1, 1, 16)
    single = replace(params, partition_heuristic=SinglePartition())
    assert single.resolve_attn_key(1, 1, 131_072) == MHAAttnKey(1, 1, 1)
    latent = deepseek(partition_heuristic=NvidiaHeuristic(148))
    assert latent.resolve_attn_key(8, 1, 65_536) == MLAAttnKey(8, 1, 18)
    assert "approximate" in params.partition_heuristic.version


@pytest.mark.parametrize(
    ("batch", "keys", "heads", "sm", "expected"),
    [(1, 512, 8, 132, 1), (1, 513, 8, 132, 1), (1, 4096, 8, 132, 8), (1, 131_072, 8, 132, 16),
     (1, 131_072, 2, 132, 32), (2, 3000, 8, 148, 8), (200, 4096, 8, 132, 1)],
)  # fmt: skip
def test_nvidia_partitions(batch: int, keys: int, heads: int, sm: int, expected: int) -> None:
    assert NvidiaHeuristic(sm).num_partitions(DecodeShape(batch, 1, keys, heads)) == expected


@pytest.mark.parametrize(
    ("batch", "keys", "heads", "expected"), [(1, 1000, 64, 8), (8, 65_536, 128, 18), (64, 1024, 128, 1)]
)
def test_nvidia_latent_partitions(batch: int, keys: int, heads: int, expected: int) -> None:
    assert NvidiaHeuristic(148).num_partitions(DecodeShape(batch, 1, keys, heads, is_mla=True)) == expected


@pytest.mark.parametrize(
    ("batch", "keys", "heads", "expected"),
    [(1, 131_072, 64, 128), (2, 65_536, 64, 64), (16, 131_072, 64, 16), (1, 256, 64, 1), (64, 4096, 8, 2)],
)
def test_amd_partitions(batch: int, keys: int, heads: int, expected: int) -> None:
    assert AmdHeuristic(256).num_partitions(DecodeShape(batch, 1, keys, heads, is_mla=True)) == expected


@given(
    st.integers(1, 256), st.integers(1, 8), st.integers(1, 200_000), st.sampled_from([1, 8, 16, 32, 64, 128]),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_partitions_are_always_a_compiled_size(
    batch: int, width: int, keys: int, heads: int, is_mla: bool, is_fp8: bool
) -> None:
    shape = DecodeShape(batch, width, keys, heads, is_mla, is_fp8)
    sizes = {1, 2, 4, 8, 9, 16, 18, 20, 32, 37, 64, 72, 74}
    assert NvidiaHeuristic(148).num_partitions(shape) in sizes
    assert AmdHeuristic(304).num_partitions(shape) in {1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256}


# --- architecture configs ---------------------------------------------------------------------------------------------

GPT2_CONFIG = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}


@dataclass
class SmallArchConfig(ArchConfigWithAttentionKVCache):
    """A subclass as somebody would write it for MAX."""

    @property
    def num_key_value_heads(self) -> int:
        return 2

    @property
    def head_dim(self) -> int:
        return 16

    @property
    def num_layers(self) -> int:
        return 3

    @property
    def model_max_seq_len(self) -> int:
        return 1024


def test_gpt2_as_the_tutorial_serves_it() -> None:
    arch = GPT2ArchConfig(dtype="float32", huggingface_config=GPT2_CONFIG)
    assert (arch.num_layers, arch.num_key_value_heads, arch.head_dim, arch.model_max_seq_len) == (12, 12, 64, 1024)
    params = arch.get_kv_params()
    assert params is arch.get_kv_params()
    assert params.bytes_per_block == 9_437_184
    assert params.enable_prefix_caching
    for broken in ({}, {**GPT2_CONFIG, "n_embd": 0}, {**GPT2_CONFIG, "n_embd": "768"}):
        with pytest.raises(InputError, match="n_embd"):
            _ = GPT2ArchConfig(dtype="float32", huggingface_config=broken).head_dim


def test_the_cache_dtype_goes_before_the_models() -> None:
    assert SmallArchConfig("float32").get_kv_params().dtype == "float32"
    assert SmallArchConfig("float32", cache_dtype="bfloat16").get_kv_params().dtype == "bfloat16"


@pytest.mark.parametrize(("wanted", "expected"), [(None, 1024), (512, 512), (1024, 1024), (0, 0)])
def test_get_max_seq_len(wanted: int | None, expected: int) -> None:
    assert SmallArchConfig("float32", user_provided_max_length=wanted).get_max_seq_len() == expected


@pytest.mark.parametrize("wanted", [1025, -1])
def test_get_max_seq_len_refuses_what_the_model_was_not_built_for(wanted: int) -> None:
    with pytest.raises(ValueError, match=rf"{wanted}.*1024"):
        SmallArchConfig("float32", user_provided_max_length=wanted).get_max_seq_len()


@pytest.mark.parametrize(
    ("encoding", "dtype", "cache_dtype"),
    [("float32", "float32", "float32"), ("bfloat16", "bfloat16", "bfloat16"), ("float16", "float16", "float16"),
     ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"), ("q4_k", "uint8", "float32"), ("gptq", "uint8", "bfloat16")],
)  # fmt: skip
def test_initialize_from_a_pipeline(encoding: str, dtype: str, cache_dtype: str) -> None:
    model = MAXModelConfig(encoding, gpus(2), KVCacheConfig(kv_cache_page_size=256), 2, 77, GPT2_CONFIG)
    arch = GPT2ArchConfig.initialize(PipelineConfig(model))
    assert (arch.dtype, arch.cache_dtype, arch.get_max_seq_len()) == (dtype, cache_dtype, 77)
    params = arch.get_kv_params()
    assert (params.n_devices, params.data_parallel_degree, params.page_size) == (2, 2, 256)


def test_initialize_takes_another_model_and_a_cache_format() -> None:
    main = MAXModelConfig("float32")
    draft = MAXModelConfig("float32", kv_cache=KVCacheConfig(kv_cache_format="float8_e4m3fn"))
    assert SmallArchConfig.initialize(PipelineConfig(main, draft), draft).get_kv_params().dtype == "float8_e4m3fn"
    with pytest.raises(ValueError, match="quantization_encoding"):
        SmallArchConfig.initialize(PipelineConfig(MAXModelConfig()))
    with pytest.raises(ValueError, match="q9"):
        SmallArchConfig.initialize(PipelineConfig(MAXModelConfig("q9")))


def test_cache_config_defaults_and_refusals() -> None:
    config = KVCacheConfig()
    assert (config.kv_cache_page_size, config.enable_prefix_caching, config.device_memory_utilization) == (
        128,
        True,
        0.9,
    )
    assert config.kv_connector_config is None
    assert KVCacheConfig(kv_connector="local").host_kvcache_swap_space_gb == 50
    assert config.cache_budget(1000, 100) == 800
    assert config.cache_budget(1000, 1000) == 0
    with pytest.raises(ValueError, match="int4"):
        KVCacheConfig(kv_cache_format="int4")
    with pytest.raises(ValueError, match=r"1\.5"):
        KVCacheConfig(device_memory_utilization=1.5)


def test_any_hugging_face_config_gives_parameters() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
              "num_key_value_heads": 8, "max_position_embeddings": 131072}  # fmt: skip
    arch = HuggingFaceArchConfig("bfloat16", devices=list(gpus(2)), huggingface_config=config)
    assert arch.get_kv_params().shape_per_block == [2, 32, 128, 4, 128]
    assert arch.get_max_seq_len() == 131072


def test_latent_attention_gives_mla_parameters() -> None:
    arch = HuggingFaceArchConfig("bfloat16", devices=list(gpus(8)), huggingface_config={"model_type": "deepseek_v3"})
    params = arch.get_kv_params()
    assert (params.is_mla, params.num_q_heads, params.num_q_heads_per_device) == (True, 128, 16)
    assert params.shape_per_block == [1, 61, 128, 1, 576]
    assert params.bytes_per_block == 71_958_528


def test_scales_reach_the_parameters_of_any_model() -> None:
    arch = HuggingFaceArchConfig(
        "float8_e4m3fn", huggingface_config={"model_type": "llama"}, kvcache_quant_config=KVCacheQuantizationConfig()
    )
    assert arch.get_kv_params().quantized_kv_cache


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba"}, "no K and V"),
        ({"model_type": "gemma4_text"}, "2 different shapes"),
        (None, "pass one"),
    ],
)
def test_models_that_one_set_of_parameters_cannot_describe(config: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        HuggingFaceArchConfig("bfloat16", huggingface_config=config).get_kv_params()


def test_a_model_without_a_maximum_length_takes_the_users() -> None:
    bloom = {"model_type": "bloom"}
    assert (
        HuggingFaceArchConfig("bfloat16", user_provided_max_length=99, huggingface_config=bloom).get_max_seq_len() == 99
    )
    with pytest.raises(InputError, match="maximum length"):
        HuggingFaceArchConfig("bfloat16", huggingface_config=bloom).get_max_seq_len()
