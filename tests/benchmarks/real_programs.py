"""The interpreters of other programs' environments."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

_VERSION = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(name, version(name))
        break
    except PackageNotFoundError:
        pass
"""


def version_of(python: str, names: Sequence[str], remedy: str) -> str:
    """The version of the first of some packages that an interpreter has; ends the script in a sentence where it has
    none."""
    try:
        done = subprocess.run([python, "-c", _VERSION, *names], capture_output=True, text=True, check=False)
    except OSError as error:
        raise SystemExit(f"'{python}' cannot be run ({error.strerror}): give an interpreter with --python.") from None
    if not done.stdout.strip():
        raise SystemExit(
            f"{names[0]} is not installed for {python}: {remedy} in an environment of its own, and give its "
            "interpreter with --python."
        )
    return done.stdout.strip()
