"""Ticks are round numbers of whatever is visible."""

from __future__ import annotations

from app.draw.axis import ByteTicks, LinearTicks


def test_round_names_for_whatever_is_visible() -> None:
    assert [tick.at for tick in LinearTicks(str, least=1).ticks(5, -0.5, 12.5)] == [0, 5, 10]
    assert [tick.at for tick in LinearTicks(str, least=1).ticks(50, 2.6, 4.4)] == [3, 4]
    assert [tick.at for tick in LinearTicks(str, is_binary=True).ticks(4, 0, 3000)] == [0, 1024, 2048]
    assert [tick.text for tick in ByteTicks(str).ticks(9, 9.5, 12.2)] == ["1024", "2048", "4096"]
    assert [tick.text for tick in ByteTicks(str).ticks(4, 10.2, 10.9)] == ["1280", "1536", "1792"], "within a power"
