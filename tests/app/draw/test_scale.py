"""The scale of differences: zero has a place, and what is no number is at the top."""

from __future__ import annotations

import numpy as np
import pytest

from app.draw.axis import FLOOR, LogScale, Tick, log_scale


def test_zero_has_a_place_and_what_is_no_number_is_at_the_top() -> None:
    scale = LogScale(-4, 0)
    assert scale.at([0.0, 1e-9, 1e-4, 1.0, 50.0, np.inf, np.nan]).tolist() == pytest.approx([0, 0, FLOOR, 1, 1, 1, 1])
    assert (np.diff(scale.at(np.logspace(-4, 0, 50))) > 0).all()
    assert scale.ticks(9)[0] == Tick(0.0, "0")
    assert [tick.text for tick in scale.ticks(3)] == ["0", "1e-4", "1e-2", "1e0"]
    close = scale.ticks(9, float(scale.at(2e-2)), float(scale.at(0.6)))
    assert [tick.text for tick in close] == ["2e-2", "5e-2", "1e-1", "2e-1", "5e-1"], "one decade is named within"


def test_a_scale_takes_in_what_there_is_but_not_below_its_floor() -> None:
    scale = log_scale([3e-7, 20.0, 0.0, np.inf], -4, -1, -6)
    assert (scale.low, scale.high) == (-4, 2)
    assert log_scale([], -4, -1, -6) == LogScale(-4, -1)
