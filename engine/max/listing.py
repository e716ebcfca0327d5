"""Every field and derived property of MAX's parameters by its name, for printing, showing and copying."""

from __future__ import annotations

from typing import Any

from engine.max.params import KVCacheParams

SCALE_DTYPES = ("float32", "float8_e8m0fnu", "bfloat16", "float16")  # MAX itself takes the first two


def params_values(params: KVCacheParams) -> dict[str, Any]:
    """The fields that were set, then the derived properties."""
    quantization = params.kvcache_quant_config
    return {
        "dtype": params.dtype,
        "n_kv_heads": params.n_kv_heads,
        "head_dim": params.head_dim,
        "num_layers": params.num_layers,
        "devices": [str(device) for device in params.devices],
        "page_size": params.page_size,
        "data_parallel_degree": params.data_parallel_degree,
        "enable_prefix_caching": params.enable_prefix_caching,
        "kv_connector": params.kv_connector,
        "host_kvcache_swap_space_gb": params.host_kvcache_swap_space_gb,
        "is_mla": params.is_mla,
        "num_q_heads": params.num_q_heads,
        "kvcache_quant_config": None
        if quantization is None
        else {
            "scale_dtype": quantization.scale_dtype,
            "quantization_granularity": quantization.quantization_granularity,
        },
        "speculative_method": params.speculative_method,
        "num_draft_tokens": params.num_draft_tokens,
        **derived_values(params),
    }


def derived_values(params: KVCacheParams) -> dict[str, Any]:
    """The derived properties by their names."""
    return {
        "n_devices": params.n_devices,
        "tensor_parallel_degree": params.tensor_parallel_degree,
        "n_kv_heads_per_device": params.n_kv_heads_per_device,
        "num_q_heads_per_device": params.num_q_heads_per_device,
        "replicates_kv_across_tp": params.replicates_kv_across_tp,
        "dtype_shorthand": params.dtype_shorthand,
        "is_fp8_kv_dtype": params.is_fp8_kv_dtype,
        "quantized_kv_cache": params.quantized_kv_cache,
        "shape_per_block": params.shape_per_block,
        "shape_per_scale_block": params.shape_per_scale_block if params.quantized_kv_cache else None,
        "bytes_per_block": params.bytes_per_block,
        "num_draft_tokens_per_step": params.num_draft_tokens_per_step,
    }
