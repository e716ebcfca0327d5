"""The sub-commands ``params`` and ``budget``: sums about a cache, from a config.json alone, without a model.

Exit codes: 0, and 2 for bad input or a combination that MAX refuses, with one line on standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast, get_args

from engine.cli.cache_options import add_size_arguments, spec_of
from engine.errors import InputError
from engine.files.text import read_json_object
from engine.geometry.dimensions import CacheGeometry
from engine.max.arch import HuggingFaceArchConfig, KVCacheConfig
from engine.max.buffers import DeviceRef
from engine.max.capacity import (
    InsufficientMemoryError,
    compute_max_seq_len_fitting_in_cache,
    compute_num_device_blocks,
    compute_num_host_blocks,
)
from engine.max.params import KVCacheParams, KVCacheQuantizationConfig, KVConnectorConfig, KVConnectorType
from engine.predict.budget import Budget, BudgetSpec, predict, tokens_that_fit, tutorial_table
from engine.spec.cache import CacheSpec
from engine.spec.codec import codec_words, get_codec_names, parse_codec
from engine.spec.model import BUNDLED, RESOURCES, SHAPE_PREFIX
from engine.spec.presets import PRESETS

_DTYPES: Final = ("bfloat16", "float16", "float32", "float8_e4m3fn")
_SCALE_DTYPES: Final = ("float32", "float8_e8m0fnu", "bfloat16", "float16")
_SIZE_LIMIT: Final = 2**31 - 1
_DEVICES_LIMIT: Final = 4096
_BYTES_LIMIT: Final = 2**63 - 1
# what is accepted beside the presets: a codec, whose numbers lie in a growing cache
_CODECS: Final = tuple(name for name in get_codec_names() if name not in (*PRESETS, "exact"))


def add_parsers(subparsers: Any) -> None:
    """Add ``params`` and ``budget`` to what ``ArgumentParser.add_subparsers`` returned; each sets ``func``."""
    _add_params(subparsers.add_parser("params", help="MAX's KV cache parameters for a model"))
    _add_budget(subparsers.add_parser("budget", help="predicted bytes of a KV cache"))


def _add_source(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", metavar="M", help=f"a model folder, {BUNDLED!r}, or {SHAPE_PREFIX}CONFIG.json")
    source.add_argument("--config", metavar="FILE", help="a config.json")


def _add_params(parser: argparse.ArgumentParser) -> None:
    # numbers arrive as text: a refusal of ours is one line, argparse's is its whole usage
    _add_source(parser)
    parser.add_argument("--dtype", default="bfloat16", metavar="D", help=f"cache dtype: {', '.join(_DTYPES)}")
    parser.add_argument("--page-size", default="128", metavar="P", help="tokens per page")
    parser.add_argument("--devices", default="1", metavar="N", help="number of accelerators")
    parser.add_argument("--data-parallel", default="1", metavar="N", help="number of replicas")
    parser.add_argument("--prefix-caching", action="store_true", help="reuse pages of common prefixes")
    parser.add_argument(
        "--connector", metavar="C", help=f"tier below the devices: {', '.join(get_args(KVConnectorType))}"
    )
    parser.add_argument("--swap-gib", metavar="G", help="host memory per replica in GiB")
    parser.add_argument("--scale-dtype", metavar="D", help=f"dtype of FP8 scales: {', '.join(_SCALE_DTYPES)}")
    parser.add_argument("--granularity", metavar="N", help="channels that share a scale (128)")
    parser.add_argument("--available-bytes", metavar="B", help="device memory for the cache of all replicas")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=run_params)


def _add_budget(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    parser.add_argument(
        "--cache", metavar="NAME", help=f"dynamic, growing with a codec, or one of {', '.join((*PRESETS, *_CODECS))}"
    )
    parser.add_argument("--context", metavar="N", help="tokens per sequence (the model's maximum)")
    parser.add_argument("--batch", default="1", metavar="N", help="number of sequences")
    parser.add_argument("--dtype", default="bfloat16", metavar="D", help=f"cache dtype: {', '.join(_DTYPES)}")
    parser.add_argument("--page-size", metavar="P", help="tokens per page of a paged cache (16)")
    parser.add_argument("--max-length", metavar="N", help="tokens that a static cache reserves")
    parser.add_argument("--prompt-tokens", metavar="N", help="how many of them are the prompt (all but the newest)")
    add_size_arguments(parser)
    parser.add_argument("--available-bytes", metavar="B", help="also say how many tokens fit in this memory")
    parser.add_argument("--table", action="store_true", help="the memory table of the KV cache tutorial")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=run_budget)


def run_params(args: argparse.Namespace) -> int:
    """Print MAX's parameters; returns the exit code."""
    return _report(args, _params_found)


def run_budget(args: argparse.Namespace) -> int:
    """Print the predicted bytes, or the tutorial's table; returns the exit code."""
    return _report(args, _table_found if args.table else _budget_found)


