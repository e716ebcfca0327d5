"""`sweep` and `bench`: every cache mode on the same tokens, as JSON lines or as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import structs

from engine.cli.cache_options import add_cache_arguments, specs_of
from engine.cli.run import (
    add_caches_argument,
    add_model_arguments,
    add_prompt_arguments,
    checked_steps,
    load_model,
    prompts_of,
    say,
    tell_unavailable,
)
from engine.errors import InputError
from engine.spec.sampling import Prompt, SamplingParams

if TYPE_CHECKING:
    from engine.analysis.bench import BenchRow
    from engine.model.loader import LoadedModel
    from engine.wire.measurements import SweepRow, Unavailable

DEFAULT_CONTEXT = 256


def add_parsers(commands: Any) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="every cache mode on one prompt: bytes, speed, and what it changes",
        description="Every cache mode is fed the same tokens: the prompt, then those that the exact model chooses "
        "greedily. KL (nats) and top-1 agreement compare each step with the model without a cache. Perplexity is of "
        "those greedy tokens: how sure a mode is of what the exact model says, not of a text that people wrote.",
    )
    add_model_arguments(sweep)
    add_prompt_arguments(sweep)
    add_cache_arguments(sweep)
    add_caches_argument(sweep)
    sweep.add_argument("--json", action="store_true", help="JSON lines")
    sweep.set_defaults(func=sweep_command)

    bench = commands.add_parser("bench", help="cache modes against each other in time, taking turns")
    add_model_arguments(bench)
    add_prompt_arguments(bench, required=False)
    add_cache_arguments(bench)
    bench.add_argument(
        "--context", type=int, default=DEFAULT_CONTEXT, metavar="N", help="tokens to start from, without a prompt"
    )
    add_caches_argument(bench, "dynamic,static,growing,paged")
    bench.add_argument("--json", action="store_true", help="JSON lines")
    bench.set_defaults(func=bench_command)


def sweep_command(args: argparse.Namespace) -> int:
    steps, specs = checked_steps(args), specs_of(args.caches, args)
    (prompt,) = prompts_of(args, SamplingParams())
    model = load_model(args)
    from engine.analysis.bench import sweep
    from engine.analysis.reference import reference

    truth = reference(model, encoded(model, prompt), steps)
    return tell_all(sweep(model, specs, truth), model, args)


def bench_command(args: argparse.Namespace) -> int:
    steps, specs = checked_steps(args), specs_of(args.caches, args)
    if args.context < 1:
        raise InputError(f"{args.context} tokens is nothing to start from: give 1 or more.")
    given = args.prompt is not None or args.prompt_file is not None or args.token_ids is not None
    prompts = prompts_of(args, SamplingParams()) if given else []
    model = load_model(args)
    from engine.analysis.bench import bench

    ids = encoded(model, prompts[0]) if prompts else synthetic_ids(model, args.context)
    return tell_all(bench(model, specs, ids, steps), model, args)


def encoded(model: LoadedModel, prompt: Prompt) -> tuple[int, ...]:
    from engine.session.prompt import encode

    return tuple(encode(model, prompt))


def synthetic_ids(model: LoadedModel, count: int) -> tuple[int, ...]:
    """Tokens spread over the vocabulary, the same every time: what they say does not matter to time and bytes."""
    vocab = model.info.geometry.vocab_size or 2
    return tuple(2 + i * 7919 % max(1, vocab - 2) for i in range(count)) if vocab > 2 else (0,) * count


def tell_all(
    rows: Iterator[SweepRow | Unavailable] | Iterator[BenchRow | Unavailable],
    model: LoadedModel,
    args: argparse.Namespace,
) -> int:
    """Tell every row as it comes; 1 where a mode was refused that somebody had named."""
    num_refused = 0
    for row in rows:
        values = structs.asdict(row)
        if "unavailable" in values:
            num_refused += 1
            tell_unavailable(values["cache"], values["unavailable"], args.json)
        else:
            tell(values, args.json)
    tell_note(model, args.json)
    return 1 if num_refused and args.caches != "all" else 0


def tell(values: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say(values)
        return
    name = values.pop("cache")
    print(f"{name:<22} " + "  ".join(f"{key} {shown(value)}" for key, value in values.items()), flush=True)


def shown(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def tell_note(model: LoadedModel, as_json: bool) -> None:
    if model.info.note and not as_json:
        print(f"note: {model.info.note}")
