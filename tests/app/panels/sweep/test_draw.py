"""A sweep as points and as a table: the Pareto front, sorting, CSV."""

from __future__ import annotations

import numpy as np
import pytest

from app.kit import rows_view
from app.panels import sweep
from engine.wire.measurements import SweepRow, Unavailable


def row(cache: str, kv_bytes: int, kl: float, speed: float = 50.0, lossless: bool = False) -> SweepRow:
    return SweepRow(cache, kv_bytes, speed, kl, 1.0, 3.0, 0.0, lossless)


ROWS = (
    row("none", 0, 0.0, 10, True),
    row("growing", 4000, 1e-12, 90, True),
    row("int8", 1000, 1e-4, 70),
    row("h2o", 1000, 1e-1, 60),
    row("sliding", 900, 2.0, 80),
    Unavailable("kivi-4", "Groups of 32 do not divide 16 channels."),
)


def test_the_front_holds_the_points_that_no_other_dominates() -> None:
    found = sweep.cloud_of(ROWS)
    assert sweep.cloud_of(ROWS, "another text").names == ()
    assert found.names == ("growing", "int8", "h2o", "sliding"), "what recomputes has no bytes"
    assert [found.names[i] for i in found.front] == ["sliding", "int8", "growing"]
    assert found.y[0] == 0
    assert (found.y[1:] > 0).all()
    assert found.x[0] > found.x[1] == found.x[2] > found.x[3]
    assert found.x.tolist() == pytest.approx(np.log2([4000, 1000, 1000, 900]))
    x, y = sweep.steps_of(found)
    assert y.tolist() == pytest.approx([*found.y[[3, 3, 1, 1]], 0.0]), "down only at the next mark"
    assert x.tolist() == pytest.approx([*found.x[[3, 1, 1, 0, 0]]])
    assert sweep.cloud_of(()).names == ()


def test_rows_sort_and_the_unavailable_stay_last() -> None:
    columns = ("cache", "kv_bytes", "tok_per_s")
    names = [r.cache for r in rows_view.sorted_by(ROWS, columns, columns.index("tok_per_s"), True)]
    assert names == ["growing", "sliding", "int8", "h2o", "none", "kivi-4"]
    assert [r.cache for r in rows_view.sorted_by(ROWS, columns, -1, False)] == [r.cache for r in ROWS]


def test_the_table_as_csv_says_everything() -> None:
    lines = rows_view.csv_of(
        ROWS,
        ("cache", "kv_bytes", "tok_per_s", "mean_kl", "top1_agreement", "perplexity", "lossless", "max_abs_logit_diff"),
    ).splitlines()
    assert lines[0].startswith("cache,kv_bytes,tok_per_s,mean_kl,top1_agreement,perplexity,lossless")
    assert lines[2].startswith("growing,4000,90,1e-12")
    assert lines[-1] == "kivi-4,,,,,,,,Groups of 32 do not divide 16 channels."


def test_a_point_that_is_only_as_good_as_a_smaller_one_is_not_on_the_front() -> None:
    num_bytes, kl = np.array([1.0, 2.0, 3.0, 3.0, 4.0]), np.array([0.5, 0.5, 0.3, 0.2, 0.1])
    assert sweep.front(num_bytes, kl) == (0, 3, 4)
