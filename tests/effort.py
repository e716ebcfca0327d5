"""How much is tried: the usual run of the tests takes minutes; `KVLOUPE_TESTS=long pytest` tries far more."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
IS_LONG = os.environ.get("KVLOUPE_TESTS") == "long"


def effort(usual: T, long: T) -> T:
    """How many examples, operations or kills; or every how many calls fail."""
    return long if IS_LONG else usual
