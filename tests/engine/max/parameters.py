"""Parameters of two models, as MAX would have them: grouped heads and a latent."""

from __future__ import annotations

from typing import Any

from engine.max import DeviceRef, KVCacheParams

FP8: dict[str, Any] = {"dtype": "float8_e4m3fn"}


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
