"""`sweep`: measures cache modes × budgets × codecs on texts, as JSON lines or as a table; a file can keep the rows."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.cli.arguments import (
    MAX_PROMPT_FILE_BYTES,
    add_cache_arguments,
    add_caches_argument,
    add_model_arguments,
    add_prompt_arguments,
    load_model,
    prompts_of,
    specs_of,
)
from engine.cli.output import add_command, print_rows, printable
from engine.cli.values import refusing
from engine.errors import InputError
from engine.files.atomic import writable_target, write_text
from engine.files.text import JSON_LIMIT, read_text
from engine.spec.codec import CodecSpec, get_codec_names, parse_codec
from engine.spec.grid import SweepMode, SweepText, grid, parse_budgets
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.measurements import SweepRow, Unavailable, best_by_text

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel


PROMPT = "prompt"


def add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Every mode is given the same tokens. After a prompt they are those that the exact model chooses "
        "greedily, so its perplexity says how sure a mode is of what the exact model says; of a --text they are the "
        "text's own last tokens, so its perplexity is of that text; --recall plants a fact and asks for it at the end. "
        "KL (nats) and top-1 agreement compare each step with the model without a cache."
    )
    add_model_arguments(parser)
    add_prompt_arguments(parser, required=False)
    parser.add_argument(
        "--text",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a text whose own last tokens are told from those before them, as far as the context holds it; repeat",
    )
    parser.add_argument(
        "--recall",
        type=refusing(parse_recall),
        action="append",
        default=[],
        metavar="TOKENS[:DEPTH]",
        help="plant a fact at a depth of 0 to 1 (0.5) in so many tokens of the first text, and ask for it; repeat",
    )
    parser.add_argument(
        "--budgets",
        type=refusing(parse_budgets),
        default=(None,),
        metavar="N,N%,own",
        help="sizes of the modes that evict rows: 64, 25%%, own",
    )
    parser.add_argument(
        "--codecs",
        type=refusing(parse_codecs),
        default=(None,),
        metavar="K[/V],...",
        help=f"how rows are written, K and V apart: {', '.join(get_codec_names())}",
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep rows in this file, and measure what it lacks")
    add_cache_arguments(parser)
    add_caches_argument(parser)
    add_command(parser, sweep_command)


def sweep_command(args: argparse.Namespace) -> int:
    """Print a row for every mode on every text, and which modes are best for their bytes; returns the exit code."""
    modes, texts = modes_of(args), texts_of(args)
    file = None
    if args.resume is not None:
        file = SweepFile(args.resume)
    model = load_model(args)
    rows: list[SweepRow | Unavailable] = []
    status = print_rows(all_rows(model, texts, modes, args.steps, file, rows), model, args)
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
    modes = grid(specs_of(args.caches, args), args.budgets, args.codecs)
    if not modes:
        raise InputError("No cache goes together with these budgets and codecs: name others.")
    return modes


def parse_codecs(text: str) -> tuple[CodecSpec, ...]:
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
    for tokens, depth in args.recall:
        found.append(SweepText(name_in(found, f"recall {tokens} at {depth:.0%}"), source, "recall", tokens, depth))
    return tuple(found)


def name_in(texts: list[SweepText], name: str) -> str:
    """The name, with a number if another text has the same one."""
    names = {text.name for text in texts}
    return next(each for each in (name, *(f"{name} {n}" for n in range(2, len(names) + 3))) if each not in names)


def parse_recall(given: str) -> tuple[int, float]:
    tokens, _, depth = given.partition(":")
    try:
        where = float(depth) if depth else 0.5
    except ValueError:
        where = -1.0
    if not (tokens.isascii() and tokens.isdecimal() and len(tokens) < 10 and int(tokens)) or not 0 <= where <= 1:
        raise InputError(f"'{given[:40]}' is not a number of tokens and a depth: write 512 or 512:0.25.")
    return int(tokens), where


class SweepFile:
    """JSON lines: a header that identifies the sweep, then its rows. An incomplete last line is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = writable_target(path)  # an error is raised before a model is loaded
        self._text = read_text(path, JSON_LIMIT, "sweep file") if self._path.exists() else ""

    def open(
        self,
        fingerprint: str,
        dtype: str,
        texts: Sequence[SweepText],
        modes: Sequence[SweepMode],
        num_steps: int,
    ) -> list[SweepRow | Unavailable]:
        """The rows that the file has for these modes; raises `InputError` if they are of another model, other texts or
        other steps. Modes may differ from those of earlier runs."""
        header = json.dumps({"sweep": digest_of(fingerprint, dtype, texts, num_steps)})
        lines = self._text.split("\n")[:-1]
        if lines and lines[0] != header:
            raise InputError(
                f"'{self._path}' holds a sweep of another model, other texts or other steps: name another file."
            )
        specs = {mode.name: digest(mode) for mode in modes}
        names = {text.name for text in texts}
        kept = dict.fromkeys(line for line in lines[1:] if self._is_wanted(line, specs, names))
        if not lines or self._text != "\n".join([header, *lines[1:], ""]):
            write_text(self._path, "\n".join([header, *lines[1:], ""]))
        self._specs = specs
        rows = [row_of(json.loads(line)) for line in kept]
        return list({(row.cache, row.text): row for row in rows}.values())  # two programs may have written the same row

    def _is_wanted(self, line: str, specs: dict[str, str], names: set[str]) -> bool:
        try:
            values = json.loads(line)
            return values["text"] in names and specs.get(values["cache"]) == values["mode"] and bool(row_of(values))
        except (ValueError, KeyError, TypeError):
            raise InputError(f"'{self._path}' holds a line that is no row of a sweep: name another file.") from None

    def append(self, row: SweepRow | Unavailable) -> None:
        """Append a row and flush it to disk."""
        values = {"mode": self._specs[row.cache], **msgspec.structs.asdict(row)}
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(values) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"'{self._path}' cannot be written ({reason}): free some space or name another.") from None


def row_of(values: dict[str, object]) -> SweepRow | Unavailable:
    """The row of a line, with every type checked."""
    fields = {name: value for name, value in values.items() if name != "mode"}
    kind: type[SweepRow] | type[Unavailable] = Unavailable if "unavailable" in fields else SweepRow
    ordered = [kind.__name__, *(fields[name] for name in kind.__struct_fields__)]
    return msgspec.convert(ordered, kind)


def digest(value: object) -> str:
    """A hash of a value's content."""
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


def digest_of(fingerprint: str, dtype: str, texts: Sequence[SweepText], num_steps: int) -> str:
    return digest((fingerprint, dtype, tuple(sorted(map(digest, texts))), num_steps))
