"""MAX's parameters: heads, shapes, bytes and refusals, with MAX's numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.max import DeviceRef, KVCacheParams, KVCacheQuantizationConfig
from tests.engine.max.parameters import FP8, deepseek, llama, make


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
        (lambda: KVCacheQuantizationConfig("bf17"), ["bf17"]),
        (lambda: make().shape_per_scale_block, ["None"]),
        (lambda: make().allocate_buffers(0), ["0"]),
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


GPT2 = {"num_layers": 12, "head_dim": 64, "page_size": 128}


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


def test_copy_as_dp_1_takes_one_group_of_devices() -> None:
    params = make(8, 4, 4, speculative_method="eagle", num_draft_tokens=3)
    copy = params.copy_as_dp_1(2)
    assert (copy.data_parallel_degree, copy.devices, copy.n_kv_heads_per_device) == (1, (DeviceRef.GPU(2),), 8)
    assert (copy.speculative_method, copy.num_draft_tokens) == (None, 0)
    assert (params.data_parallel_degree, params.n_devices, params.num_draft_tokens) == (4, 4, 3)


def test_copy_as_dp_1_leaves_devices_that_already_share_one_replica() -> None:
    copy = make(8, 2, 1).copy_as_dp_1()
    assert (copy.n_devices, copy.n_kv_heads_per_device) == (2, 4)


def test_parameters_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        make().n_devices = 4  # type: ignore[misc]
