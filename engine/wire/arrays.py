"""Arrays as messages carry them: contiguous, read-only, of one of two types."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.wire.records import Floats, Ints


def read_only(array: np.ndarray[Any, Any]) -> Any:
    """The array, contiguous, that nobody writes to from here on."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


def read_only_floats(array: np.ndarray[Any, Any]) -> Floats:
    """The numbers as float32."""
    floats: Floats = read_only(np.asarray(array, np.float32))
    return floats


def read_only_ints(array: np.ndarray[Any, Any]) -> Ints:
    """The numbers as int64."""
    ints: Ints = read_only(np.asarray(array, np.int64))
    return ints
