"""All that a dozen sets of parameters lead to, approved from a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import max
from engine.max import GIB, KVCacheParams, KVCacheQuantizationConfig, KVConnectorConfig, params_values
from tests.engine.max.parameters import FP8, deepseek, llama
from tests.engine.told import approve

DISK = KVConnectorConfig(disk_offload_dir="/var/kv")
HOST = {"enable_prefix_caching": True, "host_kvcache_swap_space_gb": 0.5}
PARAMS: dict[str, KVCacheParams] = {
    "llama": llama(),
    "two devices": llama(2, num_q_heads=32, **HOST, kv_connector="local"),
    "two replicas": llama(2, 2, **HOST, kv_connector="tiered", kv_connector_config=DISK),
    "no folder": llama(**HOST, kv_connector="tiered"),
    "block store": llama(kv_connector="dkv", kv_connector_config=KVConnectorConfig(block_store_endpoint="tcp://a:1")),
    "no block store": llama(kv_connector="dkv"),
    "another store": llama(kv_connector="dkv", kv_connector_config=KVConnectorConfig(block_store_endpoint="http://a")),
    "too little": llama(**{**HOST, "host_kvcache_swap_space_gb": 0.001}, kv_connector="local"),
    "scales": llama(2, **FP8, kvcache_quant_config=KVCacheQuantizationConfig("float8_e8m0fnu", 32), page_size=64),
    "fp8 alone": llama(**FP8),
    "latent": deepseek(4, speculative_method="eagle", num_draft_tokens=2),
    "latent, drafts at once": deepseek(speculative_method="dflash", num_draft_tokens=3, **HOST, kv_connector="local"),
    "two latent": deepseek(2, 2, dtype="float32"),
    "one draft": llama(speculative_method="mtp", num_draft_tokens=1),
}


def _or_refusal(what: Callable[[], Any]) -> str:
    try:
        return re.sub(r"DeviceRef\(device_type='(\w+)', id=(\d+)\)", r"\1:\2", repr(what()))
    except (ValueError, RuntimeError) as refusal:
        return f"refused: {refusal}"


def said(name: str, p: KVCacheParams) -> list[str]:
    asked: dict[str, Callable[[], Any]] = {
        "values": lambda: params_values(p),
        "drafts in a step": lambda: p.num_draft_tokens_per_step,
        "replicas": p.replica_devices,
        "last replica": lambda: p.copy_as_dp_1(len(p.replica_devices()) - 1),
        "buffers": lambda: p.allocate_buffers(3),
        "inputs": p.symbolic_inputs,
        "keys": lambda: [p.resolve_attn_key(batch, 2, keys) for batch in (1, 16) for keys in (100, 5000, 70_000)],
        "probes": lambda: [p.graph_capture_probe_cache_lengths(700, width) for width in (1, 3)],
        "pages": lambda: max.compute_num_device_blocks(p, 3 * GIB // 2),
        "longest": lambda: max.compute_max_seq_len_fitting_in_cache(p, GIB),
        "host": lambda: (max.host_bytes_per_block(p), max.compute_num_host_blocks(p)),
        "tiers": lambda: max.tiers_of(p),
        "manager": lambda: max.require_manager_page_size(p.page_size),
    }  # fmt: skip
    return [f"== {name}", *(f"  {what}: {_or_refusal(value)}" for what, value in asked.items())]


def test_parameters_lead_to_what_was_approved() -> None:
    lines: list[str] = []
    for name, each in PARAMS.items():
        lines += said(name, each)
    approve(Path(__file__).parent / "approved" / "parameters.txt", lines)
