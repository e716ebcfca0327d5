"""`seeds`: the tables of the documents that this program is based on, each published figure beside the one measured
here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from msgspec import structs

from engine.cli.arguments import add_compute_arguments, whole
from engine.cli.output import add_command, print_json
from engine.errors import InputError
from engine.files.atomic import writable_target, write_text

if TYPE_CHECKING:
    from engine.seeds.models import SeedSetting
    from engine.seeds.published import SeedLine

QUICK_TOKENS = 6
WIDTH = 28  # width of a figure in the printed table


def add_seeds(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reproduces each table and figure of the documents that this program began from. Where a model of "
        "theirs is not on this computer, random weights in its shape take its place, and each line says so."
    )
    add_compute_arguments(parser)
    parser.add_argument("--steps", type=whole(), metavar="N", help="tokens of the speed table (200, as published)")
    parser.add_argument("--repeats", type=whole(), metavar="N", help="how often its runs take turns (3)")
    parser.add_argument("--tables", metavar="NAME,...", help="only these: see --list; all of them otherwise")
    parser.add_argument("--list", action="store_true", help="list the tables and measure none")
    parser.add_argument("--quick", action="store_true", help="few tokens, models of two layers, nothing compiled")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one self-contained page")
    add_command(parser, seeds_command)


def seeds_command(args: argparse.Namespace) -> int:
    """Measure and print the tables; returns 1 if a figure that must agree does not."""
    setting = setting_of(args)
    if args.html is not None:
        writable_target(args.html)  # an error is reported before minutes are spent on measuring
    names = names_of(args.tables)
    from engine.seeds.models import SeedModels
    from engine.seeds.page import TABLES, page, seed_lines

    if args.list:
        for name, table in TABLES.items():
            print(f"{name:<10} {table.title}")
        return 0
    chosen = tuple(name for name in TABLES if name in names)
    lines = []
    for line in seed_lines(SeedModels(setting), chosen):
        lines.append(line)
        print_line(line, lines, args.json)
    if args.html is not None:
        write_text(args.html, page(lines))
    return 1 if any(line.must_agree and not line.agrees for line in lines) else 0


def setting_of(args: argparse.Namespace) -> SeedSetting:
    from engine.seeds.models import SeedSetting
    from engine.seeds.published import NUM_TOKENS

    tokens = args.steps or (QUICK_TOKENS if args.quick else NUM_TOKENS)
    repeats = args.repeats or (1 if args.quick else 3)
    return SeedSetting(args.dtype, args.device, args.threads, args.allow_download, tokens, repeats, args.quick)


def names_of(text: str | None) -> tuple[str, ...]:
    from engine.seeds.published import TableKind

    known = get_args(TableKind)
    names = known if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in known:
            raise InputError(f"There is no table '{name[:40]}': choose from {', '.join(known)}.")
    if not names:
        raise InputError(f"No table is named: choose from {', '.join(known)}.")
    return names


def print_line(line: SeedLine, before: list[SeedLine], as_json: bool) -> None:
    if as_json:
        print_json(structs.asdict(line))
        return
    from engine.seeds.page import TABLES, shown

    is_first = len(before) == 1 or before[-2].table != line.table
    if is_first:
        print(f"\n{TABLES[line.table].title}")
    if is_first or before[-2].heading != line.heading:
        print(f"{'':<58} {line.heading:>{WIDTH}} {'measured':>{WIDTH}}")
    mark = {True: "✓", False: "✗", None: " "}[line.agrees]
    note = f"  {line.note}" if line.note else ""
    if len(before) == 1 or before[-2].on != line.on:
        print(f"  on {line.on}")
    both = "".join(f" {cut(shown(value)):>{WIDTH}}" for value in (line.published, line.measured))
    print(f"{line.item:<58}{both} {line.unit:<9} {mark}{note}")
    sys.stdout.flush()


def cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
