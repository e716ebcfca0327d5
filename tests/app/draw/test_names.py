"""Names beside points cover neither these nor each other."""

from __future__ import annotations

import numpy as np

from app.draw import axis


def test_names_cover_neither_points_nor_each_other() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.uniform(0, 300, 20), rng.uniform(0, 150, 20)
    found = axis.labels(x, y, [50.0] * 20, (300, 150), 12, first=(7,))
    assert found[0].index == 7
    boxes = [(label.left, label.middle - 6, label.left + 50, label.middle + 6) for label in found]
    for i, one in enumerate(boxes):
        assert one[0] >= 0
        assert one[2] <= 300
        for other in boxes[i + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    assert axis.clusters(np.array([0.0, 1, 50]), np.array([0.0, 1, 50])) == ((0, 1), (2,))
