"""`params`: MAX's parameters of a KV cache, from a config.json alone, without a model.

Exit codes: 0; 2 for bad input or a combination that MAX refuses, with one line on standard error.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, Final, get_args

from engine.cli.config_report import DTYPES, add_source, read_config, report
from engine.cli.output import add_command
from engine.cli.values import BYTES_LIMIT, SIZE_LIMIT, number, whole
from engine.errors import InputError
from engine.max import (
    SCALE_DTYPES,
    ArchConfigWithAttentionKVCache,
    DeviceRef,
    KVCacheConfig,
    KVCacheParams,
    KVCacheQuantizationConfig,
    KVConnectorConfig,
    KVConnectorType,
    SpeculativeMethod,
    compute_max_seq_len_fitting_in_cache,
    compute_num_device_blocks,
    compute_num_host_blocks,
    decode_values,
    params_values,
    require_manager_page_size,
    speculative_changes,
)

_DEVICES_LIMIT: Final = 4096


def add_params(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    devices = whole(most=_DEVICES_LIMIT)
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16", metavar="D", help=f"cache dtype: {', '.join(DTYPES)}"
    )
    parser.add_argument("--page-size", type=whole(), default=128, metavar="P", help="tokens per page")
    parser.add_argument("--devices", type=devices, default=1, metavar="N", help="number of accelerators")
    parser.add_argument("--data-parallel", type=devices, default=1, metavar="N", help="number of replicas")
    parser.add_argument("--prefix-caching", action="store_true", help="reuse pages of common prefixes")
    connectors, methods = get_args(KVConnectorType), get_args(SpeculativeMethod)
    parser.add_argument(
        "--connector", choices=connectors, metavar="C", help=f"tier below the devices: {', '.join(connectors)}"
    )
    memory = number(above=0, most=SIZE_LIMIT)
    parser.add_argument("--swap-gib", type=memory, metavar="G", help="host memory per replica in GiB")
    parser.add_argument(
        "--scale-dtype", choices=SCALE_DTYPES, metavar="D", help=f"dtype of FP8 scales: {', '.join(SCALE_DTYPES)}"
    )
    parser.add_argument("--granularity", type=whole(), metavar="N", help="channels that share a scale (128)")
    parser.add_argument("--speculative", choices=methods, metavar="M", help=f"draft tokens by {', '.join(methods)}")
    parser.add_argument("--draft-tokens", type=whole(), metavar="N", help="draft tokens of one iteration (1)")
    parser.add_argument(
        "--batch", type=whole(), default=1, metavar="N", help="sequences of the decode step whose kernel is named"
    )
    parser.add_argument(
        "--cache-length", type=whole(), metavar="N", help="tokens that its longest has cached (the model's maximum)"
    )
    total = whole(most=BYTES_LIMIT)
    parser.add_argument(
        "--available-bytes", type=total, metavar="B", help="device memory for the cache of all replicas"
    )
    add_command(parser, run_params, "print one JSON object")


def run_params(args: argparse.Namespace) -> int:
    """Print MAX's parameters; returns the exit code."""
    return report(args, _params_found)


def _params_found(args: argparse.Namespace) -> dict[str, Any]:
    config = read_config(args)
    architecture = ArchConfigWithAttentionKVCache(
        dtype=args.dtype,
        devices=[DeviceRef.GPU(i) for i in range(args.devices)],
        kv_cache=_cache_config(args),
        data_parallel_degree=args.data_parallel,
        huggingface_config=config,
        kvcache_quant_config=_quantization(args),
    )
    params = replace(architecture.get_kv_params(), **_speculative(args))
    longest = architecture.geometry.max_length
    found = params_values(params) | _capacity(params, args.available_bytes) | {"max_seq_len": longest}
    length = args.cache_length or longest or params.page_size
    return found | _dispatch(params, args.batch, length) | _notes(params)


def _speculative(args: argparse.Namespace) -> dict[str, Any]:
    if args.speculative is None:
        if args.draft_tokens is not None:
            raise InputError("--draft-tokens needs --speculative: say which method drafts them.")
        return {}
    return {"speculative_method": args.speculative, "num_draft_tokens": args.draft_tokens or 1}


def _dispatch(params: KVCacheParams, batch: int, length: int) -> dict[str, Any]:
    """The kernel of a decode step, the lengths at which graphs are captured, what a speculative method changes, and the
    parameters of one replica."""
    found = decode_values(params, batch, length)
    if params.speculative_method is not None:
        changes = speculative_changes(params, batch, length)
        found["changed_by_speculation"] = [
            {"name": name, "without": without, "with": now} for name, (without, now) in changes.changed.items()
        ]
        found["unchanged_by_speculation"] = list(changes.unchanged)
    if params.data_parallel_degree > 1:
        alone = params.copy_as_dp_1()
        names = ("n_devices", "data_parallel_degree", "n_kv_heads_per_device", "shape_per_block", "bytes_per_block")
        found["copy_as_dp_1"] = {name: getattr(alone, name) for name in names}
    return found


def _notes(params: KVCacheParams) -> dict[str, Any]:
    """What the cache manager says about a page size that the parameters accept."""
    try:
        require_manager_page_size(params.page_size)
    except ValueError as error:
        return {"note": str(error)}
    return {}


def _cache_config(args: argparse.Namespace) -> KVCacheConfig:
    return KVCacheConfig(
        kv_cache_page_size=args.page_size,
        enable_prefix_caching=args.prefix_caching,
        kv_connector=args.connector,
        kv_connector_config=KVConnectorConfig(host_kvcache_swap_space_gb=args.swap_gib),
    )


def _quantization(args: argparse.Namespace) -> KVCacheQuantizationConfig | None:
    if args.scale_dtype is None and args.granularity is None:
        return None
    return KVCacheQuantizationConfig(args.scale_dtype or "float32", args.granularity or 128)


def _capacity(params: KVCacheParams, available: int | None) -> dict[str, Any]:
    """The number of device pages if memory is given, and of host pages if a connector has that tier."""
    found: dict[str, Any] = {}
    if available is not None:
        found["num_device_blocks"] = compute_num_device_blocks(params, available)
        found["max_seq_len_fitting_in_cache"] = compute_max_seq_len_fitting_in_cache(params, available)
    if params.kv_connector is not None:
        found["num_host_blocks"] = compute_num_host_blocks(params)
    return found
