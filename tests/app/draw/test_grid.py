"""Several rows of a picture in one pixel: the value farthest from zero is seen."""

from __future__ import annotations

import numpy as np

from app.draw.colormap import NON_FINITE, ZERO
from app.draw.grid import pooled_rows


def test_rows_that_share_a_pixel_show_the_value_farthest_from_zero() -> None:
    indices = np.array([[130, 120], [0, 127], [254, 127], [127, 126], [NON_FINITE, 127]], np.uint8)
    assert pooled_rows(indices, 5, ZERO) is indices
    assert pooled_rows(indices, 3, ZERO).tolist() == [[0, 120], [254, 126], [NON_FINITE, 127]]
    assert pooled_rows(indices, 1, 0).tolist() == [[NON_FINITE, 127]]
