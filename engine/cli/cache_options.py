"""The options that size a cache, the same in every command, and what they make of a preset."""

from __future__ import annotations

import argparse
from typing import Any

from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, get_codec_names, parse_codec
from engine.spec.presets import PRESETS, cache_named, cache_preset
from engine.spec.retention import LayerBudgets, parse_budget
from engine.spec.tuning import tuned


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    """Budgets, windows, bits: where a cache has them."""
    group = parser.add_argument_group(
        "the size of the cache", "each applies to the caches that have it (see caches --json)"
    )
    group.add_argument(
        "--budget",
        type=budget_argument,
        metavar="N",
        help="rows kept per layer and kv head; N,N,... one for each layer, pyramid:N falls from the first to the last",
    )
    group.add_argument(
        "--layout", choices=("growing", "paged"), help="where a rule drops: rows of a growing cache, or whole pages"
    )
    group.add_argument("--ratio", type=float, metavar="R", help="part of the rows that is dropped, instead of a budget")
    group.add_argument("--sinks", type=int, metavar="N", help="first tokens that always stay")
    group.add_argument("--window", type=int, metavar="N", help="latest tokens that always stay")
    group.add_argument("--rerotate", action="store_true", default=None, help="turn the sinks to close the gap")
    group.add_argument("--bits", type=int, metavar="B", help="bits of a KIVI code: 2, 4 or 8")
    group.add_argument("--group", type=int, metavar="G", help="numbers that share a scale")
    group.add_argument("--residual", type=int, metavar="R", help="latest tokens that stay exact")
    group.add_argument("--backend", metavar="NAME", help="quantiser of transformers' own cache: fp8, quanto or hqq")
    group.add_argument(
        "--codec",
        type=codec_argument,
        metavar="NAME[/NAME]",
        help=f"how K (and V) are written in a growing or a paged cache: {', '.join(get_codec_names())}",
    )


def budget_argument(text: str) -> int | LayerBudgets:
    try:
        return parse_budget(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def codec_argument(text: str) -> CodecSpec:
    try:
        return parse_codec(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


SIZE_OPTIONS = ("layout", "budget", "ratio", "sinks", "window", "rerotate", "bits", "group", "residual", "backend")


def spec_of(name: str, args: argparse.Namespace, **more: Any) -> CacheSpec:
    """The cache of that name with every option given; one that means nothing to it is refused."""
    given = {option: getattr(args, option) for option in SIZE_OPTIONS}
    return tuned(cache_named(name), codec=args.codec, **given, **more)


def specs_of(names: str, args: argparse.Namespace) -> dict[str, CacheSpec]:
    """Several presets, or `all`, each with those options that it has; an option that none of them has is refused."""
    chosen = list(PRESETS) if names == "all" else [name.strip() for name in names.split(",") if name.strip()]
    presets = [cache_preset(name) for name in chosen]
    if not presets:
        raise InputError(f"No cache is named: give all, or some of {', '.join(PRESETS)}.")
    if args.codec is not None:
        raise InputError("--codec makes one cache of its own: give it to run, with the growing or the paged cache.")
    given = {option: getattr(args, option) for option in SIZE_OPTIONS if getattr(args, option) is not None}
    for option in given:
        if not any(option in preset.parameters for preset in presets):
            raise InputError(f"--{option} means nothing to {', '.join(chosen)}: leave it out.")
    return {p.name: tuned(p.spec, **{k: v for k, v in given.items() if k in applicable(p.name)}) for p in presets}


def applicable(name: str) -> tuple[str, ...]:
    """The options that a preset takes among others: transformers' quantiser has settings of its own."""
    parameters = PRESETS[name].parameters
    return tuple(p for p in parameters if p not in ("bits", "group", "residual") or not name.startswith("transformers"))
