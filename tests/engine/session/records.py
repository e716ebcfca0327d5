"""Records of steps, compared: all of a record but its times, where NaN equals NaN."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from engine.wire.records import NO_TIMES, CacheBytes, StepRecord


def comparable(record: StepRecord) -> StepRecord:
    """A record without its times and byte counts of the process, which differ from run to run."""
    num_bytes = CacheBytes(record.num_bytes.layers, 0, 0, None)
    pools = tuple(replace(pool, pool=0) for pool in record.pools)
    return replace(record, wall_time=0.0, timings=NO_TIMES, num_bytes=num_bytes, pools=pools)


def same_values(one: object, other: object) -> bool:
    """Whether two values are equal, inside arrays, tuples and messages too; NaN equals NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_values, one, other))
    if hasattr(one, "__struct_fields__"):
        return type(one) is type(other) and all(
            same_values(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__
        )
    return one == other


def assert_same_records(expected: Iterable[StepRecord], found: Iterable[StepRecord]) -> None:
    """As many records, each equal to its counterpart but for times and byte counts of the process."""
    for one, other in zip(expected, found, strict=True):
        assert same_values(comparable(one), comparable(other)), f"step {one.step}"
