"""`verify`: compares every cache mode with the forward pass without a cache."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from engine.cli.arguments import (
    add_cache_arguments,
    add_caches_argument,
    add_model_arguments,
    add_prompt_arguments,
    load_model,
    prompts_of,
    specs_of,
)
from engine.cli.output import add_command, print_json, print_model_note, print_row
from engine.cli.values import whole
from engine.errors import InputError, first_line
from engine.spec.sampling import SamplingParams

if TYPE_CHECKING:
    from engine.analysis.reference import Parity


def add_verify(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    add_cache_arguments(parser)
    add_caches_argument(parser)
    parser.add_argument("--prefill-chunk", type=whole(), default=128, metavar="TOKENS")
    add_command(parser, verify_command)


def verify_command(args: argparse.Namespace) -> int:
    """Print how much each mode differs; returns 1 if a lossless one does, one fails, or a named one cannot run."""
    specs = specs_of(args.caches, args)
    (prompt,) = prompts_of(args, SamplingParams())
    model = load_model(args)
    from engine.analysis.reference import parity, reference
    from engine.cache.paged.pool import PoolCorrupted
    from engine.session.commands import first_ids

    truth = reference(model, tuple(first_ids(model, prompt)), args.steps)
    passed = True
    for name, spec in specs.items():
        try:
            result = parity(model, name, spec, truth, args.prefill_chunk)
        except InputError as error:
            print_row({"cache": name, "unavailable": str(error)}, args.json)
            passed &= args.caches == "all"
            continue
        except RuntimeError as error:  # of a kernel or a device: the other modes are still worth knowing
            what = "corrupted" if isinstance(error, PoolCorrupted) else "failed"
            print_row({"cache": name, what: first_line(error)}, args.json)
            passed = False
            continue
        passed &= result.passes
        if args.json:
            print_json({**dataclasses.asdict(result), "passes": result.passes})
        else:
            print(
                f"{result.cache:<22} max |Δlogit| {result.max_abs_logit_diff:.2e}   KL {result.mean_kl:.2e}   "
                f"top-1 {round(result.top1_agreement * result.steps)} of {result.steps} steps   {verdict(result)}"
            )
    print_model_note(model, args.json)
    return 0 if passed else 1


def verdict(result: Parity) -> str:
    """The result of a mode in words."""
    if not result.lossless:
        return "lossy, measured" if result.is_beyond else f"lossy, within {result.tolerance:g} on these tokens"
    if result.passes:
        return f"ok, within {result.tolerance:g}"
    row = result.wrong_row
    where = f", first in {row.tensor} of layer {row.layer} at position {row.position}" if row else ""
    return f"DIFFERS by more than {result.tolerance:g}{where}" if result.is_beyond else f"DIFFERS{where}"
