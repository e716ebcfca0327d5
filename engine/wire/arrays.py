"""Conversion of arrays to the form that messages carry: contiguous, read-only, float32 or int64."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.wire.records import Floats, Ints


def read_only(array: np.ndarray[Any, Any]) -> Any:
    """A contiguous form of the array, marked as not writeable. No copy is made if it is contiguous already."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


def read_only_floats(array: np.ndarray[Any, Any]) -> Floats:
    """The array as read-only float32."""
    floats: Floats = read_only(np.asarray(array, np.float32))
    return floats


def read_only_ints(array: np.ndarray[Any, Any]) -> Ints:
    """The array as read-only int64."""
    ints: Ints = read_only(np.asarray(array, np.int64))
    return ints
