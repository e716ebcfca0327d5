"""The program from its command line to its window: display and libraries are checked before Qt is imported."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.start.preflight import doctor, has_display, library_problem, stand_in_streams

if TYPE_CHECKING:
    from app.start.arguments import Arguments


def run_program(argv: list[str] | None = None) -> int:
    """Run the program; returns the exit status for the shell."""
    # All objects that imports and start create live as long as the program, so collecting garbage among them is wasted
    # work: a twentieth of the start's time. The window collects by itself once it stands (`engine.garbage`).
    gc.disable()
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    finally:
        gc.enable()


def _main(argv: list[str]) -> int:
    stand_in_streams()
    from msgspec.structs import replace  # imported late, with the argument parser: a third of all import time

    from app.start.arguments import parse

    arguments = parse(argv)
    if arguments.doctor:
        return _doctor(arguments)
    if not has_display(os.environ):
        # Qt would abort without a display. A tour needs none, and shows that everything works.
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
        if arguments.tour is None:
            arguments = replace(arguments, tour=Path("kvloupe-tour"))
            print(f"There is no display here: running the tour offscreen into ./{arguments.tour} instead.", flush=True)
    problem = library_problem(os.environ)
    if problem is not None:
        sys.stderr.write(f"{problem}\n")
        return 2
    from app.main import run  # imported late: importing Qt needs the libraries that were just checked

    return _leave(run(arguments))


def _leave(status: int) -> int:
    """End the process without Python's teardown: everything is saved and closed, and unloading torch takes seconds."""
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _doctor(arguments: Arguments) -> int:
    from app.start.arguments import settings_path

    report, is_well = doctor(arguments.settings or settings_path())
    print(report)
    return 0 if is_well else 1
