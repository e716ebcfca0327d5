"""Curves of the bench from its rows."""

from __future__ import annotations

import numpy as np
import pytest

from app.panels.bench import curves_of
from tests.app.panels.bench.rows import ROWS, row


def test_a_curve_a_mode_and_batch_by_rising_context() -> None:
    found = curves_of(ROWS, "tok_per_s")
    assert found.keys == ("dynamic 512 1", "int8 512 1", "dynamic 128 1", "int8 128 4")
    assert found.x.tolist() == [9.0, 9.0, 7.0, 7.0]
    assert found.y.tolist() == pytest.approx(np.log2([40, 30, 80, 60]))
    assert found.series == (("dynamic", 1, (2, 0)), ("int8", 1, (1,)), ("int8", 4, (3,)))
    (x_low, x_high), (y_low, y_high) = found.home
    assert (x_low, x_high) == (6.5, 9.5)
    assert (y_low, y_high) == pytest.approx((np.log2(30) - 0.5, np.log2(80) + 0.5))
    assert curves_of(ROWS, "kv_bytes").y.tolist() == [20.0, 18.0, 10.0, 10.0]
    nothing = curves_of((row("none", 16, 10, kv=0), ROWS[0]), "kv_bytes")
    assert nothing.keys == ("dynamic 512 1",)
    shares = curves_of(ROWS, "overhead_ratio")
    assert shares.y.tolist() == [0.25] * 4
    assert shares.home[1] == (-0.02, 1.03)
    apart = (row("dynamic", 16, 64), row("int8", 16, 32), row("dynamic", 64, 16), row("int8", 64, 15))
    assert curves_of(apart, "tok_per_s").named == (0, 1)
    assert curves_of((*apart[2:], row("dynamic", 512, 9), row("int8", 512, 2)), "tok_per_s").named == (2, 3)
    assert curves_of((), "tok_per_s").home == ((0.0, 1.0), (0.0, 1.0))
