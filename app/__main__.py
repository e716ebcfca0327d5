"""The entry point of `kvloupe` and `python -m app`."""

from __future__ import annotations

import sys

from engine.startup import end_at_interrupt


def main(argv: list[str] | None = None) -> int:
    """Run the program; returns the exit status for the shell."""
    end_at_interrupt()  # the window sets its own handler when it opens
    from app.entry import run_program  # imported late: until here Ctrl+C would print a traceback

    return run_program(argv)


if __name__ == "__main__":
    sys.exit(main())
