"""Compares walls."""

from __future__ import annotations

import numpy as np

from engine.wire.pictures import WallPicture


def assert_same(piece: WallPicture, expected: WallPicture) -> None:
    assert (piece.request, piece.layers, piece.note) == (expected.request, expected.layers, expected.note)
    for name in ("low", "high", "absent", "holders", "held"):
        found, wanted = getattr(piece, name), getattr(expected, name)
        assert (found is None) == (wanted is None), name
        if wanted is not None:
            np.testing.assert_array_equal(found, wanted, err_msg=name)
    for found, wanted in ((piece.magnitudes, expected.magnitudes), (piece.other_magnitudes, expected.other_magnitudes)):
        assert (found is None) == (wanted is None)
        if wanted is not None:
            for name in ("limit", "largest", "clipped"):
                np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
