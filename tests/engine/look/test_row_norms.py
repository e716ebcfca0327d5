"""The largest new row against the rows before it, of which so many are remembered and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from engine.look.measures import MOST_ROWS, norm_ratio, norms_after


def stats(*norms: float) -> Any:
    """One layer of one head."""
    row = np.array(norms, np.float32)[None, None]
    return SimpleNamespace(key_norm=row, value_norm=row)


def test_the_median_is_of_the_rows_before_alone() -> None:
    before = norms_after(None, stats(*[1.0] * 10))
    assert norm_ratio(stats(*[10.0] * 16), before) == 10.0


def test_as_many_rows_are_remembered_as_a_median_needs() -> None:
    first = norms_after(None, stats(*range(100)))
    assert first.shape == (1, 2, MOST_ROWS)
    assert norms_after(first, stats(7.0))[0, 0].tolist() == [*range(37, 100), 7.0]
