"""`bench`: measures cache modes against each other, as JSON lines or as a table."""

from __future__ import annotations

import argparse

from engine.cli.arguments import (
    add_cache_arguments,
    add_caches_argument,
    add_model_arguments,
    add_prompt_arguments,
    load_model,
    prompts_of,
    specs_of,
)
from engine.cli.output import add_command, print_rows
from engine.cli.values import counts
from engine.errors import InputError, check_known
from engine.spec.cache import CacheSpec
from engine.spec.model import RUNNERS
from engine.spec.sampling import SamplingParams

DEFAULT_CONTEXTS = (128, 512)


def add_bench(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Cache modes take turns, a few decode steps each, the order swapped every round: medians, and the "
        "difference of the quartiles as spread. ttft_ms: until every sequence has its first token. overhead_ratio: "
        "the part of a step that is not spent in the model's forward. ratio: speed over that of base, turn by turn. "
        "Caches that are not paged run the sequences of a batch one after the other. A runner may follow the name of a "
        "cache: static:compile, paged:fused+pages."
    )
    add_model_arguments(parser)
    add_prompt_arguments(parser, required=False)
    add_cache_arguments(parser)
    parser.add_argument(
        "--contexts",
        type=counts,
        metavar="N,N,...",
        help=f"tokens to start from, without a prompt ({','.join(map(str, DEFAULT_CONTEXTS))})",
    )
    parser.add_argument(
        "--batch", type=counts, default="1", metavar="N,N,...", help="sequences that decode side by side (1)"
    )
    add_caches_argument(parser, "dynamic,static,growing,paged")
    add_command(parser, bench_command)


def bench_command(args: argparse.Namespace) -> int:
    """Print a row for every mode, context and batch; returns the exit code."""
    specs, ways = contenders_of(args)
    prompts = prompts_of(args, SamplingParams())
    if prompts and args.contexts is not None:
        raise InputError("A prompt has a length of its own: give it or --contexts, not both.")
    model = load_model(args)
    from engine.analysis.bench import bench
    from engine.session.commands import first_ids

    ids = tuple(first_ids(model, prompts[0])) if prompts else None
    contexts = (len(ids),) if ids else args.contexts or DEFAULT_CONTEXTS
    pieces = bench(model, specs, contexts, args.steps, args.batch, ids, runners=ways)
    return print_rows((piece for piece in pieces if not isinstance(piece, tuple)), model, args)


def contenders_of(args: argparse.Namespace) -> tuple[dict[str, CacheSpec], dict[str, str]]:
    """The cache specs by the names that were typed, and the runners of those names that have one: `static:compile`."""
    parts = {name: name.partition(":") for each in args.caches.split(",") if (name := each.strip())}
    specs = specs_of(",".join(cache for cache, _, _ in parts.values()), args)
    ways = {name: way for name, (_, colon, way) in parts.items() if colon}
    for name in (name for way in ways.values() for name in way.split("+")):
        if name != "pages":
            check_known("runner", name, RUNNERS)
    return (specs if args.caches == "all" else {name: specs[cache] for name, (cache, _, _) in parts.items()}), ways
