"""What a config.json alone tells, without a model: `params`, MAX's parameters of a KV cache; `budget`, the predicted
bytes of a cache.

Exit codes: 0; 2 for bad input or a combination that MAX refuses, with one line on standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

from engine.cli.arguments import BYTES_LIMIT, SIZE_LIMIT, add_cache_arguments, number, spec_of, whole
from engine.cli.output import add_command, print_facts
from engine.errors import InputError
from engine.files.text import read_json_object
from engine.geometry.dimensions import CacheGeometry
from engine.max import (
    SCALE_DTYPES,
    ArchConfigWithAttentionKVCache,
    DeviceRef,
    InsufficientMemoryError,
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
from engine.predict.bytes import Budget, BudgetSpec, budget_of, tokens_that_fit, tutorial_table
from engine.spec.cache import NAMES, cache_name
from engine.spec.codec import codec_name
from engine.spec.model import BUNDLED, RESOURCES, SHAPE_PREFIX

DTYPES: Final = ("bfloat16", "float16", "float32", "float8_e4m3fn")


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a config.json, and the dtype of its cache."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", metavar="M", help=f"a model folder, {BUNDLED!r}, or {SHAPE_PREFIX}CONFIG.json")
    source.add_argument("--config", metavar="FILE", help="a config.json")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16", metavar="D", help=f"cache dtype: {', '.join(DTYPES)}"
    )


def _report(args: argparse.Namespace, find: Callable[[argparse.Namespace], dict[str, Any]]) -> int:
    """Print the result of `find`, or its error on one line; returns the exit code."""
    try:
        found = find(args)
    except (ValueError, InsufficientMemoryError) as refusal:
        print(f"kvloupe-engine: {' '.join(str(refusal).split())}", file=sys.stderr)
        return 2
    print_facts(found, args.json)
    return 0


def _read_config(args: argparse.Namespace) -> dict[str, Any]:
    """The parsed config.json that the arguments name; no other file of the model is opened."""
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
        from engine.model.hub import resolve_hub_name  # imported here, since the hub's client is slow to import

        path = resolve_hub_name(model, False, lambda *_: None)
    return path / "config.json" if path.is_dir() else path


def geometry_on_disk(model: str) -> CacheGeometry | None:
    """The geometry of a model whose config.json is on this disk; None for any other, or if it cannot be read: loading
    the model then tells why."""
    is_here = model == BUNDLED or model.startswith(SHAPE_PREFIX) or Path(model).is_dir()
    try:
        return CacheGeometry.from_config(read_json_object(_config_path(model), "model config")) if is_here else None
    except InputError:
        return None


# ---- params -------------------------------------------------------------------------------------------------------

_DEVICES_LIMIT: Final = 4096


def add_params(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    devices = whole(most=_DEVICES_LIMIT)
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
    return _report(args, _params_found)


def _params_found(args: argparse.Namespace) -> dict[str, Any]:
    config = _read_config(args)
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


# ---- budget -------------------------------------------------------------------------------------------------------


def add_budget(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    parser.add_argument("--cache", metavar="NAME", help=f"dynamic, growing with a codec, or one of {NAMES}")
    parser.add_argument("--context", type=whole(), metavar="N", help="tokens per sequence (the model's maximum)")
    parser.add_argument("--batch", type=whole(), default=1, metavar="N", help="number of sequences")
    parser.add_argument(
        "--prompt-tokens", type=whole(), metavar="N", help="how many of them are the prompt (all but the newest)"
    )
    add_cache_arguments(parser)
    total = whole(most=BYTES_LIMIT)
    parser.add_argument(
        "--available-bytes", type=total, metavar="B", help="also say how many tokens fit in this memory"
    )
    parser.add_argument("--table", action="store_true", help="the memory table of the KV cache tutorial")
    add_command(parser, run_budget, "print one JSON object")
    parser.set_defaults(without_options=vars(parser.parse_args([])))


def run_budget(args: argparse.Namespace) -> int:
    """Print the predicted bytes, or the tutorial's table; returns the exit code."""
    return _report(args, _table_found if args.table else _budget_found)


def _budget_found(args: argparse.Namespace) -> dict[str, Any]:
    geometry = CacheGeometry.from_config(_read_config(args))
    spec = BudgetSpec(
        cache=spec_of(args.cache or _default_cache(args), args),
        context=_context(args, geometry),
        batch=args.batch,
        dtype=args.dtype,
        prompt=args.prompt_tokens,
    )
    found = _budget_as_dict(budget_of(geometry, spec), cache_name(spec.cache))
    if args.available_bytes is not None:
        found["tokens_that_fit"] = tokens_that_fit(geometry, spec, args.available_bytes)
    return found


def _default_cache(args: argparse.Namespace) -> str:
    return "dynamic" if args.codec is None else "growing"


def _context(args: argparse.Namespace, geometry: CacheGeometry) -> int:
    if args.context is not None:
        return int(args.context)
    if geometry.max_length is None:
        raise InputError(f"A {geometry.model_type} model states no maximum length; give --context.")
    return geometry.max_length


# what is printed of a budget, and of each kind of its layers, by the names of the attributes
OF_BUDGET: Final = (
    "bytes_per_token", "stored_bytes_per_sequence", "reserved_bytes_per_sequence", "state_bytes_per_sequence",
    "bytes_per_sequence", "total_bytes", "pool_bytes", "host_bytes",
)  # fmt: skip
OF_KIND: Final = ("kind", "num_layers", "bytes_per_token", "stored_bytes", "reserved_bytes", "state_bytes")


def _budget_as_dict(budget: Budget, cache: str) -> dict[str, Any]:
    spec = budget.spec
    return {
        "cache": cache,
        "dtype": spec.dtype,
        "codec": codec_name(spec.cache.codec),
        "context": spec.context,
        "batch": spec.batch,
        **{name: getattr(budget, name) for name in OF_BUDGET},
        "formula": [
            {"bytes": term.num_bytes, "formula": f"{term.symbols} = {term.values}", "of": term.words}
            for term in budget.terms
        ],
        "kinds": [{name: getattr(kind, name) for name in OF_KIND} for kind in budget.kinds],
    }


def _table_found(args: argparse.Namespace) -> dict[str, Any]:
    """The tutorial's table; raises `InputError` if options are given that it does not depend on."""
    given = [name for name, value in args.without_options.items() if getattr(args, name) != value]
    if others := sorted(set(given) - {"table", "json"}):
        option = f"--{others[0].replace('_', '-')}"
        raise InputError(
            f"The tutorial's table is of its own models and takes no {option}: leave out --table or {option}."
        )
    return {
        "dtype": "float16",
        "table": [
            {"model": row.model, "context": row.context, "bytes": row.bytes, "megabytes": round(row.megabytes, 1)}
            for row in tutorial_table()
        ],
    }
