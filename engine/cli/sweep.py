"""`sweep`: measures cache modes × budgets × codecs on texts, as JSON lines or as a table; a file can keep the rows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.arguments import (
    MAX_PROMPT_FILE_BYTES,
    add_caches_argument,
    add_model_arguments,
    add_prompt_arguments,
    checked_steps,
    load_model,
    prompts_of,
)
from engine.cli.cache_options import add_cache_arguments, specs_of
from engine.cli.output import print_rows, printable
from engine.errors import InputError
from engine.files.text import read_text
from engine.spec.codec import CodecSpec
from engine.spec.codec_names import get_codec_names, parse_codec
from engine.spec.grid import SweepMode, grid, parse_budgets
from engine.spec.sampling import Prompt, SamplingParams
from engine.spec.texts import SweepText
from engine.wire.sweep_front import best_by_text

if TYPE_CHECKING:
    from engine.cli.sweep_file import SweepFile
    from engine.model.loader import LoadedModel
    from engine.wire.measurements import SweepRow, Unavailable

PROMPT = "prompt"


def add_parsers(commands: Any) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="cache modes, budgets and codecs on the same texts: bytes, speed, and what they change",
        description="Every mode is fed the same tokens. After a prompt they are those that the exact model chooses "
        "greedily, so its perplexity says how sure a mode is of what the exact model says; of a --text they are the "
        "text's own last tokens, so its perplexity is of that text; --recall plants a fact and asks for it at the end. "
        "KL (nats) and top-1 agreement compare each step with the model without a cache.",
    )
    add_model_arguments(sweep)
    add_prompt_arguments(sweep, required=False)
    sweep.add_argument(
        "--text",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a text whose own last tokens are told from those before them, as far as the context holds it; repeat",
    )
    sweep.add_argument(
        "--recall",
        action="append",
        default=[],
        metavar="TOKENS[:DEPTH]",
        help="plant a fact at a depth of 0 to 1 (0.5) in so many tokens of the first text, and ask for it; repeat",
    )
    sweep.add_argument("--budgets", metavar="N,N%,own", help="sizes of the modes that drop rows: 64, 25%%, own")
    sweep.add_argument(
        "--codecs", metavar="K[/V],...", help=f"how rows are written, K and V apart: {', '.join(get_codec_names())}"
    )
    sweep.add_argument("--resume", type=Path, metavar="FILE", help="keep rows in this file, and measure what it lacks")
    add_cache_arguments(sweep)
    add_caches_argument(sweep)
    sweep.add_argument("--json", action="store_true", help="JSON lines")
    sweep.set_defaults(func=sweep_command)


def sweep_command(args: argparse.Namespace) -> int:
    """Print a row for every mode on every text, and which modes are best for their bytes; returns the exit code."""
    steps, modes, texts = checked_steps(args), modes_of(args), texts_of(args)
    file = None
    if args.resume is not None:
        from engine.cli.sweep_file import SweepFile

        file = SweepFile(args.resume)
    model = load_model(args)
    rows: list[SweepRow | Unavailable] = []
    status = print_rows(all_rows(model, texts, modes, steps, file, rows), model, args)
    if not args.json:
        print_best(best_by_text(rows))
    return status


def all_rows(
    model: LoadedModel,
    texts: tuple[SweepText, ...],
    modes: tuple[SweepMode, ...],
    steps: int,
    file: SweepFile | None,
    rows: list[SweepRow | Unavailable],
) -> Iterator[SweepRow | Unavailable]:
    """The rows that the file has already, then the others, each written to the file when it is measured. All are
    appended to `rows`."""
    from engine.analysis.sweep import sweep

    if file is not None:
        rows += file.open(model.info.fingerprint, model.info.dtype, texts, modes, steps)
        yield from list(rows)
    done = {(row.cache, row.text) for row in rows}
    for row in sweep(model, texts, modes, steps, done):
        rows.append(row)
        if file is not None:
            file.append(row)
        yield row


def print_best(best: dict[str, tuple[str, ...]]) -> None:
    """Print the modes on the Pareto front of bytes and KL."""
    for text, names in best.items():
        print(f"best for their bytes on {printable(text)}: {', '.join(names)}")


# ---- arguments ---------------------------------------------------------------------------------------------------


def modes_of(args: argparse.Namespace) -> tuple[SweepMode, ...]:
    """The grid of modes; raises `InputError` if no combination is possible."""
    budgets = parse_budgets(args.budgets) if args.budgets is not None else (None,)
    codecs = codecs_of(args.codecs) if args.codecs is not None else (None,)
    modes = grid(specs_of(args.caches, args), budgets, codecs)
    if not modes:
        raise InputError("No cache goes together with these budgets and codecs: name others.")
    return modes


def codecs_of(text: str) -> tuple[CodecSpec, ...]:
    found = tuple(parse_codec(part.strip()) for part in text.split(",") if part.strip())
    if not found:
        raise InputError(
            f"No codec is named: choose from {', '.join(get_codec_names())}, K and V apart as int8/kivi-4."
        )
    return found


def texts_of(args: argparse.Namespace) -> tuple[SweepText, ...]:
    """The prompt, the texts, and the texts with a fact in them, each under a different name."""
    found = [SweepText(PROMPT, prompt) for prompt in prompts_of(args, SamplingParams())]
    for path in args.text:
        prompt = Prompt(text=read_text(path, MAX_PROMPT_FILE_BYTES, "text"))
        found.append(SweepText(name_in(found, path.stem), prompt, "given"))
    if not found:
        raise InputError("There is nothing to read: give a --prompt, a --prompt-file, --token-ids or a --text.")
    source = found[0].prompt
    for given in args.recall:
        tokens, depth = recall_of(given)
        found.append(SweepText(name_in(found, f"recall {tokens} at {depth:.0%}"), source, "recall", tokens, depth))
    return tuple(found)


def name_in(texts: list[SweepText], name: str) -> str:
    """The name, with a number if another text has the same one."""
    names = {text.name for text in texts}
    return next(each for each in (name, *(f"{name} {n}" for n in range(2, len(names) + 3))) if each not in names)


def recall_of(given: str) -> tuple[int, float]:
    tokens, _, depth = given.partition(":")
    try:
        where = float(depth) if depth else 0.5
    except ValueError:
        where = -1.0
    if not (tokens.isascii() and tokens.isdecimal() and len(tokens) < 10 and int(tokens)) or not 0 <= where <= 1:
        raise InputError(f"--recall '{given[:40]}' is not a number of tokens and a depth: write 512 or 512:0.25.")
    return int(tokens), where
