"""A frame turns numbers into places and back."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QPointF, QRectF

from app.kit.chart import PlotFrame
from app.kit.theme import DARK


def test_the_point_under_the_mouse() -> None:
    """The plot is five times as wide as it is high, its ranges are not 0 … 1, and the reach counts pixels."""
    frame = PlotFrame(QRectF(40, 10, 500, 100), (0.0, 10.0), (0.0, 1.0), 1.0, DARK)
    points = np.array([[2.0, 0.5], [4.0, 0.5], [4.0, 0.9]])
    at = frame.point_of(4.0, 0.9)
    assert (at.x(), at.y()) == (240, 20)
    assert frame.nearest(points, at + QPointF(0, 8), 9) == 2
    assert frame.nearest(points, at + QPointF(0, 20), 9) is None, "20 pixels below one and above the other"
    assert frame.nearest(points, at + QPointF(8, 0), 9) == 2
    assert frame.nearest(points, at + QPointF(20, 0), 9) is None, "beside it by more than the reach"
    assert frame.nearest(points, frame.point_of(2.9, 0.0), None) == 0, "along x alone"
    assert frame.nearest(points, QPointF(700, 20), None) is None, "beside the plot"
