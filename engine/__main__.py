"""Runs the engine without a window, from the command line. `--help` lists the sub-commands."""

from __future__ import annotations

import sys

from engine.startup import end_at_interrupt


def main(argv: list[str] | None = None) -> int:
    """Run a sub-command; returns the exit status."""
    end_at_interrupt()
    from engine.cli.command_line import run_command_line  # imported late: until here Ctrl+C would print a traceback

    return run_command_line(argv)


if __name__ == "__main__":
    sys.exit(main())
