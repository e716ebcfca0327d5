"""Rows of what an encoder read: written once, and back only to the beginning or behind them."""

from __future__ import annotations

import torch

from engine.cache.layers.cross import CrossLayer


def test_it_can_go_back_behind_its_source_or_to_nothing() -> None:
    layer = CrossLayer()
    assert layer.can_crop(3), "it has no rows yet"
    rows = torch.zeros(1, 2, 5, 4)
    layer.lazy_initialization(rows, rows)
    layer.append(rows, rows)
    # with five tokens the decoder has read none, and the rows of five are those of a forward that has not been
    assert [layer.can_crop(count) for count in (0, 1, 4, 5, 6, 9)] == [True, False, False, False, True, True]
    layer.crop(6)
    assert layer.get_seq_length() == 5
    layer.crop(0)
    assert (layer.get_seq_length(), layer.rows()) == (0, None)
