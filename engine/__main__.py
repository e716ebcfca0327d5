"""The headless twin of the window: the same engine from the command line. `--help` lists what it does."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from engine.cli import bench as cli_bench
from engine.cli import budget as cli_budget
from engine.cli import caches as cli_caches
from engine.cli import devices as cli_devices
from engine.cli import gpu_check as cli_gpu_check
from engine.cli import params as cli_params
from engine.cli import replay as cli_replay
from engine.cli import run as cli_run
from engine.cli import seeds as cli_seeds
from engine.cli import snapshot as cli_snapshot
from engine.cli import sweep as cli_sweep
from engine.cli import verify as cli_verify
from engine.cli.output import printable_line
from engine.environment import prepare
from engine.errors import InputError


class CommandLineParser(argparse.ArgumentParser):
    """Wrong arguments are bad input like any other: one line, exit 2; `--help` has the usage."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see --help", file=sys.stderr)
        raise SystemExit(2)


def main(argv: list[str] | None = None) -> int:
    prepare()
    parser = CommandLineParser(prog="kvloupe-engine", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    cli_run.add_parsers(commands)
    cli_replay.add_parsers(commands)
    cli_verify.add_parsers(commands)
    cli_sweep.add_parsers(commands)
    cli_bench.add_parsers(commands)
    cli_gpu_check.add_parsers(commands)
    cli_seeds.add_parsers(commands)
    cli_devices.add_parsers(commands)
    cli_caches.add_parsers(commands)
    cli_params.add_parsers(commands)
    cli_budget.add_parsers(commands)
    cli_snapshot.add_parsers(commands)
    args = parser.parse_args(argv)
    try:
        return int(args.func(args))
    except InputError as error:
        print(f"kvloupe-engine: {printable_line(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
