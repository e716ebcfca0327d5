"""The command line of the engine: its sub-commands, and how errors end them."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from engine.cli import (
    bench,
    budget,
    caches,
    child,
    devices,
    events,
    gpu_check,
    lens,
    params,
    replay,
    run,
    seeds,
    snapshot,
    sweep,
    verify,
)
from engine.cli.output import printable_line
from engine.environment import prepare
from engine.errors import InputError, not_imported
from engine.interrupts import raise_at_interrupt

DESCRIPTION = "Runs the engine without a window, from the command line. `--help` lists the sub-commands."

# In the order of `--help`.
COMMANDS = (
    run,
    replay,
    verify,
    sweep,
    bench,
    gpu_check,
    seeds,
    devices,
    caches,
    lens,
    params,
    budget,
    snapshot,
    events,
    child,
)


class CommandLineParser(argparse.ArgumentParser):
    """A parser that reports wrong arguments like other bad input: one line, exit code 2; `--help` has the usage."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see --help", file=sys.stderr)
        raise SystemExit(2)


def command_line() -> CommandLineParser:
    """The parser with all sub-commands."""
    parser = CommandLineParser(prog="kvloupe-engine", description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parsers(commands)
    return parser


def run_command_line(argv: list[str] | None = None) -> int:
    """Run a sub-command; returns the exit status."""
    prepare()
    try:
        args = command_line().parse_args(argv)
    finally:
        raise_at_interrupt()
    try:
        return int(args.func(args))
    except InputError as error:
        print(f"kvloupe-engine: {printable_line(error)}", file=sys.stderr)
        return 2
    except ImportError as error:
        if not (why := not_imported(error)):
            raise
        print(f"kvloupe-engine: {printable_line(why)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
