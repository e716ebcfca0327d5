"""The sub-command `params`: MAX's parameters of a cache, from a config.json alone, without a model.

Exit codes: 0, and 2 for bad input or a combination that MAX refuses, with one line on standard error.
"""

from __future__ import annotations

import argparse
import math
from typing import Any, Final, cast, get_args

from engine.cli.config_sums import BYTES_LIMIT, DTYPES, SIZE_LIMIT, add_source, one_of, read_config, report, whole
from engine.errors import InputError
from engine.max.arch import HuggingFaceArchConfig, KVCacheConfig
from engine.max.buffers import DeviceRef
from engine.max.capacity import (
    compute_max_seq_len_fitting_in_cache,
    compute_num_device_blocks,
    compute_num_host_blocks,
)
from engine.max.listing import SCALE_DTYPES, params_values
from engine.max.params import KVCacheParams, KVCacheQuantizationConfig, KVConnectorConfig, KVConnectorType

_DEVICES_LIMIT: Final = 4096


def add_parsers(subparsers: Any) -> None:
    """Add `params` to what `ArgumentParser.add_subparsers` returned; it sets `func`."""
    parser = subparsers.add_parser("params", help="MAX's KV cache parameters for a model")
    # numbers arrive as text: a refusal of ours is one line, argparse's is its whole usage
    add_source(parser)
    parser.add_argument("--dtype", default="bfloat16", metavar="D", help=f"cache dtype: {', '.join(DTYPES)}")
    parser.add_argument("--page-size", default="128", metavar="P", help="tokens per page")
    parser.add_argument("--devices", default="1", metavar="N", help="number of accelerators")
    parser.add_argument("--data-parallel", default="1", metavar="N", help="number of replicas")
    parser.add_argument("--prefix-caching", action="store_true", help="reuse pages of common prefixes")
    parser.add_argument(
        "--connector", metavar="C", help=f"tier below the devices: {', '.join(get_args(KVConnectorType))}"
    )
    parser.add_argument("--swap-gib", metavar="G", help="host memory per replica in GiB")
    parser.add_argument("--scale-dtype", metavar="D", help=f"dtype of FP8 scales: {', '.join(SCALE_DTYPES)}")
    parser.add_argument("--granularity", metavar="N", help="channels that share a scale (128)")
    parser.add_argument("--available-bytes", metavar="B", help="device memory for the cache of all replicas")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=run_params)


def run_params(args: argparse.Namespace) -> int:
    """Print MAX's parameters; returns the exit code."""
    return report(args, _params_found)


def _params_found(args: argparse.Namespace) -> dict[str, Any]:
    config = read_config(args)
    architecture = HuggingFaceArchConfig(
        dtype=one_of("--dtype", args.dtype, DTYPES),
        devices=[DeviceRef.GPU(i) for i in range(whole("--devices", args.devices, _DEVICES_LIMIT))],
        kv_cache=_cache_config(args),
        data_parallel_degree=whole("--data-parallel", args.data_parallel, _DEVICES_LIMIT),
        huggingface_config=config,
        kvcache_quant_config=_quantization(args),
    )
    params = architecture.get_kv_params()
    available = None if args.available_bytes is None else whole("--available-bytes", args.available_bytes, BYTES_LIMIT)
    return params_values(params) | _capacity(params, available) | {"max_seq_len": architecture.geometry.max_length}


def _cache_config(args: argparse.Namespace) -> KVCacheConfig:
    connector = args.connector
    if connector is not None:
        connector = cast(KVConnectorType, one_of("--connector", connector, get_args(KVConnectorType)))
    return KVCacheConfig(
        kv_cache_page_size=whole("--page-size", args.page_size),
        enable_prefix_caching=args.prefix_caching,
        kv_connector=connector,
        kv_connector_config=KVConnectorConfig(host_kvcache_swap_space_gb=_gib(args.swap_gib)),
    )


def _quantization(args: argparse.Namespace) -> KVCacheQuantizationConfig | None:
    if args.scale_dtype is None and args.granularity is None:
        return None
    return KVCacheQuantizationConfig(
        one_of("--scale-dtype", args.scale_dtype or "float32", SCALE_DTYPES),
        whole("--granularity", args.granularity or "128"),
    )


def _capacity(params: KVCacheParams, available: int | None) -> dict[str, Any]:
    """Only what applies: device pages where memory is given, host pages where a connector has that tier."""
    found: dict[str, Any] = {}
    if available is not None:
        found["num_device_blocks"] = compute_num_device_blocks(params, available)
        found["max_seq_len_fitting_in_cache"] = compute_max_seq_len_fitting_in_cache(params, available)
    if params.kv_connector is not None:
        found["num_host_blocks"] = compute_num_host_blocks(params)
    return found


def _gib(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 < size <= SIZE_LIMIT:
        raise InputError(f"--swap-gib must be a number above 0 and at most {SIZE_LIMIT:,}, not {text[:40]!r}.")
    return size
