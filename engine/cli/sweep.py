"""`sweep`: every cache mode on the same tokens, as JSON lines or as a table."""

from __future__ import annotations

import argparse
from typing import Any

from engine.cli.cache_options import add_cache_arguments, specs_of
from engine.cli.rows import encoded, tell_all
from engine.cli.run import (
    add_caches_argument,
    add_model_arguments,
    add_prompt_arguments,
    checked_steps,
    load_model,
    prompts_of,
)
from engine.spec.sampling import SamplingParams


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


def sweep_command(args: argparse.Namespace) -> int:
    steps, specs = checked_steps(args), specs_of(args.caches, args)
    (prompt,) = prompts_of(args, SamplingParams())
    model = load_model(args)
    from engine.analysis.reference import reference
    from engine.analysis.sweep import sweep

    truth = reference(model, encoded(model, prompt), steps)
    return tell_all(sweep(model, specs, truth), model, args)
