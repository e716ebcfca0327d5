"""Small bars of many values, and the norms of a token."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.draw.grid import row_means
from app.kit.facts import bar_codes
from app.panels.inspector import row_norms, token_norms
from tests.app import samples


def test_sparks_show_every_value_and_mark_one() -> None:
    codes = bar_codes([4.0, 0.001, 0.0, float("nan")], 40, 10, gap=1, marked=0)
    heights = [(codes[:, 10 * i] > 0).sum() for i in range(4)]
    assert heights == [10, 1, 0, 10]
    assert codes[9, 0] == 2
    assert codes[0, 30] == 3


def test_more_values_than_pixels_keep_the_tall_one() -> None:
    values = [1.0] * 400
    values[333] = 50.0
    assert (bar_codes(values, 40, 20, gap=1)[0] > 0).sum() == 1


def test_norms_of_a_token_come_from_the_step_that_wrote_it() -> None:
    part = samples.step_record(0, num_prompt=5).sequences[0]
    norms = token_norms(part, 3)
    assert norms is not None
    assert norms.keys[2] == pytest.approx(float(part.rows.key_norm[2, :, 3].mean()))
    assert token_norms(part, 5) is None
    assert token_norms(replace(part, rows=None), 3) is None


def test_means_leave_out_heads_that_a_layer_does_not_have() -> None:
    nan = float("nan")
    keys = np.array([[1, 3, nan], [2, 2, 5], [nan, nan, nan]], np.float32)
    assert row_means(keys) == pytest.approx([2, 3, nan], nan_ok=True)
    rows = (np.array([[3, 4], [0, 1]], np.float32), np.array([[0, 0, 2]], np.float32))
    assert row_norms((1, 4), rows, (4, 2, 1)) == pytest.approx([2, nan, 3], nan_ok=True)
    assert np.isnan(row_norms((), (), (0,))).all()


def test_the_norm_of_large_numbers_is_finite() -> None:
    rows = (np.full((2, 4), 2e30, np.float32),)
    assert row_norms((0,), rows, (0,)) == pytest.approx([4e30])
