"""Colours: symmetric, exact in the middle, clipped without wrapping, loud for what is not a number."""

from __future__ import annotations

import numpy as np
import pytest

from app.draw import colormap as cm

SIGNED = cm.signed_table("#62b5ff", "#121417", "#ffaa54", "#ff2fd0")


def test_the_ends_and_the_middle_are_the_colours_given() -> None:
    assert tuple(SIGNED[0, :3]) == (0x62, 0xB5, 0xFF)
    assert tuple(SIGNED[cm.ZERO, :3]) == (0x12, 0x14, 0x17)
    assert tuple(SIGNED[cm.HIGHEST, :3]) == (0xFF, 0xAA, 0x54)
    assert tuple(SIGNED[cm.NON_FINITE, :3]) == (0xFF, 0x2F, 0xD0)
    assert (SIGNED[:, 3] == 255).all()


def test_each_half_of_the_signed_table_moves_away_from_the_middle() -> None:
    distance = np.abs(SIGNED[:255, :3].astype(int) - SIGNED[cm.ZERO, :3].astype(int)).sum(axis=1)
    assert (np.diff(distance[: cm.ZERO + 1]) <= 0).all()
    assert (np.diff(distance[cm.ZERO :]) >= 0).all()


def test_magnitudes_start_at_the_ground_and_pass_the_colour() -> None:
    table = cm.magnitude_table("#121417", "#62b5ff", "#ffffff", "#ff00ff")
    assert tuple(table[0, :3]) == (0x12, 0x14, 0x17)
    assert tuple(table[191, :3]) == (0x62, 0xB5, 0xFF)
    assert tuple(table[cm.HIGHEST, :3]) == (255, 255, 255)


def test_signed_indices_are_symmetric_and_clipped() -> None:
    values = np.array([-9, -2, -1, 0, 1, 2, 9], np.float32)
    indices = cm.signed_index(values, 2.0)
    assert indices.tolist() == [0, 0, 63, 127, 191, 254, 254]
    assert ((indices.astype(int) - 127) == -(indices[::-1].astype(int) - 127)).all()


def test_only_what_is_not_a_number_takes_the_last_entry() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38], np.float32)
    assert cm.signed_index(values, 1.0).tolist() == [255, 255, 255, 254, 0]
    assert cm.magnitude_index(np.array([np.nan, 5.0, 0.0, -1.0], np.float32), 1.0).tolist() == [255, 254, 0, 0]


@pytest.mark.parametrize("limit", [0.0, float("nan"), float("inf"), -1.0])
def test_a_limit_that_is_none_draws_against_one(limit: float) -> None:
    assert cm.signed_index(np.array([0.0, 1.0], np.float32), limit).tolist() == [127, 254]


def test_of_two_extremes_the_larger_magnitude_stays_and_nan_is_never_hidden() -> None:
    low = np.array([-5, -1, np.nan, 1, -2], np.float32)
    high = np.array([4, 3, 2, np.nan, 2], np.float32)
    chosen = cm.larger(low, high)
    assert chosen[:2].tolist() == [-5, 3]
    assert np.isnan(chosen[2:4]).all()
    assert chosen[4] == 2


def test_magnitudes_are_even_steps_and_rounded() -> None:
    values = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5], np.float32)
    assert cm.magnitude_index(values, 2.0).tolist() == [0, 64, 127, 190, 254, 254]
    assert cm.magnitude_index(values, 4.0).tolist() == [0, 32, 64, 95, 127, 159]


def test_the_robust_limit_is_the_value_at_its_rank() -> None:
    values = np.arange(1, 1001, dtype=np.float32)
    values[::2] *= -1
    assert cm.robust_limit(values) == 996.0
    assert cm.robust_limit(values, quantile=0.5) == 501.0
    assert cm.robust_limit(values, quantile=1.0) == 1000.0
    assert cm.robust_limit(values, quantile=1.0, sample=100) == 991.0  # every tenth value, from the first on


def test_the_robust_limit_passes_over_outliers_and_what_is_not_a_number() -> None:
    values = np.ones(1000, np.float32)
    values[0], values[1] = 1e6, np.nan
    assert cm.robust_limit(values) == 1.0
    assert cm.robust_limit(np.array([np.nan], np.float32)) == 1.0
    assert cm.robust_limit(np.zeros(4, np.float32)) == 1.0


def test_zeros_do_not_lower_the_robust_limit() -> None:
    values = np.zeros(100_000, np.float32)
    values[-200:] = np.arange(1, 201)
    assert cm.robust_limit(values) == 200.0
    values[-1] = np.inf
    assert cm.robust_limit(values) == 199.0


def test_text_stands_out_from_its_cell() -> None:
    inks = cm.contrast_text(SIGNED)
    assert inks[cm.ZERO] == "#ffffff"
    assert inks[cm.HIGHEST] == "#000000"
