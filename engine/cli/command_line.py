"""The command line of the engine: its sub-commands, and how errors end them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from engine.cli.output import printable_line
from engine.errors import plain
from engine.startup import prepare, raise_at_interrupt

DESCRIPTION = "Runs the engine without a window, from the command line. `--help` lists the sub-commands."

# The module of each sub-command, which has a function that adds its options, and its help, in the order of `--help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "generate, one line a step"),
    "replay": ("replay", "do a saved session once more and compare it"),
    "verify": ("measure", "every cache mode against the uncached forward"),
    "sweep": ("measure", "cache modes, budgets and codecs on the same texts: bytes, speed, and what they change"),
    "bench": ("measure", "cache modes against each other in time, taking turns"),
    "gpu-check": ("measure", "a report on a GPU to paste: every mode in every dtype, and speed"),
    "seeds": ("seeds", "the tables of the KV cache documents, measured here beside what they print"),
    "devices": ("listings", "list devices, and say what a model would take before it is loaded"),
    "caches": ("listings", "list the cache modes"),
    "lenses": ("lens", "the lenses through which a cache can be looked at"),
    "lens": ("lens", "what a lens shows of a run, one line a layer and head"),
    "params": ("config", "MAX's KV cache parameters for a model"),
    "budget": ("config", "predicted bytes of a KV cache"),
    "snapshot": ("snapshot", "what an exported file holds, whether it is sound, how far two are apart"),
    "events": ("events", "KV events of a running server: record, describe, explain"),
    "child": ("command_line", "an engine for a window on another machine, which calls this over ssh"),
}


class CommandLineParser(argparse.ArgumentParser):
    """A parser that reports wrong arguments like other bad input: one line, exit code 2; `--help` has the usage. `add`
    adds the options when they are first needed, so that only the modules of the sub-command that is run are
    imported."""

    add: Callable[[argparse.ArgumentParser], None] | None = None

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message.rstrip('.')}; see --help", file=sys.stderr)
        raise SystemExit(2)

    def complete(self) -> None:
        """Add the options."""
        add, self.add = self.add, None
        if add is not None:
            add(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.complete()
        return super().parse_known_args(args, namespace)


def command_line() -> CommandLineParser:
    """The parser with all sub-commands."""
    parser = CommandLineParser(prog="kvloupe-engine", description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, words) in COMMANDS.items():
        commands.add_parser(name, help=words).add = partial(_add_options, name, module)
    return parser


def _add_options(name: str, module: str, parser: argparse.ArgumentParser) -> None:
    getattr(import_module(f"engine.cli.{module}"), f"add_{name.replace('-', '_')}")(parser)


def add_child(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(func=child_command)


def child_command(_args: argparse.Namespace) -> int:
    from engine.client.child import main

    main(is_far=True)
    return 0


def run_command_line(argv: list[str] | None = None) -> int:
    """Run a sub-command; returns the exit status."""
    prepare()
    try:
        args = command_line().parse_args(argv)
    finally:
        raise_at_interrupt()
    try:
        return int(args.func(args))
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not (why := plain(error)):
            raise
        print(f"kvloupe-engine: {printable_line(why)}", file=sys.stderr)
        return 2
