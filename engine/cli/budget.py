"""`budget`: predicts the bytes of a cache from a config.json alone, without a model.

Exit codes: 0; 2 for bad input, with one line on standard error.
"""

from __future__ import annotations

import argparse
from typing import Any

from engine.cli.arguments import add_cache_arguments, spec_of
from engine.cli.config_report import DTYPES, add_source, read_config, report
from engine.cli.output import add_command
from engine.cli.values import BYTES_LIMIT, whole
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import Budget, BudgetSpec, budget_of, tokens_that_fit, tutorial_table
from engine.spec.cache import NAMES, cache_name
from engine.spec.codec import codec_name


def add_budget(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--cache", metavar="NAME", help=f"dynamic, growing with a codec, or one of {NAMES}")
    parser.add_argument("--context", type=whole(), metavar="N", help="tokens per sequence (the model's maximum)")
    parser.add_argument("--batch", type=whole(), default=1, metavar="N", help="number of sequences")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16", metavar="D", help=f"cache dtype: {', '.join(DTYPES)}"
    )
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
    return report(args, _table_found if args.table else _budget_found)


def _budget_found(args: argparse.Namespace) -> dict[str, Any]:
    geometry = CacheGeometry.from_config(read_config(args))
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


def _budget_as_dict(budget: Budget, cache: str) -> dict[str, Any]:
    spec = budget.spec
    return {
        "cache": cache,
        "dtype": spec.dtype,
        "codec": codec_name(spec.cache.codec),
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
        "formula": [
            {"bytes": term.num_bytes, "formula": f"{term.symbols} = {term.values}", "of": term.words}
            for term in budget.terms
        ],
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
