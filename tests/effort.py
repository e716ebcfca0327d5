"""How many cases a test tries: few in the usual run of minutes, far more with `KVLOUPE_TESTS=long pytest`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
IS_LONG = os.environ.get("KVLOUPE_TESTS") == "long"


def effort(usual: T, long: T) -> T:
    """`usual` or, in a long run, `long`: a number of examples, operations or kills, or every how many calls fail."""
    return long if IS_LONG else usual