def _report(args: argparse.Namespace, find: Callable[[argparse.Namespace], dict[str, Any]]) -> int:
    try:
        found = find(args)
    except (ValueError, InsufficientMemoryError) as refusal:
        print(f"kvloupe-engine: {' '.join(str(refusal).split())}", file=sys.stderr)
        return 2
    print(json.dumps(found) if args.json else _as_text(found))
    return 0


# --- params -----------------------------------------------------------------------------------------------------------


def _params_found(args: argparse.Namespace) -> dict[str, Any]:
    config = _read_config(args)
    architecture = HuggingFaceArchConfig(
        dtype=_one_of("--dtype", args.dtype, _DTYPES),
        devices=[DeviceRef.GPU(i) for i in range(_whole("--devices", args.devices, _DEVICES_LIMIT))],
        kv_cache=_cache_config(args),
        data_parallel_degree=_whole("--data-parallel", args.data_parallel, _DEVICES_LIMIT),
        huggingface_config=config,
        kvcache_quant_config=_quantization(args),
    )
    params = architecture.get_kv_params()
    available = (
        None if args.available_bytes is None else _whole("--available-bytes", args.available_bytes, _BYTES_LIMIT)
    )
    return _params_as_dict(params) | _capacity(params, available) | {"max_seq_len": architecture.geometry.max_length}


def _cache_config(args: argparse.Namespace) -> KVCacheConfig:
    connector = args.connector
    if connector is not None:
        connector = cast(KVConnectorType, _one_of("--connector", connector, get_args(KVConnectorType)))
    return KVCacheConfig(
        kv_cache_page_size=_whole("--page-size", args.page_size),
        enable_prefix_caching=args.prefix_caching,
        kv_connector=connector,
        kv_connector_config=KVConnectorConfig(host_kvcache_swap_space_gb=_gib(args.swap_gib)),
    )


def _quantization(args: argparse.Namespace) -> KVCacheQuantizationConfig | None:
    if args.scale_dtype is None and args.granularity is None:
        return None
    return KVCacheQuantizationConfig(
        _one_of("--scale-dtype", args.scale_dtype or "float32", _SCALE_DTYPES),
        _whole("--granularity", args.granularity or "128"),
    )


def _params_as_dict(params: KVCacheParams) -> dict[str, Any]:
    quantization = params.kvcache_quant_config
    return {
        "dtype": params.dtype,
        "dtype_shorthand": params.dtype_shorthand,
        "n_kv_heads": params.n_kv_heads,
        "n_kv_heads_per_device": params.n_kv_heads_per_device,
        "num_q_heads": params.num_q_heads,
        "num_q_heads_per_device": params.num_q_heads_per_device,
        "head_dim": params.head_dim,
        "num_layers": params.num_layers,
        "page_size": params.page_size,
        "devices": [str(device) for device in params.devices],
        "n_devices": params.n_devices,
        "data_parallel_degree": params.data_parallel_degree,
        "tensor_parallel_degree": params.tensor_parallel_degree,
        "enable_prefix_caching": params.enable_prefix_caching,
        "kv_connector": params.kv_connector,
        "host_kvcache_swap_space_gb": params.host_kvcache_swap_space_gb,
        "is_mla": params.is_mla,
        "replicates_kv_across_tp": params.replicates_kv_across_tp,
        "is_fp8_kv_dtype": params.is_fp8_kv_dtype,
        "quantized_kv_cache": params.quantized_kv_cache,
        "kvcache_quant_config": None
        if quantization is None
        else {
            "scale_dtype": quantization.scale_dtype,
            "quantization_granularity": quantization.quantization_granularity,
        },
        "shape_per_block": params.shape_per_block,
        "shape_per_scale_block": params.shape_per_scale_block if params.quantized_kv_cache else None,
        "bytes_per_block": params.bytes_per_block,
    }


def _capacity(params: KVCacheParams, available: int | None) -> dict[str, Any]:
    """Only what applies: device pages where memory is given, host pages where a connector has that tier."""
    found: dict[str, Any] = {}
    if available is not None:
        found["num_device_blocks"] = compute_num_device_blocks(params, available)
        found["max_seq_len_fitting_in_cache"] = compute_max_seq_len_fitting_in_cache(params, available)
    if params.kv_connector is not None:
        found["num_host_blocks"] = compute_num_host_blocks(params)
    return found


# --- budget -----------------------------------------------------------------------------------------------------------


def _budget_found(args: argparse.Namespace) -> dict[str, Any]:
    geometry = CacheGeometry.from_config(_read_config(args))
    spec = BudgetSpec(
        cache=_cache_of(args),
        context=_context(args, geometry),
        batch=_whole("--batch", args.batch),
        dtype=_one_of("--dtype", args.dtype, _DTYPES),
        prompt=None if args.prompt_tokens is None else _whole("--prompt-tokens", args.prompt_tokens),
    )
    found = _budget_as_dict(predict(geometry, spec), args.cache or _default_cache(args))
    if args.available_bytes is not None:
        available = _whole("--available-bytes", args.available_bytes, _BYTES_LIMIT)
        found["tokens_that_fit"] = tokens_that_fit(geometry, spec, available)
    return found


