"""Ctrl+C while a program starts: one quiet end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.startup import STATUS, end_at_interrupt, raise_at_interrupt

ROOT = Path(__file__).resolve().parents[1].parent
# runs the entry point `sys.argv[1]` as its console script does, and is interrupted when it imports `sys.argv[2]`
INTERRUPTED = """
import importlib.abc, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
name, moment = sys.argv[1:]
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)
            print("went on")
sys.meta_path.insert(0, Interrupting())
sys.argv = ["x", "--help"]
exec(f"from {name} import main")
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("engine.__main__", "argparse"),
        ("engine.__main__", "engine.cli.command_line"),
        ("engine.__main__", "engine.cli.output"),
        ("app.__main__", "app.entry"),
        ("app.__main__", "app.start.arguments"),
    ],
)
def test_an_interrupted_start_ends_quietly(name: str, moment: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, name, moment]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (STATUS, "", "")


def test_the_handler_is_set_back_and_another_one_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_at_interrupt()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        raise_at_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_at_interrupt()
        raise_at_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