def _cache_of(args: argparse.Namespace) -> CacheSpec:
    """The preset that is named with its options, or a growing cache with the codec that is."""
    name = _one_of("--cache", args.cache or _default_cache(args), (*PRESETS, *_CODECS))
    if name in _CODECS:
        if args.codec is not None:
            raise InputError(f"{name} is a codec already: leave --codec out, or name a cache.")
        name, args.codec = "growing", parse_codec(name)
    max_length = None if args.max_length is None else _whole("--max-length", args.max_length)
    page_size = None if args.page_size is None else _whole("--page-size", args.page_size)
    return spec_of(name, args, max_length=max_length, page_size=page_size)


def _default_cache(args: argparse.Namespace) -> str:
    return "dynamic" if args.codec is None else "growing"


def _context(args: argparse.Namespace, geometry: CacheGeometry) -> int:
    if args.context is not None:
        return _whole("--context", args.context)
    if geometry.max_length is None:
        raise InputError(f"A {geometry.model_type} model states no maximum length; give --context.")
    return geometry.max_length


def _budget_as_dict(budget: Budget, cache: str) -> dict[str, Any]:
    spec = budget.spec
    return {
        "cache": cache,
        "dtype": spec.dtype,
        "codec": codec_words(spec.cache.codec),
        "context": spec.context,
        "batch": spec.batch,
        "bytes_per_token": budget.bytes_per_token,
        "stored_bytes_per_sequence": budget.stored_bytes_per_sequence,
        "reserved_bytes_per_sequence": budget.reserved_bytes_per_sequence,
        "state_bytes_per_sequence": budget.state_bytes_per_sequence,
        "bytes_per_sequence": budget.bytes_per_sequence,
        "total_bytes": budget.total_bytes,
        "pool_bytes": budget.pool_bytes,
        "host_bytes": budget.host_bytes,
        "kinds": [
            {
                "kind": kind.kind,
                "num_layers": kind.num_layers,
                "bytes_per_token": kind.bytes_per_token,
                "stored_bytes": kind.stored_bytes,
                "reserved_bytes": kind.reserved_bytes,
                "state_bytes": kind.state_bytes,
            }
            for kind in budget.kinds
        ],
    }


def _table_found(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "dtype": "float16",
        "table": [
            {"model": row.model, "context": row.context, "bytes": row.bytes, "megabytes": round(row.megabytes, 1)}
            for row in tutorial_table()
        ],
    }


# --- reading what was typed -------------------------------------------------------------------------------------------


def _read_config(args: argparse.Namespace) -> dict[str, Any]:
    """The parsed config.json that the arguments name; nothing else of a model is opened."""
    if args.config is None and args.model is None:
        raise InputError("No model is named; give --model or --config.")
    path = Path(args.config) if args.config is not None else _config_path(args.model)
    return read_json_object(path, "model config")


def _config_path(model: str) -> Path:
    if model == BUNDLED:
        return RESOURCES / "demo_model" / "config.json"
    if model.startswith(SHAPE_PREFIX):
        return Path(model[len(SHAPE_PREFIX) :])
    path = Path(model)
    if not path.exists() and model.count("/") == 1:
        from engine.model.hub import resolve_hub_name  # only a hub name needs it: the hub's client is slow to import

        path = resolve_hub_name(model, False, lambda *_: None)
    return path / "config.json" if path.is_dir() else path


def _whole(option: str, text: str, limit: int = _SIZE_LIMIT) -> int:
    is_short_number = text.isascii() and text.isdecimal() and len(text) <= 20
    if not is_short_number or not 1 <= int(text) <= limit:
        raise InputError(f"{option} must be a whole number from 1 to {limit:,}, not {text[:40]!r}.")
    return int(text)


def _gib(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 < size <= _SIZE_LIMIT:
        raise InputError(f"--swap-gib must be a number above 0 and at most {_SIZE_LIMIT:,}, not {text[:40]!r}.")
    return size


def _one_of(option: str, text: str, known: Any) -> str:
    if text not in known:
        raise InputError(f"{option} {text[:40]!r} is not known; use one of {', '.join(known)}.")
    return text


def _as_text(found: Mapping[str, Any]) -> str:
    """One line per entry, and one per row of a list of rows."""
    lines = []
    for name, value in found.items():
        rows = value if isinstance(value, list) and value and isinstance(value[0], Mapping) else None
        if rows is None:
            lines.append(f"{name}: {_plain(value)}")
            continue
        lines.append(f"{name}:")
        lines += ["  " + "  ".join(f"{key} {_plain(cell)}" for key, cell in row.items()) for row in rows]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(cell)}" for key, cell in value.items())
    return str(value)
